"""Fold activations and weights from MXFP4 to e4m3 with a power of two a row; ``mxgemm.mx.fold`` says what folds."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.convert import from_e4m3, power_of_two, round_e2m1, to_e4m3
from mxgemm.triton.kernels.convert_gfx950 import bf16_pair_scales
from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.interpreted import widen
from mxgemm.triton.kernels.load_operand import clamped_rows, load_packed, load_scales
from mxgemm.triton.kernels.quantize_block import (
    BLOCK,
    FP32_INF_BITS,
    block_scales,
    divide,
    quantize_e2m1,
)

NO_BLOCK = tl.constexpr(512)  # above every exponent byte


# Two bf16 in a word -> two e4m3 in half a word, relative to a row's base, on sm_89 and newer. In order: to the block's
# own units in fp32 (exact), to fp16 (exact where it matters: what fp16 drops is far below half a step), saturate at 6,
# add and subtract 1536 steps so that fp16's own rounding rounds to steps of 0.5, 1 or 2 (see round_e2m1), times the
# block's unit, convert. Half the instructions of the same in fp32.
FOLD_BF16_PAIR = tl.constexpr(
    """{
    .reg .b32 low, high, y, m, above2, above4, magic, most, least, two, four, half_steps, whole_steps;
    .reg .f32 a, b;
    mov.b32 most, 0x46004600;
    mov.b32 least, 0xC600C600;
    mov.b32 two, 0x40004000;
    mov.b32 four, 0x44004400;
    mov.b32 half_steps, 0x62006200;
    mov.b32 whole_steps, 0x66006600;
    shl.b32 low, $1, 16;
    and.b32 high, $1, 0xffff0000;
    mov.b32 a, low;
    mov.b32 b, high;
    mul.f32 a, a, $2;
    mul.f32 b, b, $2;
    cvt.rn.f16x2.f32 y, b, a;
    min.f16x2 y, y, most;
    max.f16x2 y, y, least;
    abs.f16x2 m, y;
    set.ge.f16x2.f16x2 above2, m, two;
    set.ge.f16x2.f16x2 above4, m, four;
    fma.rn.f16x2 magic, above2, half_steps, half_steps;
    fma.rn.f16x2 magic, above4, whole_steps, magic;
    add.rn.f16x2 y, y, magic;
    sub.rn.f16x2 y, y, magic;
    mul.rn.f16x2 y, y, $3;
    cvt.rn.satfinite.e4m3x2.f16x2 $0, y;
    }"""
)
BAD_BLOCK = tl.constexpr(1024)  # above every exponent byte: a NaN or an infinity is in the row


@triton.jit
def max_and_min(highest_a, lowest_a, highest_b, lowest_b):
    """Combine two ranges of exponents."""
    return tl.maximum(highest_a, highest_b), tl.minimum(lowest_a, lowest_b)


@triton.jit
def row_base(exponent, live, bad):
    """Exponent bytes ``[R, G, 1]`` -> base byte, base as fp32 bits (NaN: a bad row), unfolded, each ``[R, 1, 1]``."""
    highest, lowest = tl.reduce(
        (tl.where(bad, BAD_BLOCK, tl.where(live, exponent, -1)), tl.where(live, exponent, NO_BLOCK)),
        axis=1,
        combine_fn=max_and_min,
        keep_dims=True,
    )
    # At least 1, so that the base itself is a normal fp32.
    byte = tl.where(highest < 0, 127, tl.minimum(tl.maximum(highest - 6, 1), 250))
    bits = tl.where(highest == BAD_BLOCK, 0x7FC00000, byte << 23)
    unfolded = ((lowest < byte - 8) & (highest != BAD_BLOCK)).to(tl.int32)
    return byte, bits, unfolded


@triton.jit(do_not_specialize=["M"])
def quantize_fold_kernel(
    x, folded, base, unfolded, M, K, stride_xm, stride_xk,
    ADDEND: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, FNUZ: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Quantise rows of ``x[M, K]`` to MXFP4 and fold them: see ``quantize_fold_rows``. Grid: ``cdiv(M, BLOCK_M)``."""
    quantize_fold_rows(
        tl.program_id(0), x, folded, base, unfolded, M, K, stride_xm, stride_xk,
        ADDEND, PAIRS, BLOCK_M, BLOCK_K, EVEN, WIDE, FNUZ, INTERPRETED,
    )  # fmt: skip


