"""What an instruction's text says beyond its registers, and which of it a builder looked at.

A modifier that a builder does not look at would be dropped in silence; ``table.build`` refuses it instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_NEUTRAL: Final[dict[str, Any]] = {
    "dst_sel": "DWORD", "src0_sel": "DWORD", "src1_sel": "DWORD", "row_mask": 15, "bank_mask": 15,
}  # fmt: skip
"""Values that say nothing: the disassembler prints them always."""
_NEUTRAL_BIT: Final = {"op_sel_hi": 1}
"""Elements of lists that say nothing, where that is not 0."""
MEANINGLESS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...]] = (
    (
        ("global_load_", "global_store_", "flat_load_", "flat_store_", "buffer_load_", "buffer_store_", "scratch_"),
        ("sc0", "sc1", "nt"),
        "scope and reuse: memory is always coherent here; strict mode's order of memory looks at sc1",
    ),
    (
        ("global_atomic_", "flat_atomic_", "buffer_atomic_"),
        ("sc1", "nt"),
        "scope and reuse, as of loads (sc0 says whether the old value returns)",
    ),
    (
        ("buffer_inv", "buffer_wbl2"),
        ("sc0", "sc1"),
        "how far to write back and invalidate: strict mode's order of memory looks at sc1",
    ),
    (("s_load_", "s_buffer_load_"), ("glc",), "reuse: there are no caches"),
    (("v_cmp_", "v_cmpx_"), ("clamp",), "makes a signalling NaN an exception; there are no exceptions here"),
)
"""(starts of names, modifiers, reason): what may be written there and changes no result."""


class Modifiers(Mapping[str, Any]):
    """Modifiers by name, never changed; reading one is remembered, element by element for those that are lists."""

    __slots__ = ("_bits", "_read", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = values._values if isinstance(values, Modifiers) else dict(values or {})
        self._read: set[str] = set()
        self._bits: set[tuple[str, int]] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def bit(self, name: str, which: int, default: int = 0) -> int:
        """Return element ``which`` of a list, ``default`` where the list is absent or shorter."""
        self._bits.add((name, which))
        values = self._values.get(name, ())
        return int(values[which]) if which < len(values) else default

    def size(self, name: str) -> int:
        """Return the length of a list, which tells nothing of its elements; 0 where it is absent."""
        return len(self._values.get(name, ()))

    def extended(self, **more: Any) -> Modifiers:
        """Return these and more, with nothing read."""
        return Modifiers({**self._values, **more})

    def unread(self) -> list[str]:
        """Return what says something and was not read, as text."""
        found = []
        for name, value in self._values.items():
            if name in self._read or _NEUTRAL.get(name) == value:
                continue
            if isinstance(value, list):
                neutral = _NEUTRAL_BIT.get(name, 0)
                if all(element == neutral or (name, k) in self._bits for k, element in enumerate(value)):
                    continue
            found.append(name if value is True else f"{name}:{value}".replace(" ", ""))
        return found


def reason_for(name: str, modifier: str) -> str | None:
    """Return why a modifier, without its value, changes nothing on an instruction; None where it may."""
    for starts, modifiers, reason in MEANINGLESS:
        if modifier in modifiers and name.startswith(starts):
            return reason
    return None
