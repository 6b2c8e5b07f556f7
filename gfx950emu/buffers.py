"""Buffer instructions with a resource descriptor (CDNA3 ISA, section 9.1).

What public text leaves open is done as AMD's own kernels need it: without IDXEN, or with stride 0, each dword is
checked in bytes, offset + 4 <= num_records - soffset; with IDXEN and a stride the index alone is checked. The sum of
the VGPR's offset and the instruction's wraps at 32 bits. (AMD's emulator has it so too: rocjitsu, addr_calc_buffer.h.)
Out of range loads give 0, stores are dropped. Swizzled buffers, and those that add the lane's number, are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gfx950emu.atomics import NAMES, device_atomic, returns
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError
from gfx950emu.lds import store_direct
from gfx950emu.memory_access import LOADS, STORES, Width, finish_load, in_flight, observe, stored_values
from gfx950emu.numeric import I64, U32, U64, Array, pair
from gfx950emu.operands import Operand
from gfx950emu.registers import read, read_dword
from gfx950emu.table import Step, define
from gfx950emu.waves import Group

ADD_TID_ENABLE: Final = U32(1 << 23)
"""In the last dword of a descriptor."""


@dataclass(slots=True)
class Place:
    """Where an access of every lane goes.

    Attributes:
        address: 64-bit, ``[W, 64]``.
        within: byte offset that the range check sees.
        limit: bytes that it may reach.
        index_in_range: the outcome for lanes that are checked by index, None where all are checked by bytes.
        by_bytes: which are, where some are not.
    """

    address: Array
    within: Array
    limit: Array
    index_in_range: Array | None
    by_bytes: Array | None

    def allowed(self, last: int) -> Array:
        """Lanes for which byte ``last`` (not included) is in range."""
        inside = self.within + last <= self.limit
        if self.index_in_range is not None and self.by_bytes is not None:
            inside = np.where(self.by_bytes, inside, True) & self.index_in_range
        return np.broadcast_to(inside, self.address.shape)


class Addressing:
    """The address of a buffer instruction: descriptor, soffset, and what the VGPRs hold."""

    def __init__(self, i: Instruction, operands: list[Operand]) -> None:
        vector, resource, scalar = operands
        self.offset = i.modifiers.get("offset", 0)
        offset_enabled, index_enabled = bool(i.modifiers.get("offen")), bool(i.modifiers.get("idxen"))
        self.resource = resource.index
        self.scalar = read(scalar, "u32")
        self.index = read_dword(vector, 0) if index_enabled else None
        self.register = read_dword(vector, 1 if index_enabled else 0) if offset_enabled else None

    def place(self, g: Group) -> Place:
        """Compute every lane's address."""
        low, high, records = (g.s[self.resource + k] for k in range(3))
        if int(high.max()) >> 30:
            raise EmulatorError("swizzled buffers are not modelled")
        if (g.s[self.resource + 3] & ADD_TID_ENABLE).any():
            raise EmulatorError("a buffer descriptor with ADD_TID_ENABLE is not modelled")
        base = pair(low, high & U32(0xFFFF))[:, None].view(I64)
        stride = ((high >> U32(16)) & U32(0x3FFF))[:, None].astype(I64)
        count, scalar = records[:, None].astype(I64), self.scalar(g).astype(I64)
        within = np.full((1, 1), self.offset, I64)
        if self.register is not None:
            within = (within + self.register(g)) & I64(0xFFFFFFFF)
        in_range = by_bytes = None
        if self.index is not None:
            index, by_bytes = self.index(g).astype(I64), stride == 0
            in_range = np.where(by_bytes, True, index < count)
            within = within + index * stride
        within = np.broadcast_to(within, (g.width, 64))
        return Place((base + within + scalar).view(U64), within, count - scalar, in_range, by_bytes)


