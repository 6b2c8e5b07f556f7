"""Typed scalars of the pseudo-code: integers that wrap, floats that round, bits that are neither."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

FORMATS: Final = {("f", 16): "e", ("f", 32): "f", ("f", 64): "d"}
_MANTISSA: Final = {("f", 16): 10, ("f", 32): 23, ("f", 64): 52, ("bf", 16): 7}
_LARGEST: Final = {("f", 16): 65504.0, ("f", 32): 3.4028234663852886e38, ("bf", 16): 3.3895313892515355e38}
_LOWEST: Final = {("f", 16): -14, ("f", 32): -126, ("bf", 16): -126}


class Unsupported(Exception):
    """The interpreter does not know something in a text."""


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar.

    Attributes:
        kind: "u", "i", "b" (bits), "f" or "bf".
        width: in bits.
        x: an int, negative where ``kind`` is "i" and the number is; of floats the number as a float.
        signalling: of a NaN.
    """

    kind: str
    width: int
    x: int | float
    signalling: bool = False

    @property
    def is_float(self) -> bool:
        """Say whether it is a float."""
        return self.kind in ("f", "bf")

    @property
    def bits(self) -> int:
        """As it stands in a register."""
        if not self.is_float:
            return int(self.x) & ((1 << self.width) - 1)
        mantissa = _MANTISSA[self.kind, self.width]
        if math.isnan(self.x):
            exponent = ((1 << (self.width - 1 - mantissa)) - 1) << mantissa
            return exponent | (1 if self.signalling else 1 << (mantissa - 1))
        if self.kind == "bf":
            return int.from_bytes(struct.pack("<f", self.x), "little") >> 16
        return int.from_bytes(struct.pack(f"<{FORMATS[self.kind, self.width]}", self.x), "little")

    def __bool__(self) -> bool:
        return bool(self.x)


def integer(kind: str, width: int, x: int) -> Value:
    """Wrap a number to a type."""
    x &= (1 << width) - 1
    return Value(kind, width, x - (1 << width) if kind == "i" and x >> (width - 1) else x)


def of_bits(kind: str, width: int, bits: int) -> Value:
    """Return bits as a type."""
    bits &= (1 << width) - 1
    if kind not in ("f", "bf"):
        return integer(kind, width, bits)
    if (kind, width) not in _MANTISSA:
        raise Unsupported(f"{kind}{width}")
    mantissa = _MANTISSA[kind, width]
    if kind == "bf":
        (x,) = struct.unpack("<f", (bits << 16).to_bytes(4, "little"))
    else:
        (x,) = struct.unpack(f"<{FORMATS[kind, width]}", bits.to_bytes(width // 8, "little"))
    signalling = math.isnan(x) and not bits >> (mantissa - 1) & 1
    return Value(
        kind, width, math.copysign(math.nan, -1.0 if bits >> (width - 1) else 1.0) if x != x else x, signalling
    )


def rounded(kind: str, width: int, x: float | Fraction, *, toward_zero: bool = False) -> Value:
    """Round a number once to a float type, to nearest even unless said otherwise."""
    if width == 64:
        try:
            return Value(kind, width, float(x))
        except OverflowError:
            return Value(kind, width, math.inf if x > 0 else -math.inf)
    if isinstance(x, float) and (not math.isfinite(x) or x == 0):
        return Value(kind, width, x)
    exact = Fraction(x)
    if exact == 0:
        return Value(kind, width, 0.0)
    magnitude, sign = abs(exact), 1.0 if exact > 0 else -1.0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, _LOWEST[kind, width]) - _MANTISSA[kind, width])
    count = magnitude / step
    whole = math.floor(count) if toward_zero else round(count)
    result = float(whole * step)
    if result > _LARGEST[kind, width]:
        result = _LARGEST[kind, width] if toward_zero else math.inf
    return Value(kind, width, sign * result)


def exact(v: Value) -> Fraction | None:
    """Return a finite number exactly, None for others."""
    return Fraction(v.x) if math.isfinite(v.x) else None


def arithmetic(operator: str, a: Value, b: Value) -> Value:
    """Add, subtract, multiply or divide."""
    if a.is_float or b.is_float:
        kind, width = _common_float(a, b)
        return rounded(kind, width, _float_operation(operator, float(a.x), float(b.x)))
    width = max(a.width, b.width)
    kind = "i" if a.kind == "i" and b.kind == "i" else "u"
    x, y = int(a.x), int(b.x)
    if operator == "/":
        raise Unsupported("division of integers")
    return integer(kind, width, {"+": x + y, "-": x - y, "*": x * y}[operator])


def _common_float(a: Value, b: Value) -> tuple[str, int]:
    floats = [v for v in (a, b) if v.is_float]
    widest = max(floats, key=lambda v: v.width)
    return widest.kind, widest.width


def _float_operation(operator: str, x: float, y: float) -> float:
    if operator == "/":
        if y == 0:
            return math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1.0, y)
        return x / y
    if operator == "*":
        return x * y
    return x + y if operator == "+" else x - y


def fused(a: Value, b: Value, c: Value) -> Value:
    """Multiply and add with one rounding."""
    x, y, z = (exact(v) for v in (a, b, c))
    total = None if x is None or y is None or z is None else x * y + z
    if total:
        return rounded(a.kind, a.width, total)
    return rounded(a.kind, a.width, float(a.x) * float(b.x) + float(c.x))  # zeros with their sign, Inf, NaN
