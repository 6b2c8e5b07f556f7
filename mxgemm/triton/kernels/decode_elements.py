"""Elements of every format that ``mxgemm.quant_gemm`` takes, as numbers: by integer arithmetic, the same everywhere.

A small float is its sign, exponent and mantissa moved to where fp32 has them; subnormals, whose move would need fp32
subnormals, are counted instead. NaN and infinities are put in by hand. Formats: ``mxgemm.scaled.formats``.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.interpreted import widen


@triton.jit
def decode_bytes(raw, TYPE: tl.constexpr):
    """One fp8 element a byte -> fp32 of the same shape, exactly. ``TYPE``: "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"."""
    if TYPE == "e4m3" or TYPE == "e4m3fnuz":
        value = small_float(raw, 3, 7 if TYPE == "e4m3" else 8, 7)
    else:
        value = small_float(raw, 2, 15 if TYPE == "e5m2" else 16, 7)
    magnitude = raw & 0x7F
    if TYPE == "e4m3":
        value = tl.where(magnitude == 0x7F, float("nan"), value)
    elif TYPE == "e5m2":
        value = tl.where(magnitude == 0x7C, tl.where(raw > 127, -float("inf"), float("inf")), value)
        value = tl.where(magnitude > 0x7C, float("nan"), value)
    else:
        value = tl.where(raw == 0x80, float("nan"), value)
    return value


@triton.jit
def decode_packed(raw, TYPE: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """Two elements a byte ``[R, K/2]`` -> fp32 ``[R, K]``, exactly.

    ``TYPE``: "e2m1", whose even k is the low nibble, or "int4", whose even k is the high one and means nibble - 8.
    """
    low = (raw & 15).to(tl.int32)
    high = (raw >> 4).to(tl.int32)
    if TYPE == "int4":
        return (tl.join(high, low).reshape(R, K) - 8).to(tl.float32)
    else:
        return small_float(tl.join(low, high).reshape(R, K), 1, 1, 3)


@triton.jit
def small_float(code, MANTISSA: tl.constexpr, BIAS: tl.constexpr, SIGN: tl.constexpr):
    """Codes of a small float -> fp32: ``SIGN`` is the bit of the sign, below it exponent and mantissa."""
    # A dtype for all that follows: constants beside a uint8 would be ones too.
    bits = code.to(tl.int32)
    magnitude = bits & ((1 << SIGN) - 1)
    normal = (magnitude << (23 - MANTISSA)) + ((127 - BIAS) << 23)
    # 2**(1 - BIAS - MANTISSA), the least subnormal, as fp32's bits.
    STEP: tl.constexpr = (127 + 1 - BIAS - MANTISSA) << 23
    step = tl.full(bits.shape, STEP, tl.int32).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < (1 << MANTISSA), magnitude.to(tl.float32) * step, normal.to(tl.float32, bitcast=True))
    return tl.where((bits >> SIGN) & 1 == 1, -value, value)


@triton.jit
def decode(raw, TYPE: tl.constexpr, R: tl.constexpr, K: tl.constexpr, INTERPRETED: tl.constexpr):
    """Elements as they are stored ``[R, K/pack]`` -> fp32 ``[R, K]``."""
    if TYPE == "bf16":
        return widen(raw, INTERPRETED)
    elif TYPE == "e2m1" or TYPE == "int4":
        return decode_packed(raw, TYPE, R, K)
    else:
        return decode_bytes(raw, TYPE)


@triton.jit
def decode_scale(raw, TYPE: tl.constexpr):
    """Scales as they are stored -> fp32: "fp32" as they are, "e8m0" powers of two (255 is NaN), "e4m3", "e5m2"."""
    if TYPE == "fp32":
        return raw
    elif TYPE == "e8m0":
        exponent = raw.to(tl.int32)
        bits = tl.where(exponent == 0, 1 << 22, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
        return bits.to(tl.float32, bitcast=True)
    else:
        return decode_bytes(raw, TYPE)
