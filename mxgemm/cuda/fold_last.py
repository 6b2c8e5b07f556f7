"""The last launch of ``fp8_fold`` where it applies the bases of rows, ``fold_last.cu``: macros, grid, arguments."""

from __future__ import annotations

from typing import Final

import torch

from mxgemm.cuda.lazy import Lazy
from mxgemm.cuda.operands import DTYPES, a_vector, macros_of_a, strides_of
from mxgemm.hip.kernarg import Layout
from mxgemm.problem import Problem

SOURCE: Final = "fold_last.cu"
KERNEL: Final = "fold_last"
POINTERS: Final = Layout("PPPPPPPP")
"""Which rows do not fold, product, bases of A, A, the weight, its bases, bias, out."""
CONSTANTS: Final = Layout("qqqqqiiiiii")
"""Strides of A, bias and out, M, N, K, the product's stride, dtypes of bias and out."""
THREADS: Final = 256
TILE_N: Final = 256
_WARPS: Final = 8
_COLUMNS: Final = 32
"""Of a warp that recomputes rows."""
_FEW_M: Final = 256
"""Rows of A up to which a warp finishes two rows, not four."""


def fold_last(problem: Problem, product_dtype: torch.dtype, product_row: int) -> Lazy:
    """Return the launch.

    Args:
        problem: the whole one.
        product_dtype: of the product: bf16 or fp32.
        product_row: elements from a row of it to the next, a multiple of 8.
    """
    defines, workgroups = macros(problem, product_dtype), grid(problem)
    return Lazy((SOURCE, KERNEL), defines, (workgroups, (THREADS, 1, 1)), POINTERS, constants(problem, product_row))


def macros(p: Problem, product_dtype: torch.dtype) -> dict[str, int | str]:
    """Return the macros that make the kernel one for this problem."""
    row, column = strides_of(p).out
    step = 16 // p.out_dtype.itemsize
    vector = p.aligned and column == 1 and (p.m == 1 or row % step == 0)
    packed = vector and p.out_dtype == product_dtype == torch.bfloat16 and p.n % 8 == 0 and not p.has_bias
    return {
        **macros_of_a(p),
        "A_VECTOR": int(a_vector(p)),
        "FP32_PRODUCT": int(product_dtype == torch.float32),
        "ROWS": _rows(p),
        "RECOMPUTE": recomputing(p),
        "OUT_VECTOR": int(vector),
        "PACKED": int(packed),
    }


def recomputing(p: Problem) -> int:
    """Return the workgroups that recompute rows: one of each multiprocessor, as far as there are columns for them."""
    return max(1, min(p.machine.cu_count, -(-p.n // (_COLUMNS * _WARPS))))


def grid(p: Problem) -> tuple[int, int, int]:
    """Return the workgroups: those that finish tiles, then those that recompute rows."""
    return -(-p.m // (_WARPS * _rows(p))) * -(-p.n // TILE_N) + recomputing(p), 1, 1


def constants(p: Problem, product_row: int) -> bytes:
    """Return the arguments but the pointers."""
    s = strides_of(p)
    bias = DTYPES[p.bias_dtype] if p.has_bias else 0
    return CONSTANTS.pack(*s.a, s.bias, *s.out, p.m, p.n, p.k, product_row, bias, DTYPES[p.out_dtype])


def _rows(p: Problem) -> int:
    return 2 if p.m <= _FEW_M else 4
