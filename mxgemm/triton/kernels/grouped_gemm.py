"""Grouped products for mixtures of experts: tiles of rows from a list on the device, each by its expert's MX weight.

A tile list is int32 ``[1 + most tiles, 3]``: first the number of tiles, then for each its expert (-1: rows of none) and
its rows, from the first to behind the last one. ``make_tile_list`` writes it.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.interpreted import decode_for_dot, dot_mx, widen
from mxgemm.triton.kernels.quantize_block import quantize_e2m1, quantize_fp8


@triton.jit(do_not_specialize=["A_ROWS"])
def grouped_gemm_kernel(
    a, a_scales, w, w_scales, bias, tiles, index, out, out_scales, A_ROWS, N, K,
    stride_am, stride_ak, stride_tm, stride_tk, stride_we, stride_wn, stride_wk, stride_se, stride_sn, stride_sk,
    stride_be, stride_bn, stride_om, stride_on,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, READS_INDEX: tl.constexpr, DIVISOR: tl.constexpr,
    WRITES_INDEX: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr, OUT_FORMAT: tl.constexpr, ADDEND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PROGRAMS: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[rows of e] = activation(decode(a)[rows of e] @ decode(w[e]).T + bias[e])``, fp32 sums over K in one order.

    Grid: ``PROGRAMS``, each of which takes every ``PROGRAMS``-th tile of the list's rows times N's columns, so that a
    launch fits any list. The tiles of a row of the list follow one another: they share rows of A.

    * ``READS_INDEX``: row r reads row ``index[r] // DIVISOR`` of A, and is NaN where A has none. ``WRITES_INDEX``: it
      is written to row ``index[r]``.
    * ``GATED``: columns are taken in pairs of gate and up, ``INTERLEAVED`` or from the two halves of N, and the result
      has half as many; ``LIMIT`` 0 is none.
    * ``OUT_FORMAT``: "" for floats, else the result is quantised in blocks of 32 columns; BLOCK_N holds whole ones.
    """
    count = tl.load(tiles)
    across = tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), count * across, PROGRAMS):
        entry = tiles + (tile // across + 1) * 3
        grouped_tile(
            tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tile % across,
            a, a_scales, w, w_scales, bias, index, out, out_scales, A_ROWS, N, K,
            stride_am, stride_ak, stride_tm, stride_tk, stride_we, stride_wn, stride_wk, stride_se, stride_sn,
            stride_sk, stride_be, stride_bn, stride_om, stride_on, A_FORMAT, B_FORMAT, READS_INDEX, DIVISOR,
            WRITES_INDEX, HAS_BIAS, GATED, INTERLEAVED, ALPHA, LIMIT, OFFSET, OUT_FORMAT, ADDEND, BLOCK_M, BLOCK_N,
            BLOCK_K, EVEN_K, WIDE, INTERPRETED,
        )  # fmt: skip


@triton.jit
def grouped_tile(
    expert, first, stop, pn, a, a_scales, w, w_scales, bias, index, out, out_scales, A_ROWS, N, K,
    stride_am, stride_ak, stride_tm, stride_tk, stride_we, stride_wn, stride_wk, stride_se, stride_sn, stride_sk,
    stride_be, stride_bn, stride_om, stride_on,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, READS_INDEX: tl.constexpr, DIVISOR: tl.constexpr,
    WRITES_INDEX: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr, OUT_FORMAT: tl.constexpr, ADDEND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute and store the columns of tile ``pn`` for rows ``first``..``stop`` of an expert, or zeros for -1."""
    lane = tl.arange(0, BLOCK_M)
    inside = lane < stop - first
    row = tl.minimum(first + lane, stop - 1)
    source = row
    target = row
    absent = row < 0
    if READS_INDEX or WRITES_INDEX:
        place = tl.load(index + row)
        if READS_INDEX:
            absent = (place < 0) | (place // DIVISOR >= A_ROWS)
            source = tl.where(absent, 0, place // DIVISOR)
        if WRITES_INDEX:
            target = place
    column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    if GATED and not INTERLEAVED:
        weight_row = column // 2 + column % 2 * (N // 2)
    else:
        weight_row = column
    weight_row = tl.where(column < N, weight_row, 0)
    wide_expert = tl.maximum(expert, 0).to(tl.int64)
    a_rows = a + wide(source, WIDE) * stride_am
    t_rows = a_scales + wide(source, WIDE) * stride_tm
    w_rows = w + wide_expert * stride_we + wide(weight_row, WIDE) * stride_wn
    s_rows = w_scales + wide_expert * stride_se + wide(weight_row, WIDE) * stride_sn
    last = tl.where(expert < 0, 0, K)
    whole = last if EVEN_K else last // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, whole, BLOCK_K):
        acc = grouped_step(
            acc, a_rows, t_rows, w_rows, s_rows, k, K, stride_ak, stride_tk, stride_wk, stride_sk, A_FORMAT, B_FORMAT,
            BLOCK_M, BLOCK_N, BLOCK_K, False, WIDE, INTERPRETED,
        )  # fmt: skip
    if not EVEN_K:
        if whole < last:  # the one step that needs masks along K
            acc = grouped_step(
                acc, a_rows, t_rows, w_rows, s_rows, whole, K, stride_ak, stride_tk, stride_wk, stride_sk, A_FORMAT,
                B_FORMAT, BLOCK_M, BLOCK_N, BLOCK_K, True, WIDE, INTERPRETED,
            )  # fmt: skip
    if HAS_BIAS:
        added = bias + wide_expert * stride_be + wide(weight_row, WIDE) * stride_bn
        acc += widen(tl.load(added), INTERPRETED)[None, :]
    acc = tl.where(absent[:, None], float("nan"), acc)
    acc = tl.where(expert < 0, 0.0, acc)  # not NaN, whatever the bias is
    if GATED:
        COLUMNS: tl.constexpr = BLOCK_N // 2
        gate, up = tl.split(acc.reshape(BLOCK_M, COLUMNS, 2))
        value = swiglu(gate, up, ALPHA, LIMIT, OFFSET)
        limit = N // 2
    else:
        COLUMNS: tl.constexpr = BLOCK_N
        value = acc
        limit = N
    out_rows = wide(target, WIDE)[:, None] * stride_om
    if OUT_FORMAT == "":
        at = pn * COLUMNS + tl.arange(0, COLUMNS)
        value = round_to(value, out.dtype.element_ty, INTERPRETED)
        pointers = out + out_rows + wide(at, WIDE)[None, :] * stride_on
        tl.store(pointers, value, mask=inside[:, None] & (at < limit)[None, :])
    else:
        if OUT_FORMAT == "e2m1":
            data, scale = quantize_e2m1(value, BLOCK_M, COLUMNS, ADDEND, INTERPRETED)
        else:
            data, scale = quantize_fp8(value, BLOCK_M, COLUMNS, ADDEND, 8, 3, INTERPRETED)
        PACK: tl.constexpr = 2 if OUT_FORMAT == "e2m1" else 1
        at = pn * (COLUMNS // PACK) + tl.arange(0, COLUMNS // PACK)
        pointers = out + out_rows + wide(at, WIDE)[None, :] * stride_on
        tl.store(pointers, data, mask=inside[:, None] & (at < limit // PACK)[None, :])
        block = pn * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
        pointers = out_scales + wide(target, WIDE)[:, None] * (limit // 32) + block[None, :]
        tl.store(pointers, scale, mask=inside[:, None] & (block < limit // 32)[None, :])


@triton.jit
def wide(offset, WIDE: tl.constexpr):
    """A row or column as a factor of a stride: in 64 bits where a product with one may pass 32."""
    return offset.to(tl.int64) if WIDE else offset


@triton.jit
def grouped_step(
    acc, a_rows, t_rows, w_rows, s_rows, k, K, stride_ak, stride_tk, stride_wk, stride_sk, A_FORMAT: tl.constexpr,
    B_FORMAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr,
    WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add the block of K that starts at ``k``, of rows that pointers begin."""
    A_PACK: tl.constexpr = 2 if A_FORMAT == "e2m1" else 1
    B_PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    x = along_k(a_rows, k, K, stride_ak, A_PACK, BLOCK_K, TAIL, WIDE)
    q = along_k(w_rows, k, K, stride_wk, B_PACK, BLOCK_K, TAIL, WIDE)
    s = along_k(s_rows, k, K, stride_sk, 32, BLOCK_K, TAIL, WIDE)
    if A_FORMAT == "bf16":
        if x.dtype != tl.bfloat16:
            x = round_to(x.to(tl.float32), tl.bfloat16, INTERPRETED)
        if INTERPRETED:
            return tl.dot(widen(x, True), decode_for_dot(q, s, B_FORMAT, BLOCK_N, BLOCK_K).T, acc)
        else:
            return tl.dot_scaled(x, None, "bf16", q.T, s, B_FORMAT, acc)
    else:
        t = along_k(t_rows, k, K, stride_tk, 32, BLOCK_K, TAIL, WIDE)
        return dot_mx(x, t, q, s, acc, A_FORMAT, B_FORMAT, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRETED)


@triton.jit
def along_k(
    rows, k, K, stride, PACK: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """What lies at ``rows`` from element ``k`` on, ``PACK`` elements a place; 0 past K if ``TAIL``."""
    column = k // PACK + tl.arange(0, BLOCK_K // PACK)
    pointers = rows[:, None] + wide(column, WIDE)[None, :] * stride
    if TAIL:
        return tl.load(pointers, mask=(column < K // PACK)[None, :], other=0)
    else:
        return tl.load(pointers)


@triton.jit
def swiglu(gate, up, ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr):
    """``gate * sigmoid(ALPHA * gate) * (up + OFFSET)``, both clamped to ``LIMIT`` unless that is 0; a NaN stays one."""
    if LIMIT > 0:
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    return gate * (1.0 / (1.0 + tl.exp(-(gate * ALPHA)))) * (up + OFFSET)
