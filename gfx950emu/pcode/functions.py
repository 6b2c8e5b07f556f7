"""The functions that the pseudo-code calls and does not define."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from gfx950emu.pcode.language import Statement
from gfx950emu.pcode.operators import as_type, split_type
from gfx950emu.pcode.targets import Scope
from gfx950emu.pcode.values import Unsupported, Value, fused, integer, rounded

_CONVERSION = re.compile(r"(bf16|[fui]\d+)_to_(bf16|[fui]\d+)")
_FIELDS: Final = {("f", 16): (5, 10), ("f", 32): (8, 23), ("f", 64): (11, 52)}


class Functions:
    """Functions by name; one that is an instruction's name runs that instruction's own text."""

    def __init__(self, programs: Mapping[str, Statement], ieee: bool = True) -> None:
        self.programs, self.ieee = programs, ieee

    def scope(self, names: Mapping[str, Any]) -> Scope:
        """Return a scope with these names, the constants, and MODE."""
        known = {
            "INF": Value("f", 64, math.inf), "WAVE_MODE.IEEE": Value("u", 1, int(self.ieee)),
            "ROUND_MODE": integer("i", 32, 0), "ROUND_NEAREST_EVEN": integer("i", 32, 0),
            "ROUND_TOWARD_ZERO": integer("i", 32, 3),
        }  # fmt: skip
        scope = Scope({**known, **names}, lambda name, values: self.call(scope, name, values))
        return scope

    def call(self, scope: Scope, name: str, values: list[Value]) -> Value:
        """Evaluate one."""
        if name in _SIMPLE:
            return _SIMPLE[name](*values)
        match = _CONVERSION.fullmatch(name)
        if match:
            return _converted(values[0], match[2], toward_zero=scope.names["ROUND_MODE"].x == 3)
        if name not in self.programs:
            raise Unsupported(f"function {name}")
        inner = self.scope({f"S{k}": value for k, value in enumerate(values)} | {"D0": Value("b", 64, 0)})
        self.programs[name](inner)
        result = inner.names["D0"]
        assert isinstance(result, Value)
        if name.startswith("s_"):
            return as_type(result, "i32")
        return as_type(result, f"{values[0].kind}{values[0].width}")


def _converted(x: Value, to: str, *, toward_zero: bool) -> Value:
    kind, width = split_type(to)
    if kind in ("f", "bf"):
        return rounded(kind, width, x.x if x.is_float else int(x.x), toward_zero=toward_zero)
    number = 0 if math.isnan(x.x) else x.x
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind == "i" else (0, (1 << width) - 1)
    return Value(kind, width, max(low, min(high, math.trunc(number) if math.isfinite(number) else number)))


def _flag(test: bool) -> Value:
    return Value("u", 1, int(test))


def _floor(x: Value, function: Callable[[float], int] = math.floor) -> Value:
    if not math.isfinite(x.x) or x.x == 0:
        return x
    return Value(x.kind, x.width, math.copysign(float(function(float(x.x))), x.x))


def _absolute(x: Value) -> Value:
    return Value(x.kind, x.width, abs(x.x), x.signalling)


def _exponent(x: Value) -> Value:
    bits, mantissa = _FIELDS[x.kind, x.width]
    return integer("i", 32, x.bits >> mantissa & (1 << bits) - 1)


def _mantissa(x: Value) -> Value:
    return Value(x.kind, x.width, math.frexp(x.x)[0])


def _extended(x: Value, count: Value) -> Value:
    width = int(count.x)
    if width == 0 or width >= x.width:
        return integer(x.kind, x.width, 0 if width == 0 else int(x.x))
    return integer(x.kind, x.width, integer("i", width, x.bits).x)  # type: ignore[arg-type]


def _square_root(x: Value) -> Value:
    return rounded(x.kind, x.width, math.sqrt(x.x) if x.x >= 0 else math.nan)


_SIMPLE: Final[dict[str, Callable[..., Value]]] = {
    "isNAN": lambda x: _flag(math.isnan(x.x)),
    "isSignalNAN": lambda x: _flag(math.isnan(x.x) and x.signalling),
    "isQuietNAN": lambda x: _flag(math.isnan(x.x) and not x.signalling),
    "cvtToQuietNAN": lambda x: Value(x.kind, x.width, x.x),
    "exponent": _exponent,
    "mantissa": _mantissa,
    "sign": lambda x: _flag(math.copysign(1.0, x.x) < 0),
    "abs": _absolute,
    "floor": _floor,
    "trunc": lambda x: _floor(x, math.trunc),
    "fract": lambda x: rounded(x.kind, x.width, x.x - math.floor(x.x) if math.isfinite(x.x) else math.nan),
    "isEven": lambda x: _flag(math.isfinite(x.x) and x.x % 2 == 0),
    "sqrt": _square_root,
    "fma": fused,
    "signext": lambda x: integer("i", 64, int(x.x)),
    "signext_from_bit": _extended,
}
