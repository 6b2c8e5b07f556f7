"""The one table from an instruction's name to what it does.

A builder looks at an instruction once and returns a step: a function that carries it out for a group of waves, or None
where there is nothing to do. The units (scalar, vector, memory, ...) enter their builders here when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gfx950emu.disassemble import Instruction
from gfx950emu.errors import UnsupportedInstruction
from gfx950emu.modifiers import Modifiers, reason_for
from gfx950emu.operands import Operand
from gfx950emu.waves import Group

Step = Callable[[Group], None]
Builder = Callable[[Instruction], Step | None]

TABLE: Final[dict[str, Builder]] = {}


def define(names: str) -> Callable[[Builder], Builder]:
    """Enter a builder under every name in ``names``."""

    def enter(builder: Builder) -> Builder:
        for name in names.split():
            assert name not in TABLE, name
            TABLE[name] = builder
        return builder

    return enter


def build(i: Instruction) -> Step | None:
    """Return the step of an instruction.

    Raises:
        UnsupportedInstruction: its name is not in the table, or there is a modifier that its builder did not read
            and that ``modifiers.MEANINGLESS`` does not list.
    """
    builder = TABLE.get(i.name)
    if builder is None:
        raise UnsupportedInstruction(f"{i.name} is not in the emulator's table")
    watched = replace(i, operands=[_watched(o) for o in i.operands])
    try:
        step = builder(watched)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnsupportedInstruction(f"operands or modifiers: {type(error).__name__}: {error}") from error
    ignored = [text for text in watched.modifiers.unread() if reason_for(i.name, text.partition(":")[0]) is None]
    ignored += [f"{name} of {o.text}" for o in watched.operands if o.modifiers for name in o.modifiers.unread()]
    if ignored:
        raise UnsupportedInstruction(f"{i.mnemonic} with {', '.join(ignored)} is not modelled")
    return step


def _watched(o: Operand) -> Operand:
    return replace(o, modifiers=Modifiers(o.modifiers)) if o.modifiers else o
