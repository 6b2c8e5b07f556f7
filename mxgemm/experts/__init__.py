"""Mixtures of experts: grouped products and a whole layer, on any device (docs/experts.md)."""

from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.grouped import grouped_gemm
from mxgemm.experts.moe import moe

__all__ = ["SwiGLU", "grouped_gemm", "moe"]
