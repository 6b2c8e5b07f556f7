"""Arithmetic on whole arrays of lanes that numpy has no word for."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
U16, U32, U64 = np.uint16, np.uint32, np.uint64
I16, I32, I64 = np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64

LANES: Final = np.arange(64)
_REVERSED_BYTE: Final = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)
_TINY: Final = np.finfo(F32).tiny


def f32_to_bf16(x: Array) -> Array:
    """Round to the 16 bits of a bfloat16, nearest even, as uint32; NaN stays NaN."""
    bits = np.ascontiguousarray(np.asarray(x, F32)).view(U32)
    rounded = (bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)
    nan = np.isnan(x)
    if nan.any():
        rounded = np.where(nan, (bits >> U32(16)) | U32(0x40), rounded)
    return rounded.astype(U32)


def bf16_to_f32(bits: Array) -> Array:
    """Widen the low 16 bits."""
    return (bits.astype(U32) << U32(16)).view(F32)


def f16_toward_zero(x: Array) -> Array:
    """Round float32 to the 16 bits of a half, toward zero, as uint32; NaN becomes quiet."""
    half = x.astype(F16)
    over = np.abs(half.astype(F64)) > np.abs(x.astype(F64))
    bits = half.view(U16).astype(U32)
    return np.where(over & np.isfinite(x), bits - U32(1), bits) | (np.isnan(x).astype(U32) << U32(9))


def pack_halves(low: Array, high: Array) -> Array:
    """Put two arrays of halves into one of uint32."""
    return low.view(U16).astype(U32) | (high.view(U16).astype(U32) << U32(16))


def flush_subnormals(x: Array) -> Array:
    """Replace float32 subnormals by zeros of their sign."""
    small = np.abs(x) < _TINY
    return np.where(small, np.copysign(F32(0), x), x) if small.any() else x


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float16 or float32, rounded once."""
    product = a.astype(F64) * b.astype(F64)
    return add_to_odd(product, c.astype(F64)).astype(a.dtype)


