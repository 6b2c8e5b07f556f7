"""Between fp32 and the values and bytes of an element format or a scale, one element at a time."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.quantize_block import element_codes


@triton.jit
def round_e2m1(y, unit):
    """fp32 -> the nearest e2m1 value times ``unit``, a power of two: ties to even, saturating; no sign of zero.

    Adding 1.5 * 2**23 steps makes the float's own rounding round to steps: half a unit below 2 units, a unit below 4,
    then two.
    """
    m = tl.abs(y)
    y = tl.minimum(tl.maximum(y, -6.0 * unit), 6.0 * unit)
    magic = 6291456.0 * unit
    magic = tl.where(m < 2.0 * unit, magic, tl.where(m < 4.0 * unit, 2.0 * magic, 4.0 * magic))
    return (y + magic) - magic


@triton.jit
def power_of_two(byte):
    """E8M0 byte (int32) -> fp32, byte 0 as the subnormal that it is."""
    return tl.where(byte == 0, 1 << 22, byte << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(value, INTERPRETED: tl.constexpr, FNUZ: tl.constexpr = False):
    """fp32 that e4m3 holds exactly -> its byte; by arithmetic in the interpreter, which converts subnormals wrongly.

    ``FNUZ``: the same byte, which is worth half there, of a value without a negative zero.
    """
    if INTERPRETED:
        byte = element_codes(value, 8, 3).to(tl.uint8)
    elif FNUZ:
        byte = (value * 0.5).to(tl.float8e4b8).to(tl.uint8, bitcast=True)
    else:
        byte = value.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return byte


@triton.jit
def from_e4m3(byte, INTERPRETED: tl.constexpr, FNUZ: tl.constexpr = False):
    """e4m3 byte -> fp32; by arithmetic in the interpreter."""
    if INTERPRETED:
        bits = byte.to(tl.int32)
        half = (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).to(tl.int16).to(tl.float16, bitcast=True)
        if FNUZ:
            value = tl.where(bits == 0x80, float("nan"), half.to(tl.float32) * 128.0)
        else:
            value = tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
    elif FNUZ:
        value = byte.to(tl.float8e4b8, bitcast=True).to(tl.float32)
    else:
        value = byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return value
