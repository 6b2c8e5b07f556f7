"""Several problems of ``mxgemm.quant_gemm`` in one launch: rows of A in groups, or problems of their own sizes.

A program finds out by itself which problem its tile is of, so sizes may change on the device from call to call.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.epilogue import store_tile
from mxgemm.triton.kernels.scaled_sums import scaled_sums

FIELDS = tl.constexpr(20)
"""64-bit words that a problem has in the table of ``scaled_table_kernel``."""


@triton.jit(do_not_specialize=["M", "GROUPS"])
def scaled_offsets_kernel(
    a, b, a_scales, b_scales, offsets, out, M, N, K, GROUPS, stride_am, stride_ak, stride_bg, stride_bn, stride_bk,
    stride_asm, stride_ask, stride_bsg, stride_bsn, stride_bsk, stride_om, stride_on,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, DOT: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    A_SCALE_TYPE: tl.constexpr, B_SCALE_TYPE: tl.constexpr, A_GROUP_K: tl.constexpr, B_GROUP_N: tl.constexpr,
    B_GROUP_K: tl.constexpr, SWAPPED: tl.constexpr, SHORT_K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS_BLOCK: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[rows of g] = round(decode(a)[rows of g] @ decode(b)[g].T)`` for every group; rows behind the last are 0.

    Group g has the rows from ``offsets[g - 1]`` (0) to ``offsets[g]``; what is out of order or beyond M is cut off.
    Grid: as many programs as any offsets could need, of which those without a tile do nothing. ``GROUPS_BLOCK``: a
    power of two above ``GROUPS``. The rest as in ``scaled_gemm_kernel``.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    slot = tl.program_id(0) // tiles_n
    pn = tl.program_id(0) % tiles_n
    g = tl.arange(0, GROUPS_BLOCK)
    starts = tl.load(offsets + g - 1, mask=(g > 0) & (g <= GROUPS), other=0)
    ends = tl.load(offsets + g, mask=g < GROUPS, other=0)
    starts = tl.minimum(tl.maximum(starts, 0), M)
    # One more group: the rows that belong to none.
    ends = tl.minimum(tl.maximum(tl.where(g == GROUPS, M, ends), starts), M)
    counts = tl.where(g <= GROUPS, tl.cdiv(ends - starts, BLOCK_M), 0)
    until = tl.cumsum(counts, 0)
    group = tl.sum((until <= slot).to(tl.int32), 0)
    if group <= GROUPS:
        mine = (g == group).to(tl.int32)
        start = tl.sum(starts * mine, 0)
        rows = tl.sum(ends * mine, 0) - start
        pm = slot - tl.sum((until - counts) * mine, 0)
        matrix = tl.minimum(group, GROUPS - 1).to(tl.int64)
        first_row = start.to(tl.int64)
        if A_SCALE != "tensor":
            a_scales += first_row * stride_asm
        last = tl.where(group < GROUPS, K, 0)
        acc = scaled_sums(
            a + first_row * stride_am, b + matrix * stride_bg, a_scales, b_scales + matrix * stride_bsg, pm, pn, 0,
            last, rows, N, K, stride_am, stride_ak, stride_bn, stride_bk, stride_asm, stride_ask, stride_bsn,
            stride_bsk,
            A_TYPE, B_TYPE, DOT, A_SCALE, B_SCALE, A_SCALE_TYPE, B_SCALE_TYPE, A_GROUP_K, B_GROUP_N, B_GROUP_K,
            SWAPPED, SHORT_K, BLOCK_M, BLOCK_N, BLOCK_K, False, EVEN_N, EVEN_K, WIDE, INTERPRETED,
        )  # fmt: skip
        acc = tl.where(group < GROUPS, acc, 0.0)  # not NaN, whatever their scales are
        target = out + first_row * stride_om
        store_tile(
            acc, target, target, rows, N, pm, pn, stride_om, stride_on, 0, False, BLOCK_M, BLOCK_N, False, EVEN_N,
            WIDE, INTERPRETED,
        )  # fmt: skip


@triton.jit(do_not_specialize=["PROBLEMS"])
def scaled_table_kernel(
    table, first_a, first_b, first_out, PROBLEMS,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, DOT: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    A_SCALE_TYPE: tl.constexpr, B_SCALE_TYPE: tl.constexpr, A_GROUP_K: tl.constexpr, B_GROUP_N: tl.constexpr,
    B_GROUP_K: tl.constexpr, SWAPPED: tl.constexpr, SHORT_K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PROBLEMS_BLOCK: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, ALIGNED: tl.constexpr, FROM_FIRST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Problems of their own sizes, each described by a row of ``table``: see ``mxgemm.scaled.table``.

    Grid: the tiles of all problems, those of a problem one after the other. ``EVEN_N``, ``EVEN_K``: of every problem.
    ``ALIGNED``: every operand starts at a multiple of 16 bytes, and its rows at multiples of 16 elements, which are
    contiguous. ``first_*``: those of the first problem, whose dtypes are all others'.
    """
    pid = tl.program_id(0)
    p = tl.arange(0, PROBLEMS_BLOCK)
    starts = tl.load(table + p * FIELDS, mask=p < PROBLEMS, other=1 << 40)
    mine = tl.sum((starts <= pid).to(tl.int32), 0) - 1
    row = table + mine * FIELDS
    tile = pid - tl.load(row).to(tl.int32)
    M = tl.load(row + 1).to(tl.int32)
    N = tl.load(row + 2).to(tl.int32)
    K = tl.load(row + 3).to(tl.int32)
    a, stride_am, stride_ak = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    b, stride_bn, stride_bk = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    a_scales, stride_asm, stride_ask = tl.load(row + 10), tl.load(row + 11), tl.load(row + 12)
    b_scales, stride_bsn, stride_bsk = tl.load(row + 13), tl.load(row + 14), tl.load(row + 15)
    out, stride_om, stride_on = tl.load(row + 16), tl.load(row + 17), tl.load(row + 18)
    if ALIGNED:  # said of what was loaded: of a function's argument it would be lost
        if FROM_FIRST:
            a = tl.multiple_of(a, 128 // first_a.dtype.element_ty.primitive_bitwidth)
            b = tl.multiple_of(b, 128 // first_b.dtype.element_ty.primitive_bitwidth)
            out = tl.multiple_of(out, 128 // first_out.dtype.element_ty.primitive_bitwidth)
        stride_am, stride_bn = tl.multiple_of(stride_am, 16), tl.multiple_of(stride_bn, 16)
        stride_om = tl.multiple_of(stride_om, 16)
        stride_ak, stride_bk, stride_on = 1, 1, 1
    a = pointer(a, first_a, ALIGNED, FROM_FIRST)
    b = pointer(b, first_b, ALIGNED, FROM_FIRST)
    out = pointer(out, first_out, ALIGNED, FROM_FIRST)
    a_scales = a_scales.to(tl.pointer_type(tl.float32 if A_SCALE_TYPE == "fp32" else tl.uint8))
    b_scales = b_scales.to(tl.pointer_type(tl.float32 if B_SCALE_TYPE == "fp32" else tl.uint8))
    if EVEN_K:
        K = tl.multiple_of(K, BLOCK_K)
    tiles_m = tl.cdiv(M, BLOCK_M)
    pm = tile % tiles_m
    pn = tile // tiles_m
    acc = scaled_sums(
        a, b, a_scales, b_scales, pm, pn, 0, K, M, N, K, stride_am, stride_ak, stride_bn, stride_bk, stride_asm,
        stride_ask, stride_bsn, stride_bsk, A_TYPE, B_TYPE, DOT, A_SCALE, B_SCALE, A_SCALE_TYPE, B_SCALE_TYPE,
        A_GROUP_K, B_GROUP_N, B_GROUP_K, SWAPPED, SHORT_K, BLOCK_M, BLOCK_N, BLOCK_K, False, EVEN_N, EVEN_K, True,
        INTERPRETED,
    )  # fmt: skip
    store_tile(
        acc, out, out, M, N, pm, pn, stride_om, stride_on, 0, False, BLOCK_M, BLOCK_N, False, EVEN_N, True, INTERPRETED
    )


@triton.jit
def pointer(place, first, ALIGNED: tl.constexpr, FROM_FIRST: tl.constexpr):
    """The pointer that a word of the table means: an address, or how many elements it lies behind ``first``.

    Triton 3.6 loses the alignment of a pointer made of an address, and with it wide and asynchronous loads. AMD's
    backend takes for granted that what is counted from an argument lies within 2 GiB of it, which other tensors need
    not.
    """
    if FROM_FIRST:
        return first + place
    else:
        address = place.to(first.dtype)
        return tl.multiple_of(address, 16) if ALIGNED else address
