"""Checkpoints of MX weights: Quark, compressed-tensors, gpt-oss, torchao and GGUF, read lazily and written whole.

    checkpoint = mxgemm.checkpoints.open("model")
    w = checkpoint["model.layers.0.mlp.down_proj.weight"]  # an MXTensor
    mxgemm.gemm(a, w, a_format=checkpoint.a_format, scale_rounding=checkpoint.scale_rounding)

``safetensors`` (extra ``checkpoints``) and ``gguf`` (extra ``gguf``) are imported when a file asks for them.
"""

from mxgemm.checkpoints.base import Entry
from mxgemm.checkpoints.convert import convert
from mxgemm.checkpoints.experts import experts_state, load_experts
from mxgemm.checkpoints.gpt_oss import from_dense, join_gate_up, split_gate_up, to_dense
from mxgemm.checkpoints.model import load_into
from mxgemm.checkpoints.reader import FORMATS, Checkpoint
from mxgemm.checkpoints.reader import open_checkpoint as open
from mxgemm.checkpoints.scheme import Scheme

__all__ = [
    "FORMATS",
    "Checkpoint",
    "Entry",
    "Scheme",
    "convert",
    "experts_state",
    "from_dense",
    "join_gate_up",
    "load_experts",
    "load_into",
    "open",
    "split_gate_up",
    "to_dense",
]
