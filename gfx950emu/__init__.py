"""Functional emulator of gfx950 (CDNA4: MI350X, MI355X) code objects in numpy; see README.md beside this file."""

from gfx950emu.api import run_code_object
from gfx950emu.errors import (
    EmulatorError,
    HazardError,
    MemoryFault,
    MissingTool,
    OrderError,
    RaceError,
    UnsupportedInstruction,
)
from gfx950emu.launch import Stats

__all__ = [
    "EmulatorError",
    "HazardError",
    "MemoryFault",
    "MissingTool",
    "OrderError",
    "RaceError",
    "Stats",
    "UnsupportedInstruction",
    "run_code_object",
]
