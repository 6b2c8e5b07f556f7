"""Small floats, one code at a time, from their definition (OCP MX 1.0): shares nothing with the emulator's tables."""

from __future__ import annotations

import numpy as np

BITS = {0: 8, 1: 8, 2: 6, 3: 6, 4: 4}
"""Width of the formats that a matrix instruction knows by number: e4m3, e5m2, e2m3, e3m2, e2m1."""
_FIELDS = {0: (4, 3, 7), 1: (5, 2, 15), 2: (2, 3, 1), 3: (3, 2, 3), 4: (2, 1, 1)}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def value(code: int, fmt: int) -> float:
    exponent_bits, mantissa_bits, bias = _FIELDS[fmt]
    sign = code >> (exponent_bits + mantissa_bits)
    exponent, mantissa = (code >> mantissa_bits) & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        v = mantissa * 2.0 ** (1 - bias - mantissa_bits)
    else:
        v = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    return -v if sign else v


def unpack(words: np.ndarray, fmt: int) -> list[float]:
    """Return the 32 values of a lane's registers, the lowest bits first."""
    big, width = int.from_bytes(words.tobytes(), "little"), BITS[fmt]
    return [value((big >> (width * i)) & ((1 << width) - 1), fmt) for i in range(32)]


def to_e2m1(v: float) -> int:
    """Round to nearest even, saturate."""
    distance = np.abs(E2M1 - abs(v))
    nearest = np.nonzero(distance == distance.min())[0]
    code = next((int(c) for c in nearest if c % 2 == 0), int(nearest[0]))
    return code | (8 if np.signbit(v) else 0)


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 to the 16 bits of a bfloat16, nearest even, finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
