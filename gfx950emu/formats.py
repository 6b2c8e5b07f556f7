"""Small floats: OCP Microscaling Formats 1.0 (e4m3, e5m2, e2m3, e3m2, e2m1) and E8M0 scales, as tables of float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gfx950emu.numeric import F64, U32, Array


@dataclass(frozen=True)
class SmallFloat:
    """An element format.

    Attributes:
        bits: of a code.
        values: of every code.
        magnitudes: finite non-negative values in code order.
        midpoints: between neighbours of ``magnitudes``.
        overflow: what rounds to it or above is beyond the largest finite value.
        nan: code of NaN, without sign; None where every code is finite.
    """

    bits: int
    values: Array
    magnitudes: Array
    midpoints: Array
    overflow: float
    nan: int | None


def _make(exponent_bits: int, mantissa_bits: int, bias: int) -> SmallFloat:
    bits = 1 + exponent_bits + mantissa_bits
    values = np.zeros(1 << bits)
    for code in range(1 << bits):
        sign = -1.0 if code >> (bits - 1) else 1.0
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        values[code] = sign * (fraction + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
        if exponent_bits == 4 and code & 0x7F == 0x7F:
            values[code] = np.nan
        if exponent_bits == 5 and exponent == 31:
            values[code] = np.nan if fraction else sign * np.inf
    half = values[: 1 << (bits - 1)]
    magnitudes = half[np.isfinite(half)]
    # The next value would be one step further; halfway to it, a tie goes to the even code.
    step = magnitudes[-1] - magnitudes[-2]
    halfway = float(magnitudes[-1] + step / 2)
    overflow = float(np.nextafter(halfway, np.inf)) if magnitudes.size % 2 else halfway
    nan = {4: 0x7F, 5: 0x7E}.get(exponent_bits)
    return SmallFloat(bits, values, magnitudes, (magnitudes[1:] + magnitudes[:-1]) / 2, overflow, nan)


FP8: Final = _make(4, 3, 7)
BF8: Final = _make(5, 2, 15)
FP6: Final = _make(2, 3, 1)
BF6: Final = _make(3, 2, 3)
FP4: Final = _make(2, 1, 1)
BY_NAME: Final = {"fp8": FP8, "bf8": BF8, "fp6": FP6, "bf6": BF6, "fp4": FP4}
MATRIX_FORMATS: Final = (FP8, BF8, FP6, BF6, FP4)
"""By the number that CBSZ and BLGP of v_mfma_*_f8f6f4 give."""
E8M0: Final = np.concatenate([2.0 ** (np.arange(255) - 127.0), [np.nan]])
_BYTE = np.arange(256)
TWO_FP4: Final = FP4.values[_BYTE & 15] + 1j * FP4.values[_BYTE >> 4]
"""Values of the two codes of every byte, as one complex number: numpy takes single elements fastest."""


def encode(x: Array, fmt: SmallFloat, sign: Array) -> Array:
    """Round to the nearest code, ties to even, as uint32; the sign is that of another array.

    fp8 overflows to its NaN, the other formats saturate. NaN becomes the largest code in fp4.
    """
    magnitude = np.abs(np.asarray(x, F64))
    code = np.searchsorted(fmt.midpoints, magnitude, side="left")
    tie = fmt.midpoints[np.minimum(code, fmt.midpoints.size - 1)] == magnitude
    code = np.where(tie & (code < fmt.midpoints.size) & (code & 1 == 1), code + 1, code).astype(U32)
    if fmt.nan is not None:
        nan = ~(magnitude < fmt.overflow) if fmt is FP8 else np.isnan(magnitude)
        code = np.where(nan, U32(fmt.nan), code)
    return code | (np.signbit(sign).astype(U32) << U32(fmt.bits - 1))


def scale_of(scale: Array) -> Array:
    """Value of the fp32 scale operand of ``v_cvt_scalef32_*``: only its exponent counts."""
    return E8M0[(scale.view(U32) >> U32(23)) & U32(255)]


def unpack_codes(dwords: Array, bits: int, count: int) -> Array:
    """Dwords ``[n, d]`` -> ``count`` codes of ``bits`` each, lowest bits first, uint8 ``[n, count]``."""
    single = np.unpackbits(np.ascontiguousarray(dwords).view(np.uint8), axis=1, bitorder="little")
    weights = 1 << np.arange(bits, dtype=np.uint8)
    return (single.reshape(dwords.shape[0], count, bits) * weights).sum(-1).astype(np.uint8)


def pack_codes(codes: Array, bits: int) -> Array:
    """Invert :func:`unpack_codes`."""
    single = ((codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1).astype(np.uint8)
    return np.packbits(single.reshape(codes.shape[0], -1), axis=1, bitorder="little").view(U32)
