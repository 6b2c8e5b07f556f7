"""Linear layers and experts with MXFP4 weights that several processes share, and torch's DTensors.

    from mxgemm import parallel

    parallel.load_into(model, mxgemm.checkpoints.open(folder), model.config.base_model_tp_plan)

Importing this needs torch.distributed; ``mxgemm`` itself does not import it.
"""

from mxgemm.parallel import rules as _rules
from mxgemm.parallel.experts import ExpertParallelMXExperts
from mxgemm.parallel.linear import ColumnParallelMXLinear, ParallelMXLinear, RowParallelMXLinear
from mxgemm.parallel.model import load_into, parallelize_
from mxgemm.parallel.ranks import Ranks, ranks_of
from mxgemm.parallel.rows import gather_quantized

_rules.register()

__all__ = [
    "ColumnParallelMXLinear",
    "ExpertParallelMXExperts",
    "ParallelMXLinear",
    "Ranks",
    "RowParallelMXLinear",
    "gather_quantized",
    "load_into",
    "parallelize_",
    "ranks_of",
]
