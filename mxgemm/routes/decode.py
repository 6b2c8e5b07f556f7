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
_ROWS_A_WARP: Final = 4
"""Of a tile that is decoded by words, one a lane."""
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


def decode_call(problem: Problem, rows: int, *, to_fp8: bool, warps: int = 4) -> KernelCall:
    """Describe the launch that decodes ``rows`` rows: weight, scales, base (exponent bytes), result, the base in fp32.

    To bf16 there is no base, and any tensor does.

    Args:
        problem: the whole one.
        rows: of the weight that it decodes.
        to_fp8: to e4m3 relative to the base, not to bf16.
        warps: of a program.
    """
    from mxgemm.triton.kernels.fold_weight import decode_fold_kernel

    p, s = problem, problem.strides
    assert s is not None
    words = _in_words(p)
    block_n, block_k = (max(_BLOCK_N, warps * _ROWS_A_WARP), 512 if to_fp8 else 256) if words else (_BLOCK_N, _BLOCK_K)
    constants = {
        "PRESHUFFLED": p.weight_layout == "preshuffled",
        "SCALE_ORDER": p.scale_layout,
        "TO_FP8": to_fp8,
        "WORDS": words,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "EVEN_N": rows % block_n == 0,
        "EVEN_K": p.k % block_k == 0,
        "WIDE": wide_offsets(p),
        "INTERPRETED": interpreting(),
    }
    return KernelCall(
        decode_fold_kernel,
        (*(torch.uint8,) * 3, *((torch.uint8, torch.float32) if to_fp8 else (torch.bfloat16, torch.uint8))),
        (rows, p.k, *s.b, *s.b_scales),
        constants,
        {"num_warps": warps},
        (-(-rows // block_n) * -(-p.k // block_k), 1, 1),
    )


def _in_words(problem: Problem) -> bool:
    """Say whether rows of the weight begin at whole words of 64 bits and all is contiguous along K."""
    p, s = problem, problem.strides
    assert s is not None
    plain = p.weight_layout == p.scale_layout == "row_major" and s.b[1] == s.b_scales[1] == 1
    return plain and p.aligned and s.b[0] % 8 == 0 and (p.arch.startswith("sm_") or interpreting())
