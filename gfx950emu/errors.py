"""What can go wrong in an emulated kernel. The scheduler adds where: pc, instruction, workgroup, wave, lane."""

from __future__ import annotations


class EmulatorError(Exception):
    """Something that the kernel did, or that the emulator cannot do."""


class UnsupportedInstruction(EmulatorError):
    """The emulator does not know an instruction, or one of its modifiers."""


class LaneError(EmulatorError):
    """Something that one lane did.

    Attributes:
        position: of the lane among those that took part in the access.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class MemoryFault(LaneError):
    """A lane reached outside its buffer, LDS or scratch, or wrote where it may not."""


class RaceError(LaneError):
    """Strict mode: two waves touched the same LDS byte with no barrier between, or data changed before its wait."""


class OrderError(LaneError):
    """Strict mode: a lane reads what another wave stored, with nothing that makes the store visible to it."""


class HazardError(EmulatorError):
    """Strict mode: fewer wait states (s_nop) between two instructions than the ISA asks for."""


class MissingTool(RuntimeError):
    """A program that the emulator needs is not installed."""
