"""Names with ranges and types behind them, as ``D0.u64[laneId]`` or ``VGPR[lane][VDST.u32]``: read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.gfx950emu.pcode.operators import as_type, bit_range, split_type, stored
from tools.gfx950emu.pcode.values import Unsupported, Value, of_bits

Function = Callable[["Scope"], Value]


@dataclass
class Scope:
    """What names mean while a text runs.

    Attributes:
        names: variables, and registers as bits.
        call: evaluates a function of the language by name.
        arrays: what is indexed by numbers rather than bits: get and set.
    """

    names: dict[str, Any]
    call: Callable[[str, list[Value]], Value]
    arrays: dict[str, tuple[Callable[..., Value], Callable[..., None]]] = field(default_factory=dict)


@dataclass
class Target:
    """A name with ranges and types behind it, to read or to write."""

    name: str
    steps: list[tuple[str, Any, Any]] = field(default_factory=list)

    def read(self, scope: Scope) -> Value:
        """Return what is there."""
        if self.name in scope.arrays:
            count, indices = self._indices(scope)
            return self.part(scope, scope.arrays[self.name][0](*indices), self.steps[count:])
        path = f"{self.name}.{self.steps[0][1]}" if self.steps and self.steps[0][0] == "type" else ""
        if path in scope.names:
            return self.part(scope, scope.names[path], self.steps[1:])
        if self.name not in scope.names:
            raise Unsupported(f"name {self.name}")
        return self.part(scope, scope.names[self.name])

    def part(self, scope: Scope, value: Value, steps: list[tuple[str, Any, Any]] | None = None) -> Value:
        """Apply ranges and types."""
        for kind, high, low in self.steps if steps is None else steps:
            value = (
                as_type(value, high) if kind == "type" else bit_range(value, high(scope), low(scope) if low else None)
            )
        return value

    def write(self, scope: Scope, x: Value) -> None:
        """Put a value there; a type turns numbers into it, bits stay bits."""
        types = [step[1] for step in self.steps if step[0] == "type"]
        if types:
            kind, width = split_type(types[-1] if self.steps[-1][0] == "type" else types[0])
            if self.steps[-1][0] == "type":
                x = x if x.is_float and kind in ("f", "bf") and x.width == width else stored(kind, width, x)
        if self.name in scope.arrays:
            count, indices = self._indices(scope)
            old = scope.arrays[self.name][0](*indices)
            scope.arrays[self.name][1](*indices, self._inserted(scope, old, x, self.steps[count:]))
            return
        if not any(step[0] == "range" for step in self.steps):
            scope.names[self.name] = x
            return
        scope.names[self.name] = self._inserted(scope, scope.names.get(self.name, Value("b", 64, 0)), x, self.steps)

    def _indices(self, scope: Scope) -> tuple[int, list[int]]:
        indices = [int(high(scope).x) for kind, high, low in self.steps[:2] if kind == "range" and low is None]
        return len(indices), indices

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
