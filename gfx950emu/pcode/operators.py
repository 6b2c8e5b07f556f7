"""Literals, types, casts and operators of the pseudo-code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from gfx950emu.pcode.values import Unsupported, Value, arithmetic, integer, of_bits, rounded

_TYPE = re.compile(r"^(bf|[uifb])(\d+)$")


def number(text: str) -> Value:
    """Read a literal."""
    width, _, rest = text.rpartition("'")
    match = re.fullmatch(r"(0x[0-9a-fA-F]+|[\d.]+)([UL]*)(F?)", rest)
    if not match:
        raise Unsupported(f"number {text}")
    body, suffix, is_float = match.groups()
    if "." in body or is_float:
        return rounded("f", int(width or (32 if is_float else 64)), float(body))
    kind = "u" if "U" in suffix else "i"
    size = int(width) if width else 64 if "LL" in suffix else 32
    value = int(body, 0)
    return integer("u" if width or value >> (size - 1) else kind, max(size, value.bit_length()), value)


def split_type(name: str) -> tuple[str, int]:
    """Split "u32" to its parts."""
    match = _TYPE.match(name)
    if not match:
        raise Unsupported(f"type {name}")
    return match[1], int(match[2])


def as_type(value: Value, name: str) -> Value:
    """Look at a value's low bits as a type; what is wider is filled with zeros."""
    kind, width = split_type(name)
    if value.kind == kind and value.width == width:
        return value
    if value.kind == "i" and kind in "ui" and width > value.width:
        return integer(kind, width, int(value.x))
    return of_bits(kind, width, value.bits)


def stored(kind: str, width: int, x: Value) -> Value:
    """Return what an assignment to a type leaves."""
    if kind in ("f", "bf"):
        return of_bits(kind, width, x.bits) if not x.is_float else rounded(kind, width, float(x.x))
    return integer(kind, width, x.bits if x.is_float else int(x.x))


def cast(kind: str, width: int, x: Value) -> Value:
    """Turn a number into another type; bits that are cast to a float are one already."""
    if kind == "f" and not x.is_float:
        return of_bits(kind, width, x.bits)
    if kind == "f":
        result = rounded(kind, width, float(x.x))
        return Value("f", width, result.x, x.signalling)
    if x.is_float:
        return integer(kind, width, math.trunc(x.x) if math.isfinite(x.x) else 0)
    return integer(kind, width, int(x.x))


def join(parts: list[Value]) -> Value:
    """Put bits side by side, the highest first."""
    bits = width = 0
    for part in parts:
        bits, width = bits << part.width | part.bits, width + part.width
    return Value("u", width, bits)


def bit_range(value: Value, high: Value, low: Value | None) -> Value:
    """Return bits ``high`` to ``low``, reversed where those are the other way round; without ``low`` one bit."""
    top = int(high.x)
    bottom = top if low is None else int(low.x)
    if bottom > top:
        width = bottom - top + 1
        return Value("u", width, int(f"{value.bits >> top & (1 << width) - 1:0{width}b}"[::-1], 2))
    width = top - bottom + 1
    return Value("u", width, value.bits >> bottom & (1 << width) - 1)


def unary(operator: str, x: Value) -> Value:
    """Apply a sign, ~ or !."""
    if operator == "+":
        return x
    if operator == "!":
        return Value("u", 1, int(not x))
    if operator == "~":
        return integer(x.kind, x.width, ~int(x.x))
    return Value(x.kind, x.width, -x.x, x.signalling) if x.is_float else integer(x.kind, x.width, -int(x.x))


def binary(operator: str, a: Value, b: Value) -> Value:
    """Apply an operator of two values."""
    if operator in _COMPARE:
        return Value("u", 1, int(_COMPARE[operator](a.x, b.x)))
    if operator in ("<<", ">>"):
        count = int(b.x)
        return integer(a.kind, a.width, int(a.x) << count if operator == "<<" else int(a.x) >> count)
    if operator in ("&", "|", "^"):
        kind, width = ("i" if a.kind == b.kind == "i" else "u"), max(a.width, b.width)
        x, y = integer(a.kind, width, int(a.x)), integer(b.kind, width, int(b.x))
        return integer(kind, width, {"&": x.bits & y.bits, "|": x.bits | y.bits, "^": x.bits ^ y.bits}[operator])
    if operator == "**":
        if a.x != 2:
            raise Unsupported("power of another number than 2")
        return Value("f", 64, math.ldexp(1.0, max(-400, min(400, int(b.x)))))
    return arithmetic(operator, a, b)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<>": lambda a, b: a < b or a > b,
    "is": lambda a, b: a == b and math.copysign(1.0, a) == math.copysign(1.0, b),
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip
