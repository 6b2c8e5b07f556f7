"""Operands as the disassembler prints them (LLVM, "Syntax of AMDGPU Instruction Operands")."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from gfx950emu.modifiers import Modifiers

EXEC, VCC, M0 = 126, 106, 124
"""Numbers of special scalar registers in the emulator's file of 128."""
_SPECIAL: Final = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1), "null": (125, 1),
    "flat_scratch": (102, 2), "flat_scratch_lo": (102, 1), "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2), "xnack_mask_lo": (104, 1), "xnack_mask_hi": (105, 1),
}  # fmt: skip
_TTMP: Final = 108
_NAMED: Final = ("off", "lds", "src_scc", "scc", "src_shared_base", "src_private_base")
_REGISTER = re.compile(r"^(s|v|a|ttmp)(?:(\d+)|\[(\d+):(\d+)\])$")


@dataclass(slots=True)
class Operand:
    """One operand.

    Attributes:
        kind: "s", "v", "a", "constant", "symbol", or the name itself ("off", "src_scc", ...).
        text: as printed.
        index: number of the first register; "v" and "a" share one file once ``Program`` has placed them.
        count: of registers.
        value: of a constant.
        is_hex: a constant that was printed as such: its bits are meant.
        modifiers: True for each of "neg", applied after "abs", on floats, and "sext" (SDWA).
    """

    kind: str
    text: str
    index: int = 0
    count: int = 1
    value: int | float = 0
    is_hex: bool = False
    modifiers: Modifiers = field(default_factory=Modifiers)

    @property
    def is_vector(self) -> bool:
        """Say whether it is a vector register."""
        return self.kind in ("v", "a")

    @property
    def is_constant(self) -> bool:
        """Say whether it is a literal or inline constant."""
        return self.kind == "constant"


def parse_operand(text: str) -> Operand:
    """Parse one operand."""
    o = Operand("symbol", text)
    inner, found = _modifiers(text)
    if found:
        o.modifiers = Modifiers(found)
    register = _REGISTER.match(inner)
    if register:
        o.kind, first, low, high = register[1], register[2], register[3], register[4]
        o.index = int(first or low)
        o.count = 1 if first else int(high) - int(low) + 1
        if o.kind == "ttmp":
            o.kind, o.index = "s", _TTMP + o.index
    elif inner in _SPECIAL:
        o.kind, (o.index, o.count) = "s", _SPECIAL[inner]
    elif inner in _NAMED:
        o.kind = inner
    else:
        _constant(o, inner)
    return o


def _modifiers(text: str) -> tuple[str, dict[str, bool]]:
    """Strip sext(), neg(), abs(), |x| and -x, and return them."""
    found: dict[str, bool] = {}
    while True:
        called = next((name for name in ("sext", "neg", "abs") if text.startswith(f"{name}(")), None)
        if called and text.endswith(")"):
            found[called], text = True, text[len(called) + 1 : -1]
        elif text.startswith("|") and text.endswith("|"):
            found["abs"], text = True, text[1:-1]
        elif re.match(r"-[^\d.]", text):
            found["neg"], text = True, text[1:]
        else:
            return text, found


def _constant(o: Operand, text: str) -> None:
    o.is_hex = text.startswith(("0x", "-0x"))
    try:
        o.value = int(text, 16 if o.is_hex else 10)
    except ValueError:
        try:
            o.value = float(text)
        except ValueError:
            return
    o.kind = "constant"
