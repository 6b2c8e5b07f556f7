"""Decode an MXFP4 weight on the device, a bounded slice of rows at a time: to e4m3 with a base a row, or to bf16."""

from __future__ import annotations

from typing import Final

import torch

from mxgemm.errors import Refusal
from mxgemm.problem import Problem
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.support import grid_refusal, interpreting, wide_offsets

SLICE_BYTES: Final = 1 << 28
"""Scratch for the decoded rows of a weight that was not decoded beforehand."""
_BLOCK_N: Final = 16
_BLOCK_K: Final = 256
_SLICE_ROWS: Final = 256  # slices start where scale tiles and weight tiles do


def decode_refusal(problem: Problem) -> Refusal | None:
    """Say why a weight is too large to be decoded by these launches, or None."""
    return grid_refusal(problem, _grid(problem.n, problem.k), 4, ("n", "k"))


def _grid(rows: int, k: int) -> tuple[int, int, int]:
    return -(-rows // _BLOCK_N), -(-k // _BLOCK_K), 1


def weight_slices(problem: Problem, bytes_an_element: int) -> list[tuple[int, int]]:
    """Cut the rows of B into slices that decode into :data:`SLICE_BYTES`, as equal as their alignment allows."""
    n, row_bytes = problem.n, problem.k * bytes_an_element
    most = max(_SLICE_ROWS, SLICE_BYTES // max(row_bytes, 1) // _SLICE_ROWS * _SLICE_ROWS)
    slices = -(-n // most)
    rows = -(-n // slices // _SLICE_ROWS) * _SLICE_ROWS
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


def decode_call(problem: Problem, rows: int, *, to_fp8: bool) -> KernelCall:
    """Describe the launch that decodes ``rows`` rows; its tensors are weight, scales, base (exponent bytes), result."""
    from mxgemm.triton.kernels.fold import decode_fold_kernel

    p, s = problem, problem.strides
    assert s is not None
    constants = {
        "PRESHUFFLED": p.weight_layout == "preshuffled",
        "SCALE_ORDER": p.scale_layout,
        "TO_FP8": to_fp8,
        "BLOCK_N": _BLOCK_N,
        "BLOCK_K": _BLOCK_K,
        "EVEN_N": rows % _BLOCK_N == 0,
        "EVEN_K": p.k % _BLOCK_K == 0,
        "WIDE": wide_offsets(p),
        "INTERPRETED": interpreting(),
    }
    return KernelCall(
        decode_fold_kernel,
        (torch.uint8, torch.uint8, torch.uint8, torch.uint8 if to_fp8 else torch.bfloat16),
        (rows, p.k, *s.b, *s.b_scales),
        constants,
        {"num_warps": 4},
        _grid(rows, p.k),
    )
