"""What loads and stores of every kind share: widths, and how a loaded value reaches its registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gfx950emu import pending
from gfx950emu.numeric import U32, Array, sign_extend
from gfx950emu.pending import Pending
from gfx950emu.waves import Group


@dataclass(frozen=True)
class Width:
    """What one lane of a load or store moves.

    Attributes:
        size: bytes in memory.
        signed: a load extends the sign.
        half: "low" or "high": only that half of the register takes part (d16).
    """

    size: int
    signed: bool = False
    half: str = ""

    @property
    def dwords(self) -> int:
        """Registers of a lane."""
        return (self.size + 3) // 4

    @property
    def keep(self) -> int:
        """Bits of the register that a load leaves."""
        return {"low": 0xFFFF0000, "high": 0xFFFF}.get(self.half, 0)


_WIDE: Final = {"dword": Width(4), "dwordx2": Width(8), "dwordx3": Width(12), "dwordx4": Width(16)}
LOADS: Final = {
    "ubyte": Width(1), "sbyte": Width(1, True), "ushort": Width(2), "sshort": Width(2, True), **_WIDE,
    "short_d16": Width(2, half="low"), "short_d16_hi": Width(2, half="high"),
    "ubyte_d16": Width(1, half="low"), "ubyte_d16_hi": Width(1, half="high"),
    "sbyte_d16": Width(1, True, "low"), "sbyte_d16_hi": Width(1, True, "high"),
}  # fmt: skip
"""By the end of a load's name, global_load_NAME."""
STORES: Final = {
    "byte": Width(1), "short": Width(2), **_WIDE,
    "byte_d16_hi": Width(1, half="high"), "short_d16_hi": Width(2, half="high"),
}  # fmt: skip


def finish_load(
    g: Group, first: int, values: Array, width: Width, lanes: Array | None, queue: str, pc: int,
    lds_addresses: Array | None = None, order: Array | None = None,
) -> None:  # fmt: skip
    """Write what was loaded to vector registers, or put it in flight in strict mode.

    Args:
        g: the waves.
        first: destination register.
        values: dwords ``[lanes that take part, n]``.
        width: how they are extended and which half they go to.
        lanes: flat indices of those lanes, None for all.
        queue: "vm" or "lgkm", what waits for it.
        pc: of the instruction.
        lds_addresses: of all lanes, where the value must be the same at the wait; None for other memory.
        order: what the load tells each wave, see ``memory_order.py``.
    """
    raw = values
    if width.signed:
        values = sign_extend(values, 8 * width.size)
        if width.half:
            values = values & U32(0xFFFF)
    if width.half == "high":
        values = values << U32(16)
    if g.run.strict:
        entry = Pending(pc, "vector", first, width.keep, values=_whole(g, values, lanes), mask=g.exec_mask().copy())
        entry.order = order
        if lds_addresses is not None:
            entry.size, entry.raw = width.size, _whole(g, raw, lanes)
            entry.addresses = lds_addresses.reshape(g.width, 64).copy()
        pending.push_load(g, queue, entry)
        return
    for j in range(values.shape[1]):
        register = g.v[first + j]
        if lanes is None:
            value = values[:, j].reshape(g.width, 64)
            g.v[first + j] = (register & U32(width.keep)) | value if width.keep else value
        else:
            flat = register.reshape(-1)
            flat[lanes] = (flat[lanes] & U32(width.keep)) | values[:, j] if width.keep else values[:, j]
        g.versions[first + j] += 1


def _whole(g: Group, values: Array, lanes: Array | None) -> Array:
    """Spread values of some lanes over ``[W, 64, n]``."""
    if lanes is None:
        return values.reshape(g.width, 64, -1)
    whole = np.zeros((g.width * 64, values.shape[1]), U32)
    whole[lanes] = values
    return whole.reshape(g.width, 64, -1)


def stored_values(g: Group, first: int, width: Width, lanes: Array | None = None) -> Array:
    """Return the registers that a store takes, ``[lanes that take part, n]``."""
    x = g.v[first : first + width.dwords].reshape(width.dwords, -1)
    if lanes is not None:
        x = x[:, lanes]
    return (x >> U32(16) if width.half == "high" else x).T


def in_flight(g: Group, pc: int, queue: str = "vm") -> None:
    """Count a store, or an atomic that returns nothing, in strict mode."""
    if g.run.strict:
        order = g.run.order.issued(g) if queue == "vm" and g.run.order is not None else None
        pending.push(g, queue, Pending(pc, "store", order=order))


def observe(g: Group, kind: str, size: int, addresses: Array, lanes: Array | None) -> None:
    """Tell a profile."""
    if g.run.observer is not None:
        g.run.observer.device(kind, size, addresses, lanes)
