"""GEMM of quantised operands by scheme: where the scales are, on any device (docs/quant-gemm.md)."""

from mxgemm.scaled.gemm import quant_gemm
from mxgemm.scaled.grouped import quant_gemm_grouped
from mxgemm.scaled.quantize import quantize_for
from mxgemm.scaled.schemes import ABBlock, ABlock, BBlock, RowCol, TensorWise
from mxgemm.scaled.tensor import QuantTensor

__all__ = [
    "ABBlock",
    "ABlock",
    "BBlock",
    "QuantTensor",
    "RowCol",
    "TensorWise",
    "quant_gemm",
    "quant_gemm_grouped",
    "quantize_for",
]
