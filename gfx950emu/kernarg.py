"""The kernel argument segment, filled by the code object's metadata (AMDGPUUsage, "Code Object V5 Metadata")."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gfx950emu.program import Kernel


def pack_kernarg(
    kernel: Kernel,
    values: Sequence[int | float],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    dynamic_lds: int = 0,
) -> bytes:
    """Lay out arguments; those beyond ``values`` are zero, hidden ones get what the launch says."""
    hidden = {"hidden_grid_dims": 1 + (grid[1] > 1) + (grid[2] > 1), "hidden_dynamic_lds_size": dynamic_lds}
    for axis, name in enumerate("xyz"):
        hidden[f"hidden_block_count_{name}"] = grid[axis]
        hidden[f"hidden_group_size_{name}"] = block[axis]
    ends = [argument[".offset"] + argument[".size"] for argument in kernel.arguments]
    segment = bytearray(max([kernel.kernarg_size, *ends]))
    left = list(values)
    for argument in kernel.arguments:
        kind, offset, size = argument[".value_kind"], argument[".offset"], argument[".size"]
        if kind.startswith("hidden_"):
            value: int | float = hidden.get(kind, 0)
        elif left:
            value = left.pop(0)
        else:
            continue
        segment[offset : offset + size] = _encode(value, size)
    if left:
        raise ValueError(f"kernel {kernel.name} takes {len(values) - len(left)} arguments, not {len(values)}")
    return bytes(segment)


def _encode(value: int | float, size: int) -> bytes:
    if isinstance(value, float):
        return struct.pack("<f" if size == 4 else "<d", value)
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
