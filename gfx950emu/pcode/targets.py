"""Names with ranges and types behind them, as ``D0.u64[laneId]`` or ``VGPR[lane][VDST.u32]``: read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gfx950emu.pcode.operators import as_type, bit_range, split_type, stored
from gfx950emu.pcode.values import Unsupported, Value, of_bits

Function = Callable[["Scope"], Value]


@dataclass(frozen=True)
class Elements:
    """An array: how many indices it takes, and how to get and set an element."""

    indices: int
    get: Callable[..., Value]
    set: Callable[..., None]


def list_array(width: int) -> Elements:
    """Return an array of bits, all zero."""
    values: dict[int, Value] = {}
    return Elements(1, lambda at: values.get(at, Value("b", width, 0)), values.__setitem__)


@dataclass
class Scope:
    """What names mean while a text runs.

    Attributes:
        names: variables, and registers as bits.
        call: evaluates a function of the language by name.
        arrays: what is indexed by numbers rather than bits.
    """

    names: dict[str, Any]
    call: Callable[[str, list[Value]], Value]
    arrays: dict[str, Elements] = field(default_factory=dict)


@dataclass
class Target:
    """A name with ranges and types behind it, to read or to write."""

    name: str
    steps: list[tuple[str, Any, Any]] = field(default_factory=list)

    def read(self, scope: Scope) -> Value:
        """Return what is there."""
        if self.name in scope.arrays:
            array, indices = self._element(scope)
            return self.part(scope, array.get(*indices), self.steps[array.indices :])
        path = f"{self.name}.{self.steps[0][1]}" if self.steps and self.steps[0][0] == "type" else ""
        if path in scope.names:
            return self.part(scope, scope.names[path], self.steps[1:])
        if self.name not in scope.names:
            raise Unsupported(f"name {self.name}")
        return self.part(scope, scope.names[self.name])

    def part(self, scope: Scope, value: Value, steps: list[tuple[str, Any, Any]] | None = None) -> Value:
        """Apply ranges and types. A range that reaches beyond the type before it is of the whole."""
        whole = value
        for kind, high, low in self.steps if steps is None else steps:
            if kind == "type":
                whole, value = value, as_type(value, high)
                continue
            top, bottom = high(scope), low(scope) if low else None
            value = bit_range(whole if int(top.x) >= value.width else value, top, bottom)
        return value

    def write(self, scope: Scope, x: Value) -> None:
        """Put a value there; a type turns numbers into it, bits stay bits."""
        types = [step[1] for step in self.steps if step[0] == "type"]
        if types:
            kind, width = split_type(types[-1] if self.steps[-1][0] == "type" else types[0])
            if self.steps[-1][0] == "type":
                x = x if x.is_float and kind in ("f", "bf") and x.width == width else stored(kind, width, x)
        if self.name in scope.arrays:
            array, indices = self._element(scope)
            array.set(*indices, self._inserted(scope, array.get(*indices), x, self.steps[array.indices :]))
            return
        if not any(step[0] == "range" for step in self.steps):
            scope.names[self.name] = x
            return
        scope.names[self.name] = self._inserted(scope, scope.names.get(self.name, Value("b", 64, 0)), x, self.steps)

    def _element(self, scope: Scope) -> tuple[Elements, list[int]]:
        array = scope.arrays[self.name]
        return array, [int(high(scope).x) for _, high, _ in self.steps[: array.indices]]

    def _inserted(self, scope: Scope, old: Value, x: Value, steps: list[tuple[str, Any, Any]]) -> Value:
        ranges = [(high, low) for kind, high, low in steps if kind == "range"]
        if not ranges:
            return x
        first, width, bits = 0, old.width, x.bits
        for high, low in ranges:
            top = int(high(scope).x)
            bottom = top if low is None else int(low(scope).x)
            if bottom > top:  # written the other way round: the bits are reversed
                top, bottom = bottom, top
                bits = int(f"{bits & (1 << top - bottom + 1) - 1:0{top - bottom + 1}b}"[::-1], 2)
            first, width = first + bottom, top - bottom + 1
        mask = (1 << width) - 1
        total = max(old.width, first + width)
        return of_bits("b", total, (old.bits & ~(mask << first)) | (bits & mask) << first)


class Joined(Target):
    """``{ high, low }`` on the left."""

    def __init__(self, parts: list[Target]) -> None:
        super().__init__("")
        self.parts = parts

    def write(self, scope: Scope, x: Value) -> None:
        """Deal the bits out, from the lowest."""
        bits = x.bits
        for part in reversed(self.parts):
            width = split_type(part.steps[-1][1])[1]
            part.write(scope, of_bits("b", width, bits))
            bits >>= width