def add_to_odd(a: Array, b: Array) -> Array:
    """Return a + b in float64, an inexact sum rounded to the neighbour with an odd mantissa.

    Rounding that once more, to fewer bits, gives what rounding the exact sum gives (Boldo and Melquiond).
    """
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = np.atleast_1d(total).view(U64).reshape(np.shape(total))
    inexact = np.isfinite(total) & (error != 0) & (bits & U64(1) == 0)
    toward = np.where((error > 0) == (total > 0), bits + U64(1), bits - U64(1))
    return np.where(inexact, toward, bits).view(F64)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float64, rounded once: with fractions, lane by lane, where numpy would round twice."""
    result = np.array(a * b + c)
    factors = np.broadcast_arrays(a, b, c)
    finite = np.isfinite(factors[0]) & np.isfinite(factors[1]) & np.isfinite(factors[2])
    for at in zip(*np.nonzero(finite & (factors[0] != 0) & (factors[1] != 0)), strict=True):
        x, y, z = (Fraction(float(factor[at])) for factor in factors)
        exact = x * y + z
        if exact:
            result[at] = _nearest_f64(exact)
        else:
            result[at] = 0.0
    return result


def _nearest_f64(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def to_integer(x: Array, low: int, high: int, dtype: Any) -> Array:
    """Truncate and saturate; NaN gives 0."""
    whole = np.asarray(x, F64)
    whole = np.where(np.isnan(whole), 0.0, np.trunc(whole))
    return np.clip(whole, low, high).astype(I64).astype(dtype)


def leading_zeros(x: Array) -> Array:
    """Count from bit 31; 0 gives -1."""
    count = 32 - np.frexp(x.astype(F64))[1]
    return np.where(x == 0, -1, count).astype(I32).view(U32)


def trailing_zeros(x: Array) -> Array:
    """Count from bit 0; 0 gives -1."""
    wide = x.astype(U64)
    lowest = wide & (~wide + U64(1))
    return np.where(wide == 0, -1, np.frexp(lowest.astype(F64))[1] - 1).astype(I32).view(U32)


def ones(x: Array) -> Array:
    """Count bits, as uint32."""
    x = x.astype(U64)
    x = x - ((x >> U64(1)) & U64(0x5555555555555555))
    x = (x & U64(0x3333333333333333)) + ((x >> U64(2)) & U64(0x3333333333333333))
    x = (x + (x >> U64(4))) & U64(0x0F0F0F0F0F0F0F0F)
    return ((x * U64(0x0101010101010101)) >> U64(56)).astype(U32)


def reverse_bits(x: Array) -> Array:
    """Reverse 32 bits."""
    as_bytes = np.ascontiguousarray(x).view(np.uint8).reshape((*x.shape, 4))
    return np.ascontiguousarray(_REVERSED_BYTE[as_bytes][..., ::-1]).view(U32)[..., 0]


def pair(low: Array, high: Array) -> Array:
    """Join two dwords to a uint64."""
    return (high.astype(U64) << U64(32)) | low.astype(U64)


def multiply_u64(a: Array, b: Array) -> Array:
    """Full unsigned product of dwords."""
    product: Array = a.astype(U64) * b.astype(U64)
    return product


def multiply_i64(a: Array, b: Array) -> Array:
    """Full signed product of dwords."""
    product: Array = a.astype(I64) * b.astype(I64)
    return product


def low_24(a: Array) -> Array:
    """Zero-extend the low 24 bits."""
    return a & U32(0xFFFFFF)


def signed_24(a: Array) -> Array:
    """Sign-extend the low 24 bits, as uint32."""
    return ((a << U32(8)).view(I32) >> I32(8)).view(U32)


def sign_extend(x: Array, bits: int) -> Array:
    """Sign-extend the low ``bits`` of dwords, as uint32."""
    shift = 32 - bits
    return ((x << U32(shift)).view(I32) >> I32(shift)).view(U32)


def field_unsigned(x: Array, offset: Array, width: Array) -> Array:
    """``v_bfe_u32``: offset and width below 32."""
    return (x >> (offset & U32(31))) & ((U32(1) << (width & U32(31))) - U32(1))


def field_signed(x: Array, offset: Array, width: Array) -> Array:
    """``v_bfe_i32``: the shift keeps the sign, so a field that reaches beyond bit 31 continues it."""
    width = width & U32(31)
    up = ((U32(32) - width) & U32(31)).view(I32)
    return np.where(width == 0, I32(0), ((x.view(I32) >> (offset & U32(31)).view(I32)) << up) >> up)


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """``v_perm_b32``: bytes 0-3 are of b, 4-7 of a, 8-11 sign bytes, 12 is 0, above is 0xFF."""
    both = pair(b, a)
    out = np.zeros(np.broadcast(both, selector).shape, U32)
    for i in range(4):
        which = ((selector >> U32(8 * i)) & U32(0xFF)).astype(U64)
        byte = (both >> (U64(8) * np.minimum(which, U64(7)))) & U64(0xFF)
        if (which > 7).any():
            for j, bit in enumerate((15, 31, 47, 63)):
                byte = np.where(which == U64(8 + j), ((both >> U64(bit)) & U64(1)) * U64(0xFF), byte)
            byte = np.where(which == U64(12), U64(0), byte)
            byte = np.where(which > U64(12), U64(0xFF), byte)
        out |= byte.astype(U32) << U32(8 * i)
    return out


def bit_operation(a: Array, b: Array, c: Array, table: int) -> Array:
    """``v_bitop3``: bit (a, b, c) of the truth table."""
    full = a.dtype.type(np.iinfo(a.dtype).max)
    out = np.zeros(np.broadcast(a, b, c).shape, a.dtype)
    for k in range(8):
        if table >> k & 1:
            out |= (a if k & 4 else a ^ full) & (b if k & 2 else b ^ full) & (c if k & 1 else c ^ full)
    return out


def sum_of_differences(a: Array, b: Array, c: Array) -> Array:
    """``v_sad_u8``."""
    total = c
    for i in range(4):
        x = ((a >> U32(8 * i)) & U32(255)).astype(I32)
        y = ((b >> U32(8 * i)) & U32(255)).astype(I32)
        total = total + np.abs(x - y).astype(U32)
    return total


def unpack_mask(low: Array, high: Array) -> Array:
    """Lane masks ``[W]``, two dwords -> bool ``[W, 64]``."""
    both = np.stack([low, high], axis=1)
    return np.unpackbits(both.view(np.uint8), axis=1, bitorder="little").view(bool)


def pack_mask(mask: Array) -> tuple[Array, Array]:
    """Invert :func:`unpack_mask`."""
    packed = np.packbits(np.ascontiguousarray(mask), axis=1, bitorder="little").view(U32)
    return packed[:, 0], packed[:, 1]
