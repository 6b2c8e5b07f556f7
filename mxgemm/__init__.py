"""Block-scaled (microscaling) GEMM: activations times MXFP4 weights, routed by shape.

>>> import torch, mxgemm
>>> w = mxgemm.quantize(torch.randn(2880, 512))
>>> mxgemm.gemm(torch.randn(4, 512, dtype=torch.bfloat16), w).shape
torch.Size([4, 2880])
"""

import sys as _sys

if getattr(_sys, "argv", None) and _sys.argv[0] == "-m" and _sys.orig_argv[-len(_sys.argv)] == "mxgemm":
    from mxgemm_cli import refuse_early as _refuse_early  # `python -m mxgemm` comes by here on its way to __main__

    _refuse_early()
    del _refuse_early

from mxgemm import checkpoints, nn
from mxgemm import ops as _ops  # registers torch.ops.mxgemm
from mxgemm import saved as _saved  # how an MXTensor is pickled; lets torch.load(weights_only=True) make one
from mxgemm._version import __version__
from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.experts import ExpertsExplanation, SwiGLU, explain_experts, grouped_gemm, moe
from mxgemm.gemm import gemm, gemm_mx
from mxgemm.mx.tensor import MXTensor, dequantize
from mxgemm.nn import MXConfig, quantize_
from mxgemm.quantize import quantize
from mxgemm.routing.explain import Explanation, explain
from mxgemm.scaled import (
    ABBlock,
    ABlock,
    BBlock,
    QuantTensor,
    RowCol,
    TensorWise,
    quant_gemm,
    quant_gemm_grouped,
    quantize_for,
)
from mxgemm.warmup import warmup
from mxgemm.workspace import clear as clear_workspaces

del _ops, _saved, _sys

__all__ = [
    "ABBlock",
    "ABlock",
    "BBlock",
    "ExpertsExplanation",
    "Explanation",
    "MXConfig",
    "MXTensor",
    "QuantTensor",
    "Refusal",
    "RouteUnavailable",
    "RowCol",
    "SwiGLU",
    "TensorWise",
    "__version__",
    "checkpoints",
    "clear_workspaces",
    "dequantize",
    "explain",
    "explain_experts",
    "gemm",
    "gemm_mx",
    "grouped_gemm",
    "moe",
    "nn",
    "quant_gemm",
    "quant_gemm_grouped",
    "quantize",
    "quantize_",
    "quantize_for",
    "warmup",
]
