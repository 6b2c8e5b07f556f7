"""Quantise a tile in registers: E8M0 scales and element codes of blocks of 32 along the last dimension.

The arithmetic is that of ``mxgemm.mx`` to the byte, see ``mxgemm.mx.formats.scale_addend`` for the scale rule. It
uses neither exp2 nor log2 (some GPUs flush their subnormals) and converts no float to an unsigned integer.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.interpreted import widen

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
def quantize_e2m1(x, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr, INTERPRETED: tl.constexpr):
    """``[R, K]`` float -> packed codes ``[R, K/2]`` and scale bytes ``[R, K/32]``, both uint8.

    Codes of a block whose scale byte is 255 are arbitrary: whatever reads them gets NaN from the scale.
    """
    blocks = widen(x, INTERPRETED).reshape(R, K // BLOCK, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, 2)
    codes = element_codes(divide(blocks, exponent), 2, 1)
    return pack_e2m1(codes, R, K), scale_bytes(amax, exponent, R, K // BLOCK)


@triton.jit
def quantize_fp8(
    x, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr, EMAX: tl.constexpr, MANTISSA: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``[R, K]`` float -> fp8 codes ``[R, K]`` and scale bytes ``[R, K/32]``, both uint8; 255 as above."""
    blocks = widen(x, INTERPRETED).reshape(R, K // BLOCK, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, EMAX)
    codes = element_codes(divide(blocks, exponent), EMAX, MANTISSA)
    return codes.reshape(R, K).to(tl.uint8), scale_bytes(amax, exponent, R, K // BLOCK)
