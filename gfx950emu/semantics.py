"""The whole table: importing this module enters every unit's instructions into ``table.TABLE``."""

from gfx950emu import (
    atomics,
    buffers,
    control,
    conversions,
    lds,
    matrix,
    memory,
    scalar,
    vector,
    vector_packed,
    vector_special,
)
from gfx950emu.table import TABLE, Step, build

UNITS = (scalar, control, vector, vector_special, vector_packed, conversions, matrix, memory, buffers, atomics, lds)

__all__ = ["TABLE", "UNITS", "Step", "build"]
