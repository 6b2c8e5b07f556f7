"""The one table from an instruction's name to what it does.

A builder looks at an instruction once and returns a step: a function that carries it out for a group of waves, or None
where there is nothing to do. The units (scalar, vector, memory, ...) enter their builders here when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tools.gfx950emu.disassemble import Instruction
from tools.gfx950emu.errors import UnsupportedInstruction
from tools.gfx950emu.waves import Group

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
        UnsupportedInstruction: its name is not in the table, or a modifier is not modelled.
    """
    builder = TABLE.get(i.name)
    if builder is None:
        raise UnsupportedInstruction(f"{i.name} is not in the emulator's table")
    try:
        return builder(i)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnsupportedInstruction(f"operands or modifiers: {type(error).__name__}: {error}") from error
