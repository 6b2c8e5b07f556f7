"""Mixtures of experts: grouped products and a whole layer, on any device (docs/experts.md)."""

from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.explain import ExpertsExplanation, explain_experts
from mxgemm.experts.grouped import grouped_gemm
from mxgemm.experts.moe import moe

__all__ = ["ExpertsExplanation", "SwiGLU", "explain_experts", "grouped_gemm", "moe"]