@triton.jit
def quantize_fold_rows(
    tile, x, folded, base, unfolded, M, K, stride_xm, stride_xk,
    ADDEND: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, FNUZ: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``BLOCK_M`` rows of ``x`` from ``tile * BLOCK_M``: e4m3 bytes ``folded[M, K]``, fp32 ``base[M]``.

    ``unfolded[m]`` becomes 1 for a row that does not fold (its bytes are then meaningless), else 0. The base of a row
    with a NaN or an infinity is NaN: every column of it is. Whole rows are held in registers. ``PAIRS``: bf16 rows of
    words, in packed arithmetic. ``EVEN``: no masks are needed. ``WIDE``: 64-bit offsets. ``FNUZ``: gfx942's bytes,
    which are worth half, and twice the base.
    """
    GROUPS: tl.constexpr = BLOCK_K // BLOCK
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = row.to(tl.int64) if WIDE else row
    if PAIRS:
        column = tl.arange(0, BLOCK_K // 2)
        inside = (row < M)[:, None] & (column < K // 2)[None, :]
        pointers = x.to(tl.pointer_type(tl.int32), bitcast=True) + rows[:, None] * (stride_xm // 2) + column[None, :]
        words = tl.load(pointers) if EVEN else tl.load(pointers, mask=inside, other=0)
        blocks = words.reshape(BLOCK_M, GROUPS, BLOCK // 2)
        amax, exponent = bf16_pair_scales(blocks, ADDEND)
        bad = amax >= (FP32_INF_BITS >> 16)
    else:
        column = tl.arange(0, BLOCK_K)
        columns = column.to(tl.int64) if WIDE else column
        inside = (row < M)[:, None] & (column < K)[None, :]
        pointers = x + rows[:, None] * stride_xm + columns[None, :] * stride_xk
        value = tl.load(pointers) if EVEN else tl.load(pointers, mask=inside, other=0.0)
        blocks = widen(value, INTERPRETED).reshape(BLOCK_M, GROUPS, BLOCK)
        amax, exponent = block_scales(blocks, ADDEND, 2)
        bad = amax >= FP32_INF_BITS
    base_byte, base_bits, is_unfolded = row_base(exponent, (amax > 0) & (bad == 0), bad)
    # Relative to the base a block's unit is 2**shift, exact in e4m3 while -8 <= shift <= 6; clamped for other rows.
    shift = tl.minimum(tl.maximum(exponent - base_byte, -14), 6)
    if PAIRS:
        unit = (shift + 15) << 10
        unit = tl.broadcast_to(unit | (unit << 16), (BLOCK_M, GROUPS, BLOCK // 2))
        reciprocal = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        reciprocal = tl.broadcast_to(reciprocal, (BLOCK_M, GROUPS, BLOCK // 2))
        element = tl.inline_asm_elementwise(
            FOLD_BF16_PAIR, "=h,r,f,r", [blocks, reciprocal, unit], dtype=tl.int16, is_pure=True, pack=1
        )
        element = element.reshape(BLOCK_M, BLOCK_K // 2)
        target = (
            folded.to(tl.pointer_type(tl.int16), bitcast=True) + row.to(tl.int64)[:, None] * (K // 2) + column[None, :]
        )
    else:
        unit = ((shift + 127) << 23).to(tl.float32, bitcast=True)
        element = to_e4m3(round_e2m1(divide(blocks, base_byte), unit), INTERPRETED, FNUZ).reshape(BLOCK_M, BLOCK_K)
        target = folded + row.to(tl.int64)[:, None] * K + column[None, :]
    if EVEN:
        tl.store(target, element)
    else:
        tl.store(target, element, mask=inside)
    tl.store(unfolded + row, is_unfolded.reshape(BLOCK_M), mask=row < M)
    row_scale = base_bits.to(tl.float32, bitcast=True).reshape(BLOCK_M)
    tl.store(base + row, row_scale * 2.0 if FNUZ else row_scale, mask=row < M)


@triton.jit
def store_chosen(
    acc, chosen, bias, out, rows, column, N, stride_om, stride_on, stride_bias,
    HAS_BIAS: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[rows, column] = round(acc + bias)`` for the chosen rows; the others keep what the folded GEMM wrote."""
    if HAS_BIAS:
        columns = column.to(tl.int64) if WIDE else column
        acc += widen(tl.load(bias + columns * stride_bias, mask=column < N, other=0.0), INTERPRETED)[None, :]
    value = round_to(acc, out.dtype.element_ty, INTERPRETED)
    pointers = out + rows[:, None] * stride_om + column.to(tl.int64)[None, :] * stride_on
    tl.store(pointers, value, mask=chosen[:, None] & (column < N)[None, :])


@triton.jit(do_not_specialize=["M"])
def wide_rows_kernel(
    unfolded, a, b, b_scales, bias, out, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk, stride_om, stride_on, stride_bias,
    ADDEND: tl.constexpr, PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute the rows that did not fold (``unfolded[m] != 0``) from packed weights, and store those only.

    Grid: ``(cdiv(M, BLOCK_M), programs)``; the programs of a row tile share its columns, and leave at once when it has
    no such row.
    """
    recompute_rows(
        tl.program_id(0), tl.program_id(1), tl.num_programs(1), multiply_packed,
        (b, b_scales, stride_bn, stride_bk, stride_sn, stride_sk, PRESHUFFLED, SCALE_ORDER, EVEN_N),
        unfolded, a, b, bias, out, M, N, K, stride_am, stride_ak, stride_om, stride_on, stride_bias,
        ADDEND, False, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K, WIDE, INTERPRETED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def wide_rows_folded_kernel(
    unfolded, a, folded, base, bias, out, M, N, K, stride_am, stride_ak, stride_om, stride_on, stride_bias,
    ADDEND: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, WIDE: tl.constexpr, FNUZ: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The same from a folded weight: e4m3 ``folded[>= N, K]`` times fp32 ``base[>= N]``; bf16 holds both operands."""
    recompute_rows(
        tl.program_id(0), tl.program_id(1), tl.num_programs(1), multiply_folded, (folded, FNUZ),
        unfolded, a, base, bias, out, M, N, K, stride_am, stride_ak, stride_om, stride_on, stride_bias,
        ADDEND, True, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K, WIDE, INTERPRETED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def finish_folded_kernel(
    unfolded, product, a, folded, base, bias, out, M, N, K, stride_pm, stride_am, stride_ak, stride_om, stride_on,
    stride_bias, ADDEND: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS_BIAS: tl.constexpr, FINISH_M: tl.constexpr,
    FINISH_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
    FNUZ: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``finish_kernel`` for rows that fold and ``wide_rows_folded_kernel`` for the others, in one launch.

    ``ADDS_BIAS``: ``product[M, >= N]`` lacks the bias. Grid: ``cdiv(M, FINISH_M) * cdiv(N, FINISH_N)`` programs that
    finish tiles, then a multiple of ``cdiv(M, BLOCK_M)`` that recompute rows.
    """
    program, across = tl.program_id(0), tl.cdiv(N, FINISH_N)
    finishing = tl.cdiv(M, FINISH_M) * across
    if program < finishing:
        pm = program // across
        rows = pm * FINISH_M + tl.arange(0, FINISH_M)
        column = (program - pm * across) * FINISH_N + tl.arange(0, FINISH_N)
        chosen = (tl.load(unfolded + rows, mask=rows < M, other=1) == 0) & (rows < M)
        far = rows.to(tl.int64)
        inside = chosen[:, None] & (column < N)[None, :]
        value = tl.load(product + far[:, None] * stride_pm + column[None, :], mask=inside, other=0.0)
        store_chosen(
            widen(value, INTERPRETED), chosen, bias, out, far, column, N, stride_om, stride_on, stride_bias,
            ADDS_BIAS, WIDE, INTERPRETED,
        )  # fmt: skip
    else:
        tiles = tl.cdiv(M, BLOCK_M)
        recompute_rows(
            (program - finishing) % tiles, (program - finishing) // tiles, (tl.num_programs(0) - finishing) // tiles,
            multiply_folded, (folded, FNUZ),
            unfolded, a, base, bias, out, M, N, K, stride_am, stride_ak, stride_om, stride_on, stride_bias,
            ADDEND, True, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K, WIDE, INTERPRETED,
        )  # fmt: skip


@triton.jit
def recompute_rows(
    pm, first, programs, step: tl.constexpr, weight, unfolded, a, base, bias, out, M, N, K, stride_am, stride_ak,
    stride_om, stride_on, stride_bias, ADDEND: tl.constexpr, HAS_BASE: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute and store the chosen rows of row tile ``pm``, if it has any, in every ``programs``-th block of columns.

    ``step`` returns the sums ``acc[BLOCK_M, BLOCK_N]`` with the block of K added that starts at ``k``; ``weight`` are
    its own parameters, its last ones, and ``weight_rows`` the tile's rows of a row-major weight, none past the last.
    ``HAS_BASE``: columns of the sums are then multiplied by ``base[>= N]``.
    """
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    chosen = tl.load(unfolded + row, mask=row < M, other=0) != 0
    if tl.max(chosen.to(tl.int32), axis=0) != 0:
        rows = clamped_rows(pm, M, BLOCK_M, False, WIDE)
        inner = tl.arange(0, BLOCK_K)
        for pn in range(first, tl.cdiv(N, BLOCK_N), programs):
            weight_rows = clamped_rows(pn, N, BLOCK_N, False, True)
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for k in range(0, K, BLOCK_K):
                inside = (inner < K - k)[None, :]
                columns = (k + inner).to(tl.int64) if WIDE else k + inner
                x = tl.load(a + rows[:, None] * stride_am + columns[None, :] * stride_ak, mask=inside, other=0.0)
                acc = step(
                    acc, x, pn, weight_rows, k, N, K, ADDEND, BLOCK_M, BLOCK_N, BLOCK_K, WIDE, INTERPRETED, *weight
                )
            column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
            if HAS_BASE:
                acc *= tl.load(base + column, mask=column < N, other=0.0)[None, :]
            store_chosen(
                acc, chosen, bias, out, rows, column, N, stride_om, stride_on, stride_bias, HAS_BIAS, WIDE, INTERPRETED
            )


@triton.jit
def multiply_packed(
    acc, x, pn, weight_rows, k, N, K, ADDEND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
    b, b_scales, stride_bn, stride_bk, stride_sn, stride_sk,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, EVEN_N: tl.constexpr,
):  # fmt: skip
    """A step of ``recompute_rows``: quantised rows times packed weights."""
    w = load_packed(b, pn, k, N, K, stride_bn, stride_bk, PRESHUFFLED, 2, BLOCK_N, BLOCK_K, EVEN_N, True, WIDE, "")
    s = load_scales(b_scales, pn, k, N, K, stride_sn, stride_sk, SCALE_ORDER, BLOCK_N, BLOCK_K, EVEN_N, True, WIDE, "")
    q, q_scale = quantize_e2m1(x, BLOCK_M, BLOCK_K, ADDEND, INTERPRETED)
    return tl.dot_scaled(q, q_scale, "e2m1", w.T, s, "e2m1", acc)


@triton.jit
def multiply_folded(
    acc, x, pn, weight_rows, k, N, K, ADDEND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
    folded, FNUZ: tl.constexpr,
):  # fmt: skip
    """A step of ``recompute_rows``: rounded rows times folded weights, both in bf16."""
    inner = tl.arange(0, BLOCK_K)
    inside = (inner < K - k)[None, :]
    w = tl.load(folded + weight_rows[:, None] * K + (k + inner)[None, :], mask=inside, other=0)
    blocks = widen(x, INTERPRETED).reshape(BLOCK_M, BLOCK_K // BLOCK, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, 2)
    scale = tl.where(amax >= FP32_INF_BITS, 0x7FC00000, power_of_two(exponent).to(tl.int32, bitcast=True))
    left = round_e2m1(divide(blocks, exponent), 1.0) * scale.to(tl.float32, bitcast=True)
    left = left.reshape(BLOCK_M, BLOCK_K)
    right = from_e4m3(w, INTERPRETED, FNUZ)
    if not INTERPRETED:  # whose dot multiplies the bits of bf16 as integers
        left, right = left.to(tl.bfloat16), right.to(tl.bfloat16)
    return tl.dot(left, right.T, acc)