def _load_dwords(g: Group, place: Place, width: Width, what: str, coherent: bool) -> tuple[Array, Array | None]:
    """Return ``[W * 64, n]``, 0 where a dword is out of range or its lane inactive, and what a load with sc1 tells."""
    flat = place.address.reshape(-1)
    whole = place.allowed(width.size)
    lanes = g.active_lanes(None if whole.all() else whole)
    where = flat if lanes is None else flat[lanes]
    observe(g, what, width.size, where, lanes)
    loaded = g.run.memory.load(where, width.size, f"buffer {what}")
    told = g.run.order.load(g, where, width.size, lanes, coherent=coherent) if g.run.order else None
    if lanes is None:
        return loaded, told
    values = np.zeros((g.width * 64, width.dwords), U32)
    values[lanes] = loaded
    if not whole.all():
        for j in range(width.dwords - 1):
            lanes = g.active_lanes(place.allowed(4 * j + 4) & ~whole)
            assert lanes is not None
            where = flat[lanes] + U64(4 * j)
            values[lanes, j] = g.run.memory.load(where, 4, f"buffer {what}")[:, 0]
            if g.run.order:
                g.run.order.load(g, where, 4, lanes, coherent=coherent)
    return values, told


def _goes_to_lds(i: Instruction) -> bool:
    return bool(i.modifiers.get("lds")) or i.operands[-1].kind == "lds"


@define(" ".join(f"buffer_load_{width}" for width in LOADS))
def _load(i: Instruction) -> Step:
    width, pc, coherent = LOADS[i.name.removeprefix("buffer_load_")], i.pc, bool(i.modifiers.get("sc1"))
    if _goes_to_lds(i):
        to_lds, offset = Addressing(i, i.operands[:3]), i.modifiers.get("offset", 0)

        def direct(g: Group) -> None:
            values, _ = _load_dwords(g, to_lds.place(g), width, "load to lds", coherent)
            store_direct(g, values, width, offset, pc)

        return direct
    addressing, first = Addressing(i, i.operands[1:4]), i.operands[0].index

    def step(g: Group) -> None:
        values, told = _load_dwords(g, addressing.place(g), width, "load", coherent)
        lanes = g.active_lanes()
        finish_load(g, first, values if lanes is None else values[lanes], width, lanes, "vm", pc, order=told)

    return step


@define(" ".join(f"buffer_store_{width}" for width in STORES))
def _store(i: Instruction) -> Step:
    width, pc, first = STORES[i.name.removeprefix("buffer_store_")], i.pc, i.operands[0].index
    addressing, coherent = Addressing(i, i.operands[1:4]), bool(i.modifiers.get("sc1"))

    def step(g: Group) -> None:
        place = addressing.place(g)
        flat, whole = place.address.reshape(-1), place.allowed(width.size)
        lanes = g.active_lanes(None if whole.all() else whole)
        where = flat if lanes is None else flat[lanes]
        observe(g, "store", width.size, where, lanes)
        g.run.memory.store(where, stored_values(g, first, width, lanes), width.size, "buffer store")
        if g.run.order:
            g.run.order.store(g, where, width.size, lanes, coherent)
        if not whole.all():
            for j in range(width.dwords - 1):
                lanes = g.active_lanes(place.allowed(4 * j + 4) & ~whole)
                assert lanes is not None
                values = g.v[first + j].reshape(-1)[lanes][:, None]
                where = flat[lanes] + U64(4 * j)
                g.run.memory.store(where, values, 4, "buffer store")
                if g.run.order:
                    g.run.order.store(g, where, 4, lanes, coherent)
        in_flight(g, pc)

    return step


@define(" ".join(f"buffer_atomic_{name}" for name in NAMES))
def _atomic(i: Instruction) -> Step:
    kind, data = i.name.removeprefix("buffer_atomic_"), i.operands[0].index
    addressing, size = Addressing(i, i.operands[1:4]), 8 if kind.endswith(("x2", "f64")) else 4
    return device_atomic(
        i,
        kind,
        lambda g: addressing.place(g).address,
        data,
        data if returns(i) else None,
        lambda g: addressing.place(g).allowed(size),
    )
