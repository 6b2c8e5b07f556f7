"""One GEMM as routes, tables and rules see it: sizes, formats, layouts, machine. No tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.mx.formats import BLOCK, FORMATS, ElementFormat


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides in elements (bytes for MX data) of the two-dimensional views that a kernel gets.

    ``a`` is (row, column) of A, or of its bytes where A comes quantised; ``a_scales`` the same of its scales.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    b_scales: tuple[int, int]
    out: tuple[int, int]
    a_scales: tuple[int, int] = (0, 0)
    bias: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """``C[m, n] = A[m, k] @ B[n, k].T``, described.

    Attributes:
        m: rows of A, all leading dimensions multiplied.
        n: rows of B.
        k: elements along the contraction.
        machine: where it runs.
        a_format: what A is rounded to ("e2m1", "e4m3", "bf16"), or the format it comes in.
        a_quantized: A comes as MX bytes (``gemm_mx``).
        a_dtype: dtype of A; uint8 where it comes quantised.
        b_format: element format of B.
        scale_rounding: rule for A's block scales.
        weight_layout: of B's bytes.
        scale_layout: of B's scales.
        a_scale_layout: of A's scales where A comes quantised.
        out_dtype: dtype of C.
        has_bias: a bias of n values is added in fp32 before the one rounding.
        strides: of every operand.
        aligned: every data pointer is a multiple of 16 bytes.
        derived: what ``prepare()`` made of the weight besides a layout ("fp8_fold", ...), "" for nothing.
        bias_dtype: dtype of the bias, if there is one.
    """

    m: int
    n: int
    k: int
    machine: Machine
    a_format: str = "e2m1"
    a_quantized: bool = False
    a_dtype: torch.dtype = torch.bfloat16
    b_format: str = "e2m1"
    scale_rounding: str = "even"
    weight_layout: str = "row_major"
    scale_layout: str = "row_major"
    a_scale_layout: str = "row_major"
    out_dtype: torch.dtype = torch.bfloat16
    has_bias: bool = False
    strides: Strides | None = None
    aligned: bool = True
    derived: str = ""
    bias_dtype: torch.dtype = torch.float32

    @property
    def arch(self) -> str:
        """Architecture of the machine."""
        return self.machine.arch

    @property
    def b(self) -> ElementFormat:
        """Element format of B."""
        return FORMATS[self.b_format]

    @property
    def a(self) -> ElementFormat | None:
        """Element format of A, None for bf16."""
        return FORMATS.get(self.a_format)

    @property
    def traffic_bytes(self) -> int:
        """Bytes that must cross memory once: A as given, B, its scales, C."""
        a_bytes = self.m * self.k * self.a_dtype.itemsize
        if self.a_quantized and self.a is not None:
            a_bytes = self.m * (self.k // self.a.pack + self.k // BLOCK)
        b_bytes = self.n * (self.k // self.b.pack + self.k // BLOCK)
        return a_bytes + b_bytes + self.m * self.n * self.out_dtype.itemsize

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"({self.m}, {self.n}, {self.k}) {self.a_format} x {self.b_format} on {self.arch}"


def matrix_strides(tensor: Tensor) -> tuple[int, int]:
    """Return (row, column) strides of a matrix, in elements."""
    row, column = tensor.stride()
    return row, column


def contiguous_strides(n: int, k: int, b: ElementFormat, scale_columns: int) -> Strides:
    """Return the strides of freshly allocated operands."""
    return Strides(a=(k, 1), b=(k // b.pack, 1), b_scales=(scale_columns, 1), out=(n, 1))
