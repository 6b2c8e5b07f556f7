#!POPCORN leaderboard amd-mxfp4-mm
#!POPCORN gpu MI355X

"""MXFP4 GEMM for the GPU MODE leaderboard amd-mxfp4-mm: bf16 A, quantised to MXFP4, times MXFP4 B.

Made by mxgemm 0.1.0 (python -m mxgemm.submission) from that library's kernels; do not edit, make it anew.

For each shape the first of these forms is used that builds and, on synthetic operands, agrees with plain arithmetic:

  1. one HIP launch, compiled by hiprtc, for the published shapes on gfx950;
  2. one Triton launch that quantises A in registers (two where K is split);
  3. AITER's quantiser, scale shuffle and gemm_a4w4, three launches.

The published shapes are built when this file is imported, others at their first call. Tiles are predicted from machine
code, not measured on an MI355X; the kernels were executed for gfx950 in an emulator only.
"""

import ctypes
import os
import struct
import sys
import torch
import triton
import triton.language as tl
from collections.abc import Callable
from typing import Any, NamedTuple


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.table
#
# Tiles of the published shapes (m, n, k), from routing_tables/gfx950.json.
#
# They are predicted from machine code, not measured on an MI355X. The fields are those of Tile.
# ----------------------------------------------------------------------------------------------------------------------

TABLE = {
    (4, 2880, 512): (16, 128, 256, 1, False, 4, 2, 4, ""),
    (16, 2112, 7168): (16, 128, 256, 14, False, 4, 2, 4, ""),
    (32, 2880, 512): (16, 128, 256, 1, False, 4, 2, 4, ""),
    (32, 4096, 512): (16, 128, 256, 1, False, 4, 2, 4, ""),
    (64, 7168, 2048): (16, 128, 256, 1, False, 4, 2, 4, ""),
    (256, 3072, 1536): (32, 128, 256, 1, False, 4, 2, 3, ""),
}


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.tile
#
# Which tile a shape takes: the table's for the published ones, a rule for all others.
# ----------------------------------------------------------------------------------------------------------------------

COMPUTE_UNITS = 256  # of an MI355X


