"""The launches of Triton's that route ``fp8_fold`` is made of, described: see ``mxgemm.triton.kernels.fold``."""

from __future__ import annotations

from typing import Final

import torch

from mxgemm.mx.fold import FOLD_ROWS
from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.mx.layouts import round_up
from mxgemm.problem import Problem
from mxgemm.routes.decode import decode_call
from mxgemm.routes.fold_forms import FP8_FOLD_FNUZ
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.support import interpreting, next_power_of_two, wide_offsets

_WIDE_PROGRAMS: Final = 132 * 16
_FINISH_M: Final = 4
_FINISH_N: Final = 512


def quantize_fold_call(problem: Problem) -> KernelCall:
    """Describe the launch of ``quantize_fold_kernel``: x, folded, base, unfolded."""
    from mxgemm.triton.kernels.fold import quantize_fold_kernel

    p, s = problem, problem.strides
    assert s is not None
    block_k = max(32, next_power_of_two(p.k))
    block_m = max(1, min(next_power_of_two(p.m), 2048 // block_k))
    pairs = p.arch == "sm_90" and p.a_dtype == torch.bfloat16 and s.a[1] == 1 and s.a[0] % 2 == 0 and p.aligned
    # Sixty-four bf16 a lane were quickest of 8 to 64 (docs/lab-notes.md); fp32 arithmetic needs more registers each.
    elements_a_lane = 64 if pairs else 16
    constants = {
        "ADDEND": scale_addend(E2M1, p.scale_rounding),
        "PAIRS": pairs,
        "BLOCK_M": block_m,
        "BLOCK_K": block_k,
        "EVEN": p.k == block_k and p.m % block_m == 0,
        "WIDE": wide_offsets(p),
        "FNUZ": p.derived == FP8_FOLD_FNUZ.kind,
        "INTERPRETED": interpreting(),
    }
    warps = min(32, max(2, block_m * block_k // (32 * elements_a_lane)))
    return KernelCall(
        quantize_fold_kernel,
        (p.a_dtype, torch.uint8, torch.float32, torch.int32),
        (p.m, p.k, *s.a),
        constants,
        {"num_warps": warps},
        (-(-p.m // block_m), 1, 1),
    )


def fold_both_call(problem: Problem, rows: int) -> KernelCall:
    """Describe the launch of that and of ``decode_call`` for rows of a compact weight: its tensors, then those."""
    from mxgemm.triton.kernels.fold_weight import fold_both_kernel

    left = quantize_fold_call(problem)
    right = decode_call(problem, rows, to_fp8=True, warps=left.options["num_warps"])
    a, b = dict(left.constants), dict(right.constants)
    constants = {
        **{name: a[name] for name in ("ADDEND", "PAIRS", "BLOCK_M")},
        **{"A_BLOCK_K": a["BLOCK_K"], "EVEN": a["EVEN"]},
        **{name: value for name, value in b.items() if name != "TO_FP8"},
    }
    return KernelCall(
        fold_both_kernel,
        (*left.dtypes, *right.dtypes),
        (*left.scalars, rows, *right.scalars[2:]),
        constants,
        left.options,
        (left.grid[0] + right.grid[0], 1, 1),
    )


def wide_rows_call(problem: Problem, *, packed: bool = False) -> KernelCall:
    """Describe the launch that recomputes wide rows: unfolded, a, weight, its bases, bias, out.

    Args:
        problem: the whole one.
        packed: the weight is not there as a whole in e4m3: by its own bytes and scales.
    """
    from mxgemm.triton.kernels.fold import wide_rows_folded_kernel, wide_rows_kernel

    p, s = problem, problem.strides
    assert s is not None
    addend, wide = scale_addend(E2M1, p.scale_rounding), {"WIDE": wide_offsets(p)}
    tail = {"INTERPRETED": interpreting()}
    if packed:
        block_m, block_n = 64, 64
        layouts = {"PRESHUFFLED": p.weight_layout == "preshuffled", "SCALE_ORDER": p.scale_layout}
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 128, "EVEN_N": p.n % block_n == 0}
        constants = {"ADDEND": addend, **layouts, "HAS_BIAS": p.has_bias, **blocks, **wide, **tail}
        scalars: tuple[int, ...] = (p.m, p.n, p.k, *s.a, *s.b, *s.b_scales, *s.out, s.bias)
    else:
        block_m, block_n = 64, 128
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 64}
        fnuz = {"FNUZ": p.derived == FP8_FOLD_FNUZ.kind}
        constants = {"ADDEND": addend, "HAS_BIAS": p.has_bias, **blocks, **wide, **fnuz, **tail}
        scalars = (p.m, p.n, p.k, *s.a, *s.out, s.bias)
    row_tiles = -(-p.m // block_m)
    # Mostly these programs look at their flags and leave: no more of them than run at once.
    programs = max(1, min(-(-p.n // block_n), _WIDE_PROGRAMS // row_tiles))
    return KernelCall(
        wide_rows_kernel if packed else wide_rows_folded_kernel,
        (
            *(torch.int32, p.a_dtype, torch.uint8, torch.uint8 if packed else torch.float32),
            *(p.bias_dtype if p.has_bias else p.out_dtype, p.out_dtype),
        ),
        scalars,
        constants,
        {"num_warps": 4},
        (row_tiles, programs, 1),
    )


def finish_call(problem: Problem, columns: int, dtype: torch.dtype, *, has_bias: bool) -> KernelCall:
    """Describe the launch that brings a product to columns of the result: product, bias, out.

    Args:
        problem: the whole one.
        columns: of the result that it writes; the product, contiguous, has whole sixteens of them.
        dtype: of the product.
        has_bias: the bias is added here.
    """
    from mxgemm.triton.kernels.finish import finish_kernel

    p, s = problem, problem.strides
    assert s is not None
    constants = {
        "HAS_BIAS": has_bias,
        "BLOCK_M": _FINISH_M,
        "BLOCK_N": _FINISH_N,
        "INTERPRETED": interpreting(),
    }
    return KernelCall(
        finish_kernel,
        (dtype, p.bias_dtype if p.has_bias else p.out_dtype, p.out_dtype),
        (p.m, columns, round_up(columns, FOLD_ROWS), *s.out, s.bias),
        constants,
        {"num_warps": 4},
        (-(-p.m // _FINISH_M) * -(-columns // _FINISH_N), 1, 1),
    )


def finish_folded_call(problem: Problem, dtype: torch.dtype, *, has_bias: bool) -> KernelCall:
    """Describe the launch of both for a whole weight in e4m3: unfolded, product, a, weight, its bases, bias, out.

    Args:
        problem: the whole one.
        dtype: of the product, contiguous with whole sixteens of columns.
        has_bias: the bias is added to the product here.
    """
    from mxgemm.triton.kernels.fold import finish_folded_kernel

    p, s = problem, problem.strides
    assert s is not None
    wide = wide_rows_call(p)
    unfolded, a, folded, base, bias, out = wide.dtypes
    sizes = {"FINISH_M": _FINISH_M, "FINISH_N": _FINISH_N}
    first = {"ADDEND": wide.constants["ADDEND"], "HAS_BIAS": p.has_bias, "ADDS_BIAS": has_bias, **sizes}
    finishing = -(-p.m // _FINISH_M) * -(-p.n // _FINISH_N)
    return KernelCall(
        finish_folded_kernel,
        (unfolded, dtype, a, folded, base, bias, out),
        (p.m, p.n, p.k, round_up(p.n, FOLD_ROWS), *s.a, *s.out, s.bias),
        {**first, **{name: value for name, value in wide.constants.items() if name not in first}},
        wide.options,
        (finishing + wide.grid[0] * wide.grid[1], 1, 1),
    )
