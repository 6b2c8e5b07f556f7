"""Decode e2m1 weights to e4m3 relative to a base a row, or to bf16; and both operands of a folded product at once."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.convert import power_of_two, to_e4m3
from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.expand import expand_e2m1, expand_to_bf16, magnitudes, magnitudes_bf16
from mxgemm.triton.kernels.fold import quantize_fold_rows
from mxgemm.triton.kernels.load_operand import load_packed, load_scales

E4M3_NAN = tl.constexpr(0x7F)


@triton.jit
def decode_fold_kernel(
    b, b_scales, base, folded, factors, N, K, stride_bn, stride_bk, stride_sn, stride_sk,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, TO_FP8: tl.constexpr, WORDS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Decode e2m1 weights to contiguous ``folded[N, K]``: e4m3 relative to ``base`` (exponent bytes), or bf16.

    Grid: ``cdiv(N, BLOCK_N) * cdiv(K, BLOCK_K)``, along K first. A NaN scale gives NaN. To e4m3, ``factors`` get the
    bases in fp32, and 1 for the rows up to whole sixteens. ``WORDS``: of rows of whole words and of
    contiguous scales, on NVIDIA.
    """
    decode_fold_tile(
        tl.program_id(0), b, b_scales, base, folded, factors, N, K, stride_bn, stride_bk, stride_sn, stride_sk,
        PRESHUFFLED, SCALE_ORDER, TO_FP8, WORDS, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, WIDE, INTERPRETED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def fold_both_kernel(
    x, folded, base, unfolded, b, b_scales, b_base, b_folded, b_factors, M, K, stride_xm, stride_xk,
    N, stride_bn, stride_bk, stride_sn, stride_sk,
    ADDEND: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, A_BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, WORDS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``quantize_fold_kernel`` and ``decode_fold_kernel`` in one launch, with the same bytes.

    Grid: ``cdiv(M, BLOCK_M) + cdiv(N, BLOCK_N) * cdiv(K, BLOCK_K)``, rows of ``x`` first, which take longest.
    """
    program, tiles = tl.program_id(0), tl.cdiv(M, BLOCK_M)
    if program < tiles:
        quantize_fold_rows(
            program, x, folded, base, unfolded, M, K, stride_xm, stride_xk,
            ADDEND, PAIRS, BLOCK_M, A_BLOCK_K, EVEN, WIDE, False, INTERPRETED,
        )  # fmt: skip
    else:
        decode_fold_tile(
            program - tiles, b, b_scales, b_base, b_folded, b_factors, N, K,
            stride_bn, stride_bk, stride_sn, stride_sk,
            PRESHUFFLED, SCALE_ORDER, True, WORDS, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, WIDE, INTERPRETED,
        )  # fmt: skip


@triton.jit
def decode_fold_tile(
    tile, b, b_scales, base, folded, factors, N, K, stride_bn, stride_bk, stride_sn, stride_sk,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, TO_FP8: tl.constexpr, WORDS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A tile of ``decode_fold_kernel``, which are counted along K first: memory then reads and writes long runs."""
    along = tl.cdiv(K, BLOCK_K)
    pn = tile // along
    pk = tile - pn * along
    if WORDS:
        expand_words(
            pn, pk, b, b_scales, base, folded, N, K, stride_bn, stride_sn,
            TO_FP8, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, INTERPRETED,
        )  # fmt: skip
    else:
        decode_bytes(
            pn, pk * BLOCK_K, b, b_scales, base, folded, N, K, stride_bn, stride_bk, stride_sn, stride_sk,
            PRESHUFFLED, SCALE_ORDER, TO_FP8, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, WIDE, INTERPRETED,
        )  # fmt: skip
    if TO_FP8:
        if pk == 0:
            row = pn * BLOCK_N + tl.arange(0, BLOCK_N)  # whole sixteens
            bits = tl.load(base + row, mask=row < N, other=127).to(tl.int32) << 23
            tl.store(factors + row, bits.to(tl.float32, bitcast=True), mask=row < (N + 15) // 16 * 16)


@triton.jit
def expand_words(
    pn, pk, b, b_scales, base, folded, N, K, stride_bn, stride_sn, TO_FP8: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Words of codes to twice 64 bits each: a lane writes all that it makes of what it reads, so nothing moves on."""
    # In one dimension, so that no version of the compiler has an order to choose.
    CODES: tl.constexpr = 16 if TO_FP8 else 8
    WORDS: tl.constexpr = BLOCK_K // CODES
    place = tl.arange(0, BLOCK_N * WORDS)
    made = tl.arange(0, 2 * BLOCK_N * WORDS)
    row, word = pn * BLOCK_N + place // WORDS, pk * WORDS + place % WORDS
    made_row, made_word = pn * BLOCK_N + made // (2 * WORDS), pk * (2 * WORDS) + made % (2 * WORDS)
    rows = row.to(tl.int64)
    kind: tl.constexpr = tl.int64 if TO_FP8 else tl.int32
    source = b.to(tl.pointer_type(kind), bitcast=True) + rows * (stride_bn // (CODES // 2)) + word
    # Said to be aligned no better, so that a lane loads one word and not several, and what it makes is one store's.
    source = tl.multiple_of(source, CODES // 2)
    scale = b_scales + rows * stride_sn + word // (32 // CODES)
    across = K // (CODES // 2)
    target = folded.to(tl.pointer_type(tl.int64), bitcast=True) + made_row.to(tl.int64) * across + made_word
    if EVEN_N and EVEN_K:
        words, exponent = tl.load(source), tl.load(scale).to(tl.int32)
    else:
        inside = (row < N) & (word < K // CODES)
        words = tl.load(source, mask=inside, other=0)
        exponent = tl.load(scale, mask=inside, other=0).to(tl.int32)
    if TO_FP8:
        if EVEN_N:
            of_row = tl.load(base + row)
        else:
            of_row = tl.load(base + row, mask=row < N, other=127)
        low, high = magnitudes(exponent, of_row.to(tl.int32))
        first, second = expand_e2m1(words, low, high, INTERPRETED)
    else:
        halves, ones, twos, fours = magnitudes_bf16(exponent)
        first, second = expand_to_bf16(words, halves, ones, twos, fours, INTERPRETED)
    elements = tl.join(first, second).reshape(2 * BLOCK_N * WORDS)
    if EVEN_N and EVEN_K:
        tl.store(target, elements)
    else:
        tl.store(target, elements, mask=(made_row < N) & (made_word < across))


@triton.jit
def decode_bytes(
    pn, k, b, b_scales, base, folded, N, K, stride_bn, stride_bk, stride_sn, stride_sk,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, TO_FP8: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The same from any layout, and to bf16."""
    COLUMNS: tl.constexpr = BLOCK_K // 32
    TAIL: tl.constexpr = not EVEN_K
    packed = load_packed(b, pn, k, N, K, stride_bn, stride_bk, PRESHUFFLED, 2, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, "")
    scale = load_scales(
        b_scales, pn, k, N, K, stride_sn, stride_sk, SCALE_ORDER, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, ""
    )
    code = tl.join(packed & 15, packed >> 4).reshape(BLOCK_N, COLUMNS, 32).to(tl.int32)
    # A code is a tiny float: at the top of an fp16 it is worth 2**-14 of itself, and never an fp32 subnormal.
    half = (((code & 7) << 9) | ((code & 8) << 12)).to(tl.int16).to(tl.float16, bitcast=True)
    exponent = scale.to(tl.int32).reshape(BLOCK_N, COLUMNS, 1)
    bad = exponent == 255
    row = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    column = k + tl.arange(0, BLOCK_K)
    inside = (row < N)[:, None] & (column < K)[None, :]
    pointers = folded + row.to(tl.int64)[:, None] * K + column[None, :]
    if TO_FP8:
        base_byte = tl.load(base + row, mask=row < N, other=127).to(tl.int32)[:, None, None]
        shift = tl.minimum(tl.maximum(exponent - base_byte, -100), 6)
        factor = ((shift + 14 + 127) << 23).to(tl.float32, bitcast=True)
        element = to_e4m3(half.to(tl.float32) * factor, INTERPRETED)
        element = tl.where(bad, E4M3_NAN, element).to(tl.uint8)
        tl.store(pointers, element.reshape(BLOCK_N, BLOCK_K), mask=inside)
    else:
        # 2**14 first: byte 0 is a subnormal power of two, and its factor would be one too
        element = half.to(tl.float32) * 16384.0 * power_of_two(exponent)
        nan = tl.full((1, 1, 1), 0x7FC00000, tl.int32).to(tl.float32, bitcast=True)
        element = round_to(tl.where(bad, nan, element), tl.bfloat16, INTERPRETED)
        tl.store(pointers, element.reshape(BLOCK_N, BLOCK_K), mask=inside)