class Tile(NamedTuple):
    """Rows of A, rows of B and elements of K that a program takes at a time, and how it is compiled.

    ``split_k`` programs share a tile of the result, each with a part of K; the partial sums are added in order, by the
    last of them (``one_launch``) or by a second kernel.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    one_launch: bool
    num_warps: int
    num_stages: int
    waves_per_eu: int
    cache: str


def ceil_divide(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def steps_of(k: int, block_k: int, split_k: int) -> int:
    """Return how many blocks of K each split takes."""
    return ceil_divide(ceil_divide(k, block_k), split_k)


def tile_for_gfx950(m: int, n: int, k: int) -> Tile:
    """Return the table's tile, or guess one as the library does."""
    row = TABLE.get((m, n, k))
    if row is not None:
        return Tile(*row)
    block_m = 16 if m <= 64 else 32
    block_k = 256 if k >= 256 else 128
    blocks = ceil_divide(k, block_k)
    tiles = ceil_divide(m, block_m) * ceil_divide(n, 128)
    split = max(1, min(COMPUTE_UNITS // tiles, blocks // 2))
    # As many splits as fill the machine, with two blocks each at least and none left empty.
    while ceil_divide(blocks, ceil_divide(blocks, split)) != split:
        split -= 1
    return Tile(block_m, 128, block_k, split, False, 4, 2, 4 if block_m == 16 else 3, "")


def tile_elsewhere(m: int, n: int, k: int) -> Tile:
    """Return a tile for a GPU without scaled matrix instructions, or for the interpreter, with gfx950's splits.

    Triton decodes both operands to bf16 there, which fills registers and shared memory: the tile is small.
    """
    tile = tile_for_gfx950(m, n, k)
    return tile._replace(block_m=16 if m <= 16 else 64, block_n=64, block_k=128, waves_per_eu=0)


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.block_order
#
# Which tile a program takes.
# ----------------------------------------------------------------------------------------------------------------------

@triton.jit
def contiguous_on_xcd(pid, PROGRAMS, XCDS: tl.constexpr):
    """Renumber programs so that neighbours run on one XCD.

    The hardware deals workgroups to the XCDs in turn, each with an L2 of its own. Giving XCD ``x`` a contiguous run of
    numbers lets tiles that share a weight share that L2. A bijection of ``range(PROGRAMS)`` for every ``PROGRAMS``.
    """
    if XCDS == 1:
        return pid
    xcd = pid % XCDS
    run = PROGRAMS // XCDS
    longer = PROGRAMS % XCDS  # the first XCDs get one more
    return xcd * run + tl.minimum(xcd, longer) + pid // XCDS


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.quantize_block
#
# Quantise a tile in registers: E8M0 scales and element codes of blocks of 32 along the last dimension.
#
# The arithmetic is that of ``mxgemm.mx`` to the byte, see ``mxgemm.formats.scale_addend`` for the scale rule. It
# uses neither exp2 nor log2 (some GPUs flush their subnormals) and converts no float to an unsigned integer.
# ----------------------------------------------------------------------------------------------------------------------

BLOCK = tl.constexpr(32)
FP32_INF_BITS = tl.constexpr(0x7F800000)


@triton.jit
def block_scales(x, ADDEND: tl.constexpr, EMAX: tl.constexpr):
    """fp32 ``[R, G, 32]`` -> amax bits, exponent byte before the NaN rule (both int32 ``[R, G, 1]``)."""
    # The integer maximum of magnitude bits keeps subnormals, and a NaN (above Inf) wins.
    amax = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2, keep_dims=True)
    exponent = tl.maximum(((amax + ADDEND) >> 23) - EMAX, 0)
    return amax, exponent


@triton.jit
def scale_bytes(amax, exponent, R: tl.constexpr, G: tl.constexpr):
    """Scale bytes ``[R, G]`` uint8: 255 where the block holds a NaN or an infinity."""
    return tl.where(amax >= FP32_INF_BITS, 255, exponent).to(tl.uint8).reshape(R, G)


@triton.jit
def divide(x, exponent):
    """``x / 2**(exponent - 127)``: exact, because finite blocks have exponents up to 253."""
    return x * ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def element_codes(y, EMAX: tl.constexpr, MANTISSA: tl.constexpr):
    """fp32 -> element code as int32: ties to even, saturating, the sign of zero kept. NaN gives any int32.

    e2m1 is (EMAX, MANTISSA) = (2, 1), e4m3 (8, 3), e5m2 (15, 2). Plain arithmetic: a cast to fp8 rounds to
    nearest even on GPUs, but not in Triton's interpreter.
    """
    BITS: tl.constexpr = 4 if EMAX == 2 else 8
    BIAS: tl.constexpr = 1 if EMAX == 2 else (7 if EMAX == 8 else 15)
    MAX: tl.constexpr = 6.0 if EMAX == 2 else (448.0 if EMAX == 8 else 57344.0)
    DROPPED: tl.constexpr = 23 - MANTISSA
    m = tl.minimum(tl.abs(y), MAX)
    bits = m.to(tl.int32, bitcast=True)
    # Normal codes are the top bits of the float: round there, a carry counts on into the exponent by itself.
    rounded = bits + ((1 << (DROPPED - 1)) - 1) + ((bits >> DROPPED) & 1)
    normal = (rounded >> DROPPED) - ((127 - BIAS) << MANTISSA)
    # Below 2**(1 - BIAS) codes count units of 2**(1 - BIAS - MANTISSA): the ulp of UNIT_FLOAT.
    UNIT_BITS: tl.constexpr = (127 + 23 + 1 - BIAS - MANTISSA) << 23
    UNIT_FLOAT: tl.constexpr = 2.0 ** (23 + 1 - BIAS - MANTISSA)
    subnormal = (m + UNIT_FLOAT).to(tl.int32, bitcast=True) - UNIT_BITS
    LEAST_NORMAL: tl.constexpr = 2.0 ** (1 - BIAS)
    sign = (y.to(tl.int32, bitcast=True) >> (32 - BITS)) & (1 << (BITS - 1))
    return tl.where(m < LEAST_NORMAL, subnormal, normal) | sign


@triton.jit
def pack_e2m1(codes, R: tl.constexpr, K: tl.constexpr):
    """int32 codes ``[R, K/32, 32]`` -> bytes ``[R, K/2]``, the even k in the low nibble."""
    low, high = tl.split(codes.reshape(R, K // 2, 2))
    return ((low & 15) | (high << 4)).to(tl.uint8)


@triton.jit
def quantize_e2m1(x, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr):
    """``[R, K]`` float -> packed codes ``[R, K/2]`` and scale bytes ``[R, K/32]``, both uint8.

    Codes of a block whose scale byte is 255 are arbitrary: whatever reads them gets NaN from the scale.
    """
    blocks = x.to(tl.float32).reshape(R, K // BLOCK, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, 2)
    codes = element_codes(divide(blocks, exponent), 2, 1)
    return pack_e2m1(codes, R, K), scale_bytes(amax, exponent, R, K // BLOCK)


@triton.jit
def quantize_fp8(x, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr, EMAX: tl.constexpr, MANTISSA: tl.constexpr):
    """``[R, K]`` float -> fp8 codes ``[R, K]`` and scale bytes ``[R, K/32]``, both uint8; 255 as above."""
    blocks = x.to(tl.float32).reshape(R, K // BLOCK, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, EMAX)
    codes = element_codes(divide(blocks, exponent), EMAX, MANTISSA)
    return codes.reshape(R, K).to(tl.uint8), scale_bytes(amax, exponent, R, K // BLOCK)


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.convert_gfx950
#
# gfx950's hardware convert to e2m1, ``v_cvt_scalef32_pk_fp4_*``: two values to two nibbles of one byte of a register.
#
# The instruction divides by its scale operand (an fp32 of which only the exponent counts), rounds to nearest even and
# saturates: the same codes as ``quantize_block.element_codes``. Operand modifiers choose the byte that is written and
# leave the others, so a register depends on its own last value, and the ISA wants an s_nop between such writes; clang
# would add them, inline assembly must say them. An 8-bit result with pack=4 crashes Triton 3.6 and is dropped by 3.9,
# hence int32 results with pack=1.
# ----------------------------------------------------------------------------------------------------------------------

FROM_BF16_PAIRS = tl.constexpr(
    """v_cvt_scalef32_pk_fp4_bf16 $0, $1, $5
s_nop 0
v_cvt_scalef32_pk_fp4_bf16 $0, $2, $5 op_sel:[0,0,1,0]
s_nop 0
v_cvt_scalef32_pk_fp4_bf16 $0, $3, $5 op_sel:[0,0,0,1]
s_nop 0
v_cvt_scalef32_pk_fp4_bf16 $0, $4, $5 op_sel:[0,0,1,1]
s_nop 0"""
)
FROM_F32_PAIR = tl.constexpr("v_cvt_scalef32_pk_fp4_f32 $0, $1, $2, $3\ns_nop 0")


@triton.jit
def bf16_pair_scales(pairs, ADDEND: tl.constexpr):
    """int32 ``[R, G, 16]``, two bf16 a word -> amax as bf16 bits, exponent byte before the NaN rule, ``[R, G, 1]``."""
    magnitude = pairs & 0x7FFF7FFF
    high = tl.max(magnitude, axis=2, keep_dims=True) >> 16
    low = tl.max(magnitude & 0xFFFF, axis=2, keep_dims=True)
    amax = tl.maximum(high, low)
    # The fp32 rule on the upper half of the bits: the lower half of a bf16 is zero and cannot carry.
    return amax, tl.maximum(((amax + (ADDEND >> 16)) >> 7) - 2, 0)


@triton.jit
def quantize_e2m1_bf16_pairs(pairs, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr):
    """int32 ``[R, K/2]``, two bf16 a word -> packed codes ``[R, K/2]``, scale bytes ``[R, K/32]``, both uint8."""
    amax, exponent = bf16_pair_scales(pairs.reshape(R, K // BLOCK, BLOCK // 2), ADDEND)
    scale = tl.broadcast_to(exponent << 23, (R, K // BLOCK, BLOCK // 8)).reshape(R, K // 8)
    even, odd = tl.split(pairs.reshape(R, K // 8, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    word = tl.inline_asm_elementwise(
        FROM_BF16_PAIRS, "=&v,v,v,v,v,v", [first, second, third, fourth, scale], dtype=tl.int32, is_pure=True, pack=1
    )
    is_nan = amax >= (FP32_INF_BITS >> 16)
    return unpack_bytes(word, R, K), tl.where(is_nan, 255, exponent).to(tl.uint8).reshape(R, K // BLOCK)


@triton.jit
def quantize_e2m1_f32(x, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr):
    """``[R, K]`` float -> the same, from fp32 pairs: for fp16 and fp32 input and for rows that are not words."""
    f = x.to(tl.float32)
    amax, exponent = block_scales(f.reshape(R, K // BLOCK, BLOCK), ADDEND, 2)
    scale = tl.broadcast_to(exponent << 23, (R, K // BLOCK, BLOCK // 2)).reshape(R, K // 2)
    low, high = tl.split(f.reshape(R, K // 2, 2))
    byte = tl.inline_asm_elementwise(
        FROM_F32_PAIR,
        "=&v,v,v,v",
        [low, high, scale.to(tl.float32, bitcast=True)],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return byte.to(tl.uint8), scale_bytes(amax, exponent, R, K // BLOCK)


@triton.jit
def unpack_bytes(word, R: tl.constexpr, K: tl.constexpr):
    """int32 ``[R, K/8]`` -> its bytes ``[R, K/2]``, the lowest first."""
    b0 = word.to(tl.uint8)
    b1 = (word >> 8).to(tl.uint8)
    b2 = (word >> 16).to(tl.uint8)
    b3 = (word >> 24).to(tl.uint8)
    return tl.join(tl.join(b0, b2), tl.join(b1, b3)).reshape(R, K // 2)


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.epilogue
#
# From fp32 sums to the result: bias, the one rounding, the store.
# ----------------------------------------------------------------------------------------------------------------------

@triton.jit
def store_tile(
    acc, bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):
    """``out[tile] = round(acc + bias)`` for a tile of fp32 sums ``[BLOCK_M, BLOCK_N]``."""
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    if HAS_BIAS:
        acc += tl.load(bias + column * stride_bias, mask=column < N, other=0.0).to(tl.float32)[None, :]
    rows = row.to(tl.int64) if WIDE else row
    columns = column.to(tl.int64) if WIDE else column
    pointers = out + rows[:, None] * stride_om + columns[None, :] * stride_on
    value = round_to(acc, out.dtype.element_ty, INTERPRETED)
    if EVEN_M and EVEN_N:
        tl.store(pointers, value)
    elif EVEN_N:
        tl.store(pointers, value, mask=(row < M)[:, None])
    else:
        tl.store(pointers, value, mask=(row < M)[:, None] & (column < N)[None, :])


@triton.jit
def round_to(value, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """fp32 -> ``dtype``, to nearest even.

    GPUs do this in one instruction. Triton's interpreter (3.9) rounds bf16 half up and loses the carry into the
    exponent, so there the bits are rounded by hand.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = (bits >> 16) | 0x40
        return tl.where(value == value, rounded, quiet_nan).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return value.to(dtype)


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.load_operand
#
# Load one tile of an MX operand and of its scales from any layout, row-major in registers afterwards.
#
# Layouts: ``mxgemm.layouts``. Rows past the last are clamped to it (their results are not stored), which keeps loads
# wide; columns past K are masked in the one step that has them. What padding holds never reaches a result.
# ----------------------------------------------------------------------------------------------------------------------

@triton.jit
def clamped_rows(tile, ROWS, BLOCK: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr):
    """Row numbers of tile ``tile``, none past ``ROWS - 1``; int64 where offsets need it."""
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    if not EVEN:
        rows = tl.minimum(rows, ROWS - 1)
    return rows.to(tl.int64) if WIDE else rows


@triton.jit
def load_packed(
    b, pn, k, N, K, stride_n, stride_k, PRESHUFFLED: tl.constexpr, PACK: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
):
    """Bytes ``[BLOCK_N, BLOCK_K/PACK]`` of rows from ``pn * BLOCK_N`` and elements from ``k``; 0 past K if ``TAIL``."""
    BYTES: tl.constexpr = BLOCK_K // PACK
    if PRESHUFFLED:
        # [N/16, (BYTES/32, 2, 16, 16)] = (n1; kb, kh, n0, byte): a contiguous run per group of 16 rows.
        groups = clamped_rows(pn, N // 16, BLOCK_N // 16, EVEN_N, WIDE)
        run = tl.arange(0, BYTES * 16)
        pointers = b + groups[:, None] * (stride_n * 16) + (k // PACK * 16 + run)[None, :]
        inside = (run < (K - k) // PACK * 16)[None, :]
    else:
        rows = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
        inner = tl.arange(0, BYTES)
        columns = k // PACK + inner
        columns = columns.to(tl.int64) if WIDE else columns
        pointers = b + rows[:, None] * stride_n + columns[None, :] * stride_k
        inside = (inner < (K - k) // PACK)[None, :]
    if TAIL:
        tile = tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)
    else:
        tile = tl.load(pointers, cache_modifier=CACHE)
    if PRESHUFFLED:
        tile = tile.reshape(BLOCK_N // 16, BYTES // 32, 2, 16, 16).permute(0, 3, 1, 2, 4).reshape(BLOCK_N, BYTES)
    return tile


@triton.jit
def load_scales(
    scales, pn, k, N, K, stride_n, stride_k, ORDER: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
):
    """Scale bytes ``[BLOCK_N, BLOCK_K/32]``; 0 past K if ``TAIL``.

    ``ORDER``: "row_major"; "row_major_words", the same where rows start at multiples of four bytes and are contiguous,
    for tiles of fewer bytes than the program has lanes; or "shuffled", padded to 256 x 8, so no read is outside.
    """
    COLUMNS: tl.constexpr = BLOCK_K // 32
    column = k // 32 + tl.arange(0, COLUMNS)
    inside = (column < K // 32)[None, :]
    if ORDER == "shuffled" and BLOCK_N % 32 == 0 and BLOCK_K % 256 == 0:
        # [R/32, (C/8, 4, 16, 2, 2)] = (r2; c2, c0, r0, c1, r1): contiguous, permuted in registers.
        groups = clamped_rows(pn, (N + 255) // 256 * 8, BLOCK_N // 32, True, WIDE)
        run = tl.arange(0, COLUMNS * 32)
        tile = tl.load(scales + groups[:, None] * (stride_n * 32) + (k + run)[None, :], cache_modifier=CACHE)
        tile = tile.reshape(BLOCK_N // 32, COLUMNS // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2)
        tile = tile.reshape(BLOCK_N, COLUMNS)
        if TAIL:
            tile = tl.where(inside, tile, 0)
    elif ORDER == "row_major_words" and not TAIL:
        rows = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
        words = scales.to(tl.pointer_type(tl.int32), bitcast=True)
        four = tl.load(words + rows[:, None] * (stride_n // 4) + (k // 128 + tl.arange(0, COLUMNS // 4))[None, :])
        tile = four[:, :, None] >> (tl.arange(0, 4) * 8)[None, None, :]
        tile = tile.to(tl.uint8).reshape(BLOCK_N, COLUMNS)
    else:
        rows = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
        if ORDER == "shuffled":
            along_rows = (rows // 32) * (stride_n * 32) + (rows % 16) * 4 + (rows % 32) // 16
            along_columns = (column // 8) * 256 + (column % 4) * 64 + ((column % 8) // 4) * 2
        else:
            along_rows = rows * stride_n
            along_columns = (column.to(tl.int64) if WIDE else column) * stride_k
        pointers = scales + along_rows[:, None] + along_columns[None, :]
        if TAIL:
            tile = tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)
        else:
            tile = tl.load(pointers, cache_modifier=CACHE)
    return tile


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.split_k
#
# Finish a tile whose K range was split over programs: fp32 partial sums, added in the order of the splits.
#
# The order of the sum never depends on which program is quicker, so repeated runs agree to the bit. Two forms:
#
# * ``reduce_partials_kernel`` is a second launch;
# * ``add_partials_last`` lets the program that arrives last at a tile's counter add them up, in the same launch.
# ----------------------------------------------------------------------------------------------------------------------

ALL_STORES_DONE = tl.constexpr("s_waitcnt vmcnt(0)")


@triton.jit
def finish_tile(
    acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias,
    SPLIT_K: tl.constexpr, ONE_LAUNCH: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, AMD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """End a GEMM program: store the result, or the partial sums of this split, or add those if it is the last."""
    if SPLIT_K == 1:
        store_tile(
            acc, bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias, HAS_BIAS, BLOCK_M, BLOCK_N,
            EVEN_M, EVEN_N, WIDE, INTERPRETED,
        )
    elif ONE_LAUNCH:
        add_partials_last(
            acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias,
            SPLIT_K, HAS_BIAS, BLOCK_M, BLOCK_N, EVEN_M, EVEN_N, WIDE, AMD, INTERPRETED,
        )
    else:
        store_partial(acc, partials, split, M, N, pm, pn, BLOCK_M, BLOCK_N)


@triton.jit
def store_partial(acc, partials, split, M, N, pm, pn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store a tile of partial sums at ``partials[split, m, n]``, fp32, contiguous; 64-bit offsets."""
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    base = partials + split.to(tl.int64) * M * N
    pointers = base + row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(pointers, acc, mask=(row < M)[:, None] & (column < N)[None, :])


@triton.jit
def sum_partials(partials, M, N, row, column, inside, SPLIT_K: tl.constexpr):
    """Add the splits of some elements in order; ``row`` and ``column`` broadcast to the tile, ``inside`` masks it."""
    offsets = row.to(tl.int64) * N + column
    total = tl.load(partials + offsets, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLIT_K):
        total += tl.load(partials + tl.full((), split, tl.int64) * M * N + offsets, mask=inside, other=0.0)
    return total


@triton.jit
def add_partials_last(
    acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias,
    SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, AMD: tl.constexpr, INTERPRETED: tl.constexpr,
):
    """Store this program's partial sums; if it is the tile's last, add all of them, round and store the result.

    ``counters`` holds one zero for each tile and is left so: the last program resets it.
    """
    store_partial(acc, partials, split, M, N, pm, pn, BLOCK_M, BLOCK_N)
    if AMD:
        # A barrier orders the waves, not their stores: each wave waits for its own before it arrives.
        tl.inline_asm_elementwise(ALL_STORES_DONE, "=v,v", [pm], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()
    tile = pn * tl.cdiv(M, BLOCK_M) + pm
    arrived = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu")
    if arrived == SPLIT_K - 1:
        row = (pm * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
        column = (pn * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
        total = sum_partials(partials, M, N, row, column, (row < M) & (column < N), SPLIT_K)
        store_tile(
            total, bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias, HAS_BIAS, BLOCK_M, BLOCK_N,
            EVEN_M, EVEN_N, WIDE, INTERPRETED,
        )
        tl.store(counters + tile, 0)


@triton.jit(do_not_specialize=["M"])
def reduce_partials_kernel(
    partials, bias, out, M, N, stride_om, stride_on, stride_bias,
    SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_N: tl.constexpr, INTERPRETED: tl.constexpr,
):
    """``out[m, n] = round(sum(partials[:, m, n]) + bias[n])``; grid ``(M, cdiv(N, BLOCK_N))``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = sum_partials(partials, M, N, row, column, column < N, SPLIT_K)
    if HAS_BIAS:
        total += tl.load(bias + column * stride_bias, mask=column < N, other=0.0).to(tl.float32)
    value = round_to(total, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * stride_om + column.to(tl.int64) * stride_on, value, mask=column < N)


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.triton_kernels.gemm_a16w
#
# GEMM in one launch: float A, quantised in registers (or rounded to bf16), times an MX weight.
# ----------------------------------------------------------------------------------------------------------------------

@triton.jit(do_not_specialize=["M"])  # one compiled kernel serves every M
def gemm_a16w_kernel(
    a, b, b_scales, bias, out, partials, counters, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk, stride_om, stride_on, stride_bias,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, ADDEND: tl.constexpr, CONVERT: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr, ONE_LAUNCH: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, XCDS: tl.constexpr, CACHE: tl.constexpr, AMD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``out[M, N] = round(quantize(a[M, K]) @ decode(b)[N, K].T + bias[N])``, fp32 accumulation.

    Grid: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * SPLIT_K`` programs; neighbours share a weight tile.

    * ``CONVERT``: "arithmetic" anywhere; "f32" and "bf16_pairs" are gfx950's hardware convert, the latter reads two
      bf16 as one word, so rows of A must be contiguous and start at even addresses.
    * ``SPLIT_K`` programs share a tile, each takes ``STEPS`` blocks of K. Their partial sums go to ``partials`` and are
      added by the last of them (``ONE_LAUNCH``) or by ``reduce_partials_kernel``.
    * ``EVEN_*``: the dimension is a multiple of its block, so no mask is needed. ``WIDE``: 64-bit offsets.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = contiguous_on_xcd(tl.program_id(0), tiles_m * tiles_n * SPLIT_K, XCDS)
    pm = pid % tiles_m
    pn = (pid // tiles_m) % tiles_n
    split = pid // (tiles_m * tiles_n)

    if SPLIT_K == 1:
        first, last = 0, K
    else:
        first = split * (STEPS * BLOCK_K)
        last = tl.minimum(first + STEPS * BLOCK_K, K)
    whole = last if EVEN_K else first + (last - first) // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(first, whole, BLOCK_K):
        acc = multiply_step(
            acc, a, b, b_scales, pm, pn, k, M, N, K, stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk,
            A_FORMAT, B_FORMAT, ADDEND, CONVERT, PRESHUFFLED, SCALE_ORDER, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N,
            False, WIDE, CACHE, INTERPRETED,
        )
    if not EVEN_K:
        if whole < last:  # the one step that needs masks along K
            acc = multiply_step(
                acc, a, b, b_scales, pm, pn, whole, M, N, K, stride_am, stride_ak, stride_bn, stride_bk, stride_sn,
                stride_sk, A_FORMAT, B_FORMAT, ADDEND, CONVERT, PRESHUFFLED, SCALE_ORDER, BLOCK_M, BLOCK_N, BLOCK_K,
                EVEN_M, EVEN_N, True, WIDE, CACHE, INTERPRETED,
            )

    finish_tile(
        acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias, SPLIT_K, ONE_LAUNCH,
        HAS_BIAS, BLOCK_M, BLOCK_N, EVEN_M, EVEN_N, WIDE, AMD, INTERPRETED,
    )


@triton.jit
def multiply_step(
    acc, a, b, b_scales, pm, pn, k, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, ADDEND: tl.constexpr, CONVERT: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr,
    CACHE: tl.constexpr, INTERPRETED: tl.constexpr,
):
    """``acc[BLOCK_M, BLOCK_N] += quantize(a tile) @ decode(b tile).T`` for the block of K that starts at ``k``."""
    PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    rows = clamped_rows(pm, M, BLOCK_M, EVEN_M, WIDE)
    if CONVERT == "bf16_pairs":
        inner = tl.arange(0, BLOCK_K // 2)
        words = a.to(tl.pointer_type(tl.int32), bitcast=True)
        pointers = words + rows[:, None] * (stride_am // 2) + (k // 2 + inner)[None, :]
        inside = (inner < (K - k) // 2)[None, :]
    else:
        inner = tl.arange(0, BLOCK_K)
        columns = (k + inner).to(tl.int64) if WIDE else k + inner
        pointers = a + rows[:, None] * stride_am + columns[None, :] * stride_ak
        inside = (inner < K - k)[None, :]
    x = tl.load(pointers, mask=inside, other=0) if TAIL else tl.load(pointers)
    w = load_packed(
        b, pn, k, N, K, stride_bn, stride_bk, PRESHUFFLED, PACK, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, CACHE
    )
    s = load_scales(
        b_scales, pn, k, N, K, stride_sn, stride_sk, SCALE_ORDER, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, CACHE
    )
    if A_FORMAT == "bf16":
        if x.dtype != tl.bfloat16:
            x = round_to(x.to(tl.float32), tl.bfloat16, INTERPRETED)
        acc = tl.dot_scaled(x, None, "bf16", w.T, s, B_FORMAT, acc)
    else:
        if A_FORMAT == "e4m3":
            q, q_scale = quantize_fp8(x, BLOCK_M, BLOCK_K, ADDEND, 8, 3)
        elif CONVERT == "bf16_pairs":
            q, q_scale = quantize_e2m1_bf16_pairs(x, BLOCK_M, BLOCK_K, ADDEND)
        elif CONVERT == "f32":
            q, q_scale = quantize_e2m1_f32(x, BLOCK_M, BLOCK_K, ADDEND)
        else:
            q, q_scale = quantize_e2m1(x, BLOCK_M, BLOCK_K, ADDEND)
        acc = tl.dot_scaled(q, q_scale, A_FORMAT, w.T, s, B_FORMAT, acc)
    return acc


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.triton_form
#
# The Triton form: one launch, or two where K is split.
# ----------------------------------------------------------------------------------------------------------------------

EVEN_RULE = 0x200000
"""Added to the bits of a block's largest magnitude before its exponent is taken: rounds up from 1.75 on."""
REDUCE_BLOCK = 256
XCDS_OF_MI355X = 8

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(A, B_shuffle, B_scale_sh) -> C``, in fresh memory."""


class NotHere(Exception):
    """A form is not meant for this machine or shape; the next one is, and nothing is wrong."""


class KernelLaunch(NamedTuple):
    """One launch but for its tensors: kernel, programs, run-time integers, constants, compiler options."""

    kernel: Any
    grid: tuple[int, ...]
    scalars: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, int]


def triton_launches(m: int, n: int, k: int, arch: str, tile: Tile) -> list[KernelLaunch]:
    """Describe the launches of a shape: the GEMM, and the sum of the partial results if that is a kernel of its own."""
    interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"
    scale_columns = ceil_divide(k, 256) * 8
    tiles_m, tiles_n = ceil_divide(m, tile.block_m), ceil_divide(n, tile.block_n)
    spans = ((m, k), (n, k // 2), (n, scale_columns), (m, n))
    constants = {
        "A_FORMAT": "e2m1",
        "B_FORMAT": "e2m1",
        "ADDEND": EVEN_RULE,
        "CONVERT": "bf16_pairs" if arch == "gfx950" else "arithmetic",
        "PRESHUFFLED": True,
        "SCALE_ORDER": "shuffled",
        "HAS_BIAS": False,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "SPLIT_K": tile.split_k,
        "STEPS": steps_of(k, tile.block_k, tile.split_k) if tile.split_k > 1 else 0,
        "ONE_LAUNCH": tile.one_launch,
        "EVEN_M": m % tile.block_m == 0,
        "EVEN_N": n % tile.block_n == 0,
        "EVEN_K": k % tile.block_k == 0,
        "WIDE": any((rows + 512) * (columns + 512) >= 2**31 for rows, columns in spans),
        "XCDS": XCDS_OF_MI355X if arch == "gfx950" and tiles_m > 1 else 1,
        "CACHE": tile.cache,
        "AMD": arch.startswith("gfx"),
        "INTERPRETED": interpreted,
    }
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if arch.startswith("gfx"):
        options |= {"waves_per_eu": tile.waves_per_eu, "matrix_instr_nonkdim": 16}
    # Sizes, then strides (row, column) of A, of the weight's bytes, of its scales and of C, and of the absent bias.
    scalars = (m, n, k, k, 1, k // 2, 1, scale_columns, 1, n, 1, 1)
    launches = [KernelLaunch(gemm_a16w_kernel, (tiles_m * tiles_n * tile.split_k,), scalars, constants, options)]
    if tile.split_k > 1 and not tile.one_launch:
        sums = {"SPLIT_K": tile.split_k, "HAS_BIAS": False, "BLOCK_N": REDUCE_BLOCK, "INTERPRETED": interpreted}
        grid = (m, ceil_divide(n, REDUCE_BLOCK))
        launches.append(KernelLaunch(reduce_partials_kernel, grid, (m, n, n, 1, 1), sums, {"num_warps": 4}))
    return launches


def triton_form(m: int, n: int, k: int, device: torch.device, arch: str) -> Form:
    """Return a function that multiplies operands of one shape."""
    tile = tile_for_gfx950(m, n, k) if arch == "gfx950" else tile_elsewhere(m, n, k)
    gemm, *sums = triton_launches(m, n, k, arch, tile)
    arrivals = torch.zeros(0, dtype=torch.int32, device=device)  # of programs at each tile; the last one resets it

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        nonlocal arrivals
        out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        partials = counters = out  # not read unless K is split
        if tile.split_k > 1:
            partials = torch.empty(tile.split_k * m * n, dtype=torch.float32, device=device)
            if tile.one_launch:
                if not arrivals.numel():
                    arrivals = torch.zeros(gemm.grid[0] // tile.split_k, dtype=torch.int32, device=device)
                counters = arrivals
        try:
            tensors = (a, b_shuffle.view(torch.uint8), b_scale_sh.view(torch.uint8), out, out, partials, counters)
            gemm.kernel[gemm.grid](*tensors, *gemm.scalars, **gemm.constants, **gemm.options)
            for add in sums:
                add.kernel[add.grid](partials, out, out, *add.scalars, **add.constants, **add.options)
        except BaseException:
            arrivals = arrivals[:0]  # a launch that ended half way may have left counts
            raise
        return out

    return multiply


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.check
#
# Compare a form with plain torch arithmetic on synthetic operands of its shape.
# ----------------------------------------------------------------------------------------------------------------------

def e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    """4-bit codes -> their values, fp32."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=codes.device)
    return magnitudes[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """Exponent bytes from 1 to 254 -> the powers of two that they stand for, fp32."""
    return (exponent.to(torch.int32) << 23).view(torch.float32)


def rounded_to_mxfp4(a: torch.Tensor) -> torch.Tensor:
    """Float ``[M, K]`` -> the values that it has in MXFP4, fp32: scales by the even rule, ties to even codes."""
    blocks = a.float().reshape(a.shape[0], -1, 32)
    bits = blocks.abs().amax(dim=2, keepdim=True).view(torch.int32)
    scale = power_of_two((((bits + EVEN_RULE) >> 23) - 2).clamp(min=1))
    y = blocks / scale
    step = torch.where(y.abs() < 2.0, 0.5, torch.where(y.abs() < 4.0, 1.0, 2.0))
    return ((torch.round(y / step) * step).clamp(-6.0, 6.0) * scale).reshape(a.shape)


def synthetic_operands(m: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return A, a random weight's shuffled bytes and shuffled scales, and the exact product rounded to fp32."""
    generator = torch.Generator().manual_seed(m + n + k)
    a = torch.randn((m, k), generator=generator).to(device, torch.bfloat16)
    packed = torch.randint(0, 256, (n, k // 2), generator=generator, dtype=torch.uint8).to(device)
    rows, columns = (n + 255) // 256 * 256, (k // 32 + 7) // 8 * 8
    scales = torch.randint(122, 126, (rows, columns), generator=generator, dtype=torch.uint8).to(device)
    elements = e2m1_values(torch.stack((packed & 15, packed >> 4), dim=2)).reshape(n, k)
    weight = elements * power_of_two(scales[:n, : k // 32]).repeat_interleave(32, dim=1)
    # (16 rows, two halves of 16 bytes) of a tile of weights change places; scales in tiles of 32 rows by 8.
    shuffled = packed.view(n // 16, 16, k // 64, 2, 16).permute(0, 2, 3, 1, 4).reshape(n, k // 2)
    tiles = scales.view(rows // 32, 2, 16, columns // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    return a, shuffled.contiguous(), tiles.reshape(rows, columns).contiguous(), rounded_to_mxfp4(a) @ weight.t()


def disagrees(form: Form, operands: tuple[torch.Tensor, ...]) -> str | None:
    """Say how a form's result differs from the exact one, or None."""
    *inputs, exact = operands
    error = (form(*inputs).float() - exact).abs()
    # The task's relative tolerance; near zero, what sums in another order may differ by.
    wrong = ~(error <= 1e-2 * exact.abs() + 2e-3 * exact.abs().mean())
    count = int(wrong.count_nonzero())
    return f"{count} of {wrong.numel()} elements of a synthetic product are wrong" if count else None


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.hip_data
#
# The HIP kernel's text (mxgemm/hip/kernels), and its configurations for the published shapes (m, n, k).
#
# They are estimated, not measured on an MI355X. The fields are those of HipConfig.
# ----------------------------------------------------------------------------------------------------------------------

HIP_TABLE = {
    (4, 2880, 512): (16, 16, 128, 4, 1),
    (16, 2112, 7168): (16, 16, 256, 7, 4),
    (32, 4096, 512): (16, 32, 128, 4, 1),
    (32, 2880, 512): (16, 32, 128, 4, 1),
    (64, 7168, 2048): (16, 128, 256, 8, 1),
    (256, 3072, 1536): (32, 128, 128, 4, 1),
    (8, 2112, 7168): (16, 16, 256, 7, 4),
    (16, 3072, 1536): (16, 16, 256, 3, 2),
    (64, 3072, 1536): (16, 64, 256, 3, 2),
    (256, 2880, 512): (32, 128, 128, 4, 1),
}
HIP_SOURCE = r"""
// ---- fused_gemm.hip
// C[M, N] = quantise(A[M, K]) * W[N, K]^T + bias in one launch: bf16 A to e2m1 in registers, e2m1 weight, scaled MFMA.
//
// A workgroup computes BLOCK_M x BLOCK_N of C. Its WAVES waves share K: each takes steps of BLOCK_K elements and keeps
// sums of the whole block; at the end the waves' sums are added in LDS, in the order of the waves, so that runs agree
// to the bit. Nothing else passes through LDS: a lane loads just the blocks of 32 that it feeds to the matrix unit.
//
//   A        bf16, rows a_stride bytes apart (a multiple of 16)    lane l: 64 bytes, block l / 16 of row l % 16
//   weight   preshuffled e2m1 [N/16, K/128, 64 lanes, 16 bytes]    lane l: 16 bytes
//   scales   shuffled E8M0 [N/32, K/256, 64 lanes, 4 bytes]        lane l: a dword, byte 2 * (k / 128 % 2) + n / 16 % 2
//   bias     BIAS_TYPE [N], where that is defined
//   C        OUT_TYPE, rows c_stride bytes apart (a multiple of 4 elements)
//
// Generated for one weight: GEMM_N, GEMM_K, BLOCK_M, BLOCK_N, BLOCK_K, WAVES, UNROLL, SCALE_ADDEND (to the bits of a
// bf16) and OUT_TYPE are defined on the command line. mxgemm/hip/fused.py says which values are legal, and why.
// ---- mfma.h
// ---- quantize_bf16.h
// ---- vectors.h
// Types and helpers of the freestanding kernels: no HIP header is needed, so any clang with gfx950 compiles them.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u16x2 = u16 __attribute__((ext_vector_type(2)));
using u32x4 = u32 __attribute__((ext_vector_type(4)));
using i32x8 = int __attribute__((ext_vector_type(8)));
using f32x4 = float __attribute__((ext_vector_type(4)));
using fp16x2 = _Float16 __attribute__((ext_vector_type(2)));
using bf16x2 = __bf16 __attribute__((ext_vector_type(2)));

#define DEVICE static __attribute__((device)) __attribute__((always_inline))
#define KERNEL extern "C" __attribute__((global))
#define SHARED __attribute__((shared))

// By value: clang 22's bit_cast of an element of a vector reads element 0 instead.
template <class To, class From> DEVICE To bits_as(From value) { return __builtin_bit_cast(To, value); }

constexpr u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

// 32 bf16 that one lane holds, a block of A along K, to e2m1: no other lane is asked.
//
// The scale byte is that of mxgemm/formats.py:scale_addend on the upper half of the fp32 bits; the lower half of a bf16
// is zero and cannot carry. Zero and tiny blocks give byte 0. A block with NaN or Inf gives 255 and arbitrary codes:
// whatever the matrix unit multiplies by that scale is NaN.

constexpr u32 BF16_INFINITY = 0x7f80;
constexpr u32 FP16_INFINITY = 0x7c00;
constexpr u32 E8M0_NAN = 255;
constexpr u32 E2M1_EMAX = 2;

using Bf16Block = u32x4[4];  // element k in half k % 2 of dword k / 2

struct Fp4Block {
  u32x4 codes;  // element k in bits 4 * (k % 8) of dword k / 8
  u32 scale;    // E8M0 byte
};

DEVICE u32 larger_half(u32 halves) {
  const u32 high = halves >> 16, low = halves & 0xffff;
  return high > low ? high : low;
}

// Bits of the largest magnitude. Integers order magnitudes, keep subnormals, and put NaN above infinity.
DEVICE u32 largest_magnitude(const Bf16Block &block) {
  u16x2 largest = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; i++)
    largest = __builtin_elementwise_max(largest, bits_as<u16x2>(block[i / 4][i % 4] & 0x7fff7fffu));
  return larger_half(bits_as<u32>(largest));
}

// The same in half the instructions: read as fp16, magnitudes below fp16's infinity keep the order of their bits, and
// gfx950 has a packed maximum of three that negates for free. Where a magnitude is FP16_INFINITY or more (2^121 as a
// bf16) the result is too, but maybe not the largest: a NaN of fp16 wins every maximum.
#if __has_builtin(__builtin_elementwise_maximum)
DEVICE u32 largest_magnitude_as_fp16(const Bf16Block &block) {
  fp16x2 largest[2] = {{0, 0}, {0, 0}};  // two that take turns, because each would have to wait for itself
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const fp16x2 pair = bits_as<fp16x2>(block[i / 4][i % 4]);
    largest[i % 2] = __builtin_elementwise_maximum(__builtin_elementwise_maximum(largest[i % 2], pair), -pair);
  }
  return larger_half(bits_as<u32>(__builtin_elementwise_maximum(largest[0], largest[1])));
}
#else
DEVICE u32 largest_magnitude_as_fp16(const Bf16Block &) { return FP16_INFINITY; }
#endif

template <u32 ADDEND> DEVICE u32 scale_of(u32 magnitude) {
  return __builtin_elementwise_sub_sat((magnitude + ADDEND) >> 7, E2M1_EMAX);
}

template <u32 ADDEND> DEVICE Fp4Block quantize(const Bf16Block &block) {
  u32 magnitude = largest_magnitude_as_fp16(block);
  u32 scale = scale_of<ADDEND>(magnitude);
  if (__builtin_expect(__builtin_amdgcn_ballot_w64(magnitude >= FP16_INFINITY) != 0, 0)) {  // the same for all lanes
    magnitude = largest_magnitude(block);
    scale = magnitude >= BF16_INFINITY ? E8M0_NAN : scale_of<ADDEND>(magnitude);
  }
  // A convert divides by the power of two in its scale's exponent and writes one byte of its destination. In this order
  // the codes take the place of the block's first quarter as that is used up, and few writes wait for another.
  const float divisor = bits_as<float>(scale << 23);
  u32x4 codes = block[0];
#define CONVERT(dword, byte) \
  codes[dword] = \
      __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(codes[dword], bits_as<bf16x2>(block[dword][byte]), divisor, byte)
  CONVERT(0, 0), CONVERT(0, 1), CONVERT(1, 0), CONVERT(0, 2);
  CONVERT(2, 0), CONVERT(0, 3), CONVERT(3, 0), CONVERT(1, 1);
  CONVERT(2, 1), CONVERT(3, 1), CONVERT(1, 2), CONVERT(2, 2);
  CONVERT(3, 2), CONVERT(1, 3), CONVERT(2, 3), CONVERT(3, 3);
#undef CONVERT
  return {codes, scale};
}

// One scaled matrix instruction: C[16 n, 16 m] += W[16 n, 128 k] * A[16 m, 128 k], both e2m1, on one wave.
//
// Lane l holds of either operand row l % 16, elements 32 * (l / 16) to 32 * (l / 16) + 31: one block and its scale. The
// weight comes first, so that lane l ends up with n = 4 * (l / 16) to 4 * (l / 16) + 3 of row m = l % 16: neighbours.

constexpr int E2M1 = 4;  // code of the format in the instruction

// SCALE_BYTE: which byte of `scales` belongs to the weight's block.
template <u32 SCALE_BYTE> DEVICE f32x4 multiply_add(u32x4 weight, u32 scales, Fp4Block a, f32x4 sum) {
  const i32x8 w8 = {(int)weight[0], (int)weight[1], (int)weight[2], (int)weight[3]};  // e2m1 takes half the registers
  const i32x8 a8 = {(int)a.codes[0], (int)a.codes[1], (int)a.codes[2], (int)a.codes[3]};
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(w8, a8, sum, E2M1, E2M1, SCALE_BYTE, scales, 0, a.scale);
}

constexpr u32 LANES = 64;
constexpr u32 XCDS = 8;  // dies with an L2 of their own, to which workgroups are dealt in turn
constexpr u32 TILES_M = BLOCK_M / 16, TILES_N = BLOCK_N / 16, TILES_K = BLOCK_K / 128;  // of a matrix instruction
constexpr u32 TILES = TILES_M * TILES_N;
constexpr u32 SCALE_DWORDS = ceil_div(TILES_N, 2);
constexpr u32 ALL_TILES_N = GEMM_N / 16;
constexpr u32 WEIGHT_TILE_BYTES = 16 * GEMM_K / 2, SCALE_TILE_BYTES = ceil_div(GEMM_K, 256) * 256;
constexpr u32 BLOCKS_N = ceil_div(GEMM_N, BLOCK_N), BLOCKS_N_OF_XCD = ceil_div(BLOCKS_N, XCDS);
constexpr u32 STEPS = GEMM_K / BLOCK_K;
constexpr u32 ROUNDS = STEPS / (WAVES * UNROLL);  // in a round each wave takes UNROLL steps
constexpr u32 STEPS_IN_ROUNDS = ROUNDS * WAVES * UNROLL;

using out_x4 = OUT_TYPE __attribute__((ext_vector_type(4)));
#ifdef BIAS_TYPE
using bias_x4 = BIAS_TYPE __attribute__((ext_vector_type(4)));
#endif

// Where a workgroup's operands begin (the same for all lanes), and how far into them a lane's lie.
struct Operands {
  const u8 *a, *weight, *scales;
  u32 a_lane[TILES_M], lane;
  u32 first_tile_n;
};

// What a lane holds of BLOCK_K elements.
struct Step {
  u32x4 weight[TILES_N][TILES_K];
  u32 scales[SCALE_DWORDS];
  Bf16Block a[TILES_M][TILES_K];
};

// Steps whose loads are in flight together.
struct Round {
  Step steps[UNROLL];
};

struct Sums {
  f32x4 of[TILES_M][TILES_N];
};

// Bytes from the weight of the first tile to that of tile n; past the last it stands in, and is not stored.
DEVICE u32 weight_tile_offset(const Operands &from, u32 n) {
  if constexpr (GEMM_N % BLOCK_N == 0) return n * WEIGHT_TILE_BYTES;
  const u32 left = ALL_TILES_N - 1 - from.first_tile_n;
  return (n < left ? n : left) * WEIGHT_TILE_BYTES;
}

DEVICE void load(const Operands &from, u32 step, Step &to) {
  // The weight first: it comes from HBM. A is in L2, as soon as one workgroup has read it.
#pragma unroll
  for (u32 n = 0; n < TILES_N; n++)
#pragma unroll
    for (u32 k = 0; k < TILES_K; k++) {
      const u8 *tile = from.weight + weight_tile_offset(from, n) + (step * TILES_K + k) * (LANES * 16);
      to.weight[n][k] = *(const u32x4 *)(tile + from.lane * 16);
    }
#pragma unroll
  for (u32 pair = 0; pair < SCALE_DWORDS; pair++) {
    const u8 *tile = from.scales + pair * SCALE_TILE_BYTES + step * TILES_K / 2 * (LANES * 4);
    to.scales[pair] = *(const u32 *)(tile + from.lane * 4);
  }
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++)
#pragma unroll
    for (u32 k = 0; k < TILES_K; k++)
#pragma unroll
      for (u32 quarter = 0; quarter < 4; quarter++) {
        const u8 *tile = from.a + step * (BLOCK_K * 2) + k * 256 + quarter * 16;
        to.a[m][k][quarter] = *(const u32x4 *)(tile + from.a_lane[m]);
      }
}

// Tile K_TILE of a step: quantise A, once for all tiles along N.
template <u32 K_TILE> DEVICE void accumulate_tile(const Step &step, u32 scale_shift, Sums &sums) {
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++) {
    const Fp4Block a = quantize<SCALE_ADDEND>(step.a[m][K_TILE]);
#pragma unroll
    for (u32 n = 0; n < TILES_N; n += 2) {
      const u32 scales = step.scales[n / 2] >> scale_shift;
      sums.of[m][n] = multiply_add<2 * K_TILE>(step.weight[n][K_TILE], scales, a, sums.of[m][n]);
      if constexpr (TILES_N > 1)
        sums.of[m][n + 1] = multiply_add<2 * K_TILE + 1>(step.weight[n + 1][K_TILE], scales, a, sums.of[m][n + 1]);
    }
  }
}

DEVICE void accumulate(const Operands &from, const Step &step, u32 number, Sums &sums) {
  // A dword of scales covers two tiles along N and two along K: what a narrower step does not take is shifted out.
  const u32 scale_shift = (TILES_N == 1 ? from.first_tile_n % 2 * 8 : 0) + (TILES_K == 1 ? number % 2 * 16 : 0);
  accumulate_tile<0>(step, scale_shift, sums);
  if constexpr (TILES_K > 1) accumulate_tile<1>(step, scale_shift, sums);
}

DEVICE u32 first_step(u32 round, u32 wave) { return (round * WAVES + wave) * UNROLL; }

DEVICE void load(const Operands &from, u32 round, u32 wave, Round &to) {
#pragma unroll
  for (u32 i = 0; i < UNROLL; i++) load(from, first_step(round, wave) + i, to.steps[i]);
}

DEVICE void accumulate(const Operands &from, const Round &held, u32 round, u32 wave, Sums &sums) {
#pragma unroll
  for (u32 i = 0; i < UNROLL; i++) accumulate(from, held.steps[i], first_step(round, wave) + i, sums);
}

// No load of what follows is issued before the sums are there. The compiler would put matrix instructions off until
// after the next loads, which then could not take the registers that are free by now, and copy all that they load.
DEVICE void finish(Sums &sums) {
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++)
#pragma unroll
    for (u32 n = 0; n < TILES_N; n++) asm volatile("" : "+v"(sums.of[m][n]) : : "memory");
}

// One wave's part of K. While a round is multiplied, the next one's loads are in flight.
DEVICE void accumulate_wave(const Operands &from, u32 wave, Sums &sums) {
  if constexpr (ROUNDS > 0) {
    Round even, odd;
    load(from, 0, wave, even);
#pragma unroll 1
    for (u32 round = 0; round + 2 < ROUNDS; round += 2) {
      load(from, round + 1, wave, odd);
      accumulate(from, even, round, wave, sums);
      finish(sums);
      load(from, round + 2, wave, even);
      accumulate(from, odd, round + 1, wave, sums);
      finish(sums);
    }
    if constexpr (ROUNDS % 2 == 0) {
      load(from, ROUNDS - 1, wave, odd);
      accumulate(from, even, ROUNDS - 2, wave, sums);
      accumulate(from, odd, ROUNDS - 1, wave, sums);
    } else {
      accumulate(from, even, ROUNDS - 1, wave, sums);
    }
  }
  if constexpr (STEPS_IN_ROUNDS < STEPS) {
#pragma unroll 1
    for (u32 step = STEPS_IN_ROUNDS + wave; step < STEPS; step += WAVES) {
      Step held;
      load(from, step, held);
      accumulate(from, held, step, sums);
    }
  }
}

KERNEL __attribute__((amdgpu_flat_work_group_size(WAVES * LANES, WAVES * LANES)))
void fused_gemm(const u8 *__restrict__ a, const u8 *__restrict__ weight, const u8 *__restrict__ scales,
                [[maybe_unused]] const u8 *__restrict__ bias, u8 *__restrict__ c, u32 m, u32 a_stride, u32 c_stride) {
  SHARED static f32x4 partial[WAVES][TILES][LANES];
  const u32 thread = __builtin_amdgcn_workitem_id_x(), lane = thread % LANES;
  const u32 wave = __builtin_amdgcn_readfirstlane(thread / LANES);
  // Grid (XCD, block along M, block along N of that XCD): a part of the weight is read through one L2, for all of M.
  const u32 block_n = __builtin_amdgcn_workgroup_id_x() * BLOCKS_N_OF_XCD + __builtin_amdgcn_workgroup_id_z();
  if (BLOCKS_N % XCDS != 0 && block_n >= BLOCKS_N) return;
  const u32 first_row = __builtin_amdgcn_workgroup_id_y() * BLOCK_M;
  const u32 rows = m - first_row;  // of this block and those below
  const u32 first_tile_n = block_n * TILES_N;

  Operands from;
  from.a = a + (u64)first_row * a_stride;
  from.weight = weight + (u64)first_tile_n * WEIGHT_TILE_BYTES;
  from.scales = scales + (u64)(first_tile_n / 2) * SCALE_TILE_BYTES;
  from.lane = lane;
  from.first_tile_n = first_tile_n;
#pragma unroll
  for (u32 i = 0; i < TILES_M; i++) {
    const u32 row = i * 16 + lane % 16, last = rows - 1;  // rows past the end read the last one, and are not stored
    from.a_lane[i] = (row < last ? row : last) * a_stride + lane / 16 * 64;
  }

  Sums sums = {};
  accumulate_wave(from, wave, sums);
#pragma unroll
  for (u32 tile = 0; tile < TILES; tile++) partial[wave][tile][lane] = sums.of[tile / TILES_N][tile % TILES_N];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");

  u8 *corner = c + (u64)first_row * c_stride + block_n * (BLOCK_N * sizeof(OUT_TYPE));
  for (u32 tile = wave; tile < TILES; tile += WAVES) {
    f32x4 sum = partial[0][tile][lane];
#pragma unroll
    for (u32 other = 1; other < WAVES; other++) sum += partial[other][tile][lane];
    if (GEMM_N % BLOCK_N != 0 && first_tile_n + tile % TILES_N >= ALL_TILES_N) continue;
    const u32 row = tile / TILES_N * 16 + lane % 16, column = tile % TILES_N * 16 + lane / 16 * 4;
#ifdef BIAS_TYPE
    const bias_x4 added = ((const bias_x4 *)bias)[(block_n * BLOCK_N + column) / 4];
    sum += __builtin_convertvector(added, f32x4);
#endif
    if (row < rows)
      *(out_x4 *)(corner + row * c_stride + column * sizeof(OUT_TYPE)) = __builtin_convertvector(sum, out_x4);
  }
}
"""


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.hip_form
#
# The HIP form: one launch, compiled in this process for a size of the weight.
# ----------------------------------------------------------------------------------------------------------------------

LANES = 64
KERNEL_NAME = b"fused_gemm"
PARAMETERS = struct.Struct("<5Q3I")
"""Of the kernel: A, weight, scales, bias, C; m and the bytes between rows of A and of C."""
MEMORY_OF_PARAMETERS, SIZE_OF_PARAMETERS, END_OF_LIST = 1, 2, 3  # hipModuleLaunchKernel's list ``extra``


class HipConfig(NamedTuple):
    """Rows and columns of C of a workgroup; elements of K of a wave's step; waves; steps whose loads are in flight."""

    block_m: int
    block_n: int
    block_k: int
    waves: int
    unroll: int


loaded_kernels: dict[tuple[int, int, HipConfig], ctypes.c_void_p] = {}


def hip_form(m: int, n: int, k: int, device: torch.device, arch: str) -> Form:
    """Return a function that multiplies operands of one shape.

    Raises:
        NotHere: another GPU, or a shape without a configuration.
        OSError, RuntimeError: hiprtc or the HIP library is missing or refuses.
    """
    if arch != "gfx950" or (m, n, k) not in HIP_TABLE:
        raise NotHere("the HIP kernel is for the published shapes on gfx950")
    config = HipConfig(*HIP_TABLE[m, n, k])
    kernel = loaded_kernel(n, k, config)
    blocks_n = ceil_divide(n, config.block_n)
    grid = (XCDS_OF_MI355X, ceil_divide(m, config.block_m), ceil_divide(blocks_n, XCDS_OF_MI355X))
    counts = [ctypes.c_uint(count) for count in (*grid, config.waves * LANES, 1, 1, 0)]
    default_queue = no_pointers = None
    hip = rocm_library("libamdhip64")
    known = torch.empty(1, device=device)  # a second copy of the library would not know of it, nor of the operands
    start, length = ctypes.c_void_p(), ctypes.c_size_t()  # some releases write both without looking for a null
    found = ctypes.byref(start), ctypes.byref(length)
    checked(hip, "hipMemGetAddressRange", *found, ctypes.c_void_p(known.data_ptr()))

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        operands = (a.data_ptr(), b_shuffle.data_ptr(), b_scale_sh.data_ptr(), 0, out.data_ptr())
        memory = ctypes.create_string_buffer(PARAMETERS.pack(*operands, m, 2 * k, 2 * n), PARAMETERS.size)
        size = ctypes.c_size_t(PARAMETERS.size)
        extra = (ctypes.c_void_p * 5)(
            MEMORY_OF_PARAMETERS, ctypes.addressof(memory), SIZE_OF_PARAMETERS, ctypes.addressof(size), END_OF_LIST
        )
        checked(hip, "hipModuleLaunchKernel", kernel, *counts, default_queue, no_pointers, extra)
        return out

    return multiply


def loaded_kernel(n: int, k: int, config: HipConfig) -> ctypes.c_void_p:
    """Compile and load the kernel for a weight, once."""
    key = (n, k, config)
    if key not in loaded_kernels:
        hip = rocm_library("libamdhip64")
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        checked(hip, "hipModuleLoadData", ctypes.byref(module), compiled_code(n, k, config))
        checked(hip, "hipModuleGetFunction", ctypes.byref(kernel), module, KERNEL_NAME)
        loaded_kernels[key] = kernel
    return loaded_kernels[key]


def compiled_code(n: int, k: int, config: HipConfig) -> bytes:
    """Compile the kernel for a weight to a code object."""
    defines = {
        "GEMM_N": n,
        "GEMM_K": k,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "WAVES": config.waves,
        "UNROLL": config.unroll,
        "SCALE_ADDEND": EVEN_RULE >> 16,  # the upper half of the bits: the lower half of a bf16 is zero
        "OUT_TYPE": "__bf16",
    }
    options = ["--offload-arch=gfx950", "-O3", "-std=c++20", *(f"-D{name}={value}" for name, value in defines.items())]
    texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    rtc = rocm_library("libhiprtc")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    checked(rtc, "hiprtcCreateProgram", ctypes.byref(program), HIP_SOURCE.encode(), b"fused_gemm.hip", 0, None, None)
    if rtc.hiprtcCompileProgram(program, len(options), texts):
        checked(rtc, "hiprtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        checked(rtc, "hiprtcGetProgramLog", program, log)
        raise RuntimeError(f"hiprtc does not compile the kernel: {log.value.decode(errors='replace')}")
    checked(rtc, "hiprtcGetCodeSize", program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    checked(rtc, "hiprtcGetCode", program, code)
    checked(rtc, "hiprtcDestroyProgram", ctypes.byref(program))
    return code.raw


def rocm_library(name: str) -> Any:
    """Open the copy that torch brings, else the system's: two copies would know nothing of each other's memory."""
    own = os.path.join(os.path.dirname(torch.__file__), "lib", f"{name}.so")
    return ctypes.CDLL(own if os.path.exists(own) else f"{name}.so.{str(torch.version.hip).partition('.')[0]}")


def checked(library: Any, function: str, *arguments: Any) -> None:
    """Call a function of a library that returns 0 if all is well."""
    status = getattr(library, function)(*arguments)
    if status:
        raise RuntimeError(f"{function}: error {status}")


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.aiter_form
#
# The last resort: the three launches of AITER that the task itself describes.
# ----------------------------------------------------------------------------------------------------------------------

def aiter_form(m: int, n: int, k: int, device: torch.device, arch: str) -> Form:
    """Return a function that quantises A, shuffles its scales and multiplies, each by AITER."""
    del m, n, k, device, arch
    import aiter
    from aiter import dtypes
    from aiter.ops.triton.quant import dynamic_mxfp4_quant
    from aiter.utility.fp4_utils import e8m0_shuffle

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        codes, scales = dynamic_mxfp4_quant(a)
        shuffled = e8m0_shuffle(scales)
        result: torch.Tensor = aiter.gemm_a4w4(
            codes.view(dtypes.fp4x2), b_shuffle.view(dtypes.fp4x2), shuffled.view(dtypes.fp8_e8m0),
            b_scale_sh.view(dtypes.fp8_e8m0), dtype=dtypes.bf16, bpreshuffle=True,
        )
        return result

    return multiply


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.forms
#
# The forms of the product, in the order in which they are tried.
# ----------------------------------------------------------------------------------------------------------------------

FORMS = {"hip": hip_form, "triton": triton_form, "aiter": aiter_form}


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.shapes
#
# The published shapes (m, n, k): six that rank, four that test.
# ----------------------------------------------------------------------------------------------------------------------

PUBLISHED = (
    *((4, 2880, 512), (16, 2112, 7168), (32, 4096, 512), (32, 2880, 512), (64, 7168, 2048), (256, 3072, 1536)),
    *((8, 2112, 7168), (16, 3072, 1536), (64, 3072, 1536), (256, 2880, 512)),
)


# ----------------------------------------------------------------------------------------------------------------------
# mxgemm.submission.parts.entry
#
# ``custom_kernel``: the first form of a shape that builds and agrees with plain arithmetic.
# ----------------------------------------------------------------------------------------------------------------------

chosen_forms: dict[tuple[int, int, int, torch.device], Form] = {}
said: set[str] = set()


def custom_kernel(data: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Quantise A to MXFP4 and multiply it by the MXFP4 weight.

    Args:
        data: A bf16 ``[m, k]``; B bf16 and B_q, which are not read; B_shuffle, the preshuffled bytes of
            ``[n, k/2]``; B_scale_sh, its shuffled, padded scales.

    Returns:
        bf16 ``[m, n]`` in fresh memory.
    """
    a, _, _, b_shuffle, b_scale_sh = data
    (m, k), n = a.shape, b_shuffle.shape[0]
    key = (m, n, k, a.device)
    form = chosen_forms.get(key)
    if form is None:
        form = chosen_forms[key] = choose_form(m, n, k, a.device)
    return form(a.contiguous(), b_shuffle, b_scale_sh)


def choose_form(m: int, n: int, k: int, device: torch.device) -> Form:
    """Build the forms in order until one agrees with plain arithmetic on synthetic operands of the shape.

    Raises:
        ValueError: the shape is not one that the layouts allow.
        RuntimeError: no form builds and agrees; says why for each.
    """
    if m < 1 or n < 16 or n % 16 or k < 64 or k % 64:
        raise ValueError(f"(m, n, k): got {(m, n, k)}, want m >= 1, n a multiple of 16 and k a multiple of 64")
    operands = synthetic_operands(m, n, k, device)
    reasons = []
    for name, build in FORMS.items():
        try:
            form = build(m, n, k, device, architecture_of(device))
            reason = disagrees(form, operands)
        except NotHere as error:
            reasons.append(f"{name}: {error}")
            continue
        except Exception as error:  # a form that fails, however it does, makes way for the next
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            return form
        reasons.append(f"{name}: {reason}")
        say_once(f"mxfp4: {name} is not used for {(m, n, k)}: {reason}")
    raise RuntimeError(f"no form works for {(m, n, k)}: " + "; ".join(reasons))


def architecture_of(device: torch.device) -> str:
    """Return "gfx950" and the like for an AMD GPU, else the device's type."""
    if device.type == "cuda" and torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    return device.type


def say_once(text: str) -> None:
    """Print to standard error what was not said before."""
    if text not in said:
        said.add(text)
        print(text, file=sys.stderr, flush=True)


def build_published_shapes() -> None:
    """Compile and check what the leaderboard will ask for, before anything is timed."""
    device = torch.device("cuda", torch.cuda.current_device())
    for shape in PUBLISHED:
        try:
            key = (*shape, device)
            chosen_forms[key] = choose_form(*shape, device)
        except RuntimeError as error:  # the shape's first call tries again, and raises
            say_once(f"mxfp4: {error}")


if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "0") != "1":
    build_published_shapes()
