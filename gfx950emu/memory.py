"""Global, flat and scratch memory, and scalar loads (CDNA3 ISA, chapters 8, 9 and 10).

Flat addresses are taken as global ones: LDS and scratch through flat addresses are not modelled.
"""

from __future__ import annotations

import re

import numpy as np

from gfx950emu import pending
from gfx950emu.device_memory import gather, scatter
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import MemoryFault, UnsupportedInstruction
from gfx950emu.lds import store_direct
from gfx950emu.memory_access import LOADS, STORES, finish_load, in_flight, observe, stored_values
from gfx950emu.numeric import I64, U32, U64, Array, pair
from gfx950emu.operands import Operand
from gfx950emu.pending import Pending
from gfx950emu.registers import Read, read, read_dword
from gfx950emu.table import Step, define
from gfx950emu.waves import Group


def address_of(i: Instruction, vector: Operand, scalar: Operand | None) -> Read:
    """Return a function that gives 64-bit addresses ``[W, 64]``: a VGPR pair, or an SGPR pair plus a 32-bit VGPR."""
    offset = I64(i.modifiers.get("offset", 0))
    if scalar is None or scalar.kind == "off":
        whole = read(vector, "i64")
        return lambda g: np.broadcast_to((whole(g) + offset).view(U64), (g.width, 64))
    low, high = read_dword(scalar, 0), read_dword(scalar, 1)
    within = read(vector, "u32") if vector.kind != "off" else None

    def get(g: Group) -> Array:
        address = pair(low(g), high(g)).view(I64) + offset
        if within is not None:
            address = address + within(g).astype(I64)
        return np.broadcast_to(address.view(U64), (g.width, 64))

    return get


def chosen(x: Array, lanes: Array | None) -> Array:
    """Return the flat elements of the lanes that take part."""
    flat = x.reshape(-1)
    return flat if lanes is None else flat[lanes]


@define(" ".join(f"{segment}_load_{width}" for segment in ("global", "flat") for width in LOADS))
def _load(i: Instruction) -> Step:
    width, first, pc = LOADS[i.name.split("_load_")[1]], i.operands[0].index, i.pc
    address = address_of(i, i.operands[1], i.operands[2] if len(i.operands) > 2 else None)
    coherent = bool(i.modifiers.get("sc1"))

    def step(g: Group) -> None:
        lanes = g.active_lanes()
        where = chosen(address(g), lanes)
        observe(g, "load", width.size, where, lanes)
        values = g.run.memory.load(where, width.size)
        order = g.run.order.load(g, where, width.size, lanes, coherent=coherent) if g.run.order else None
        finish_load(g, first, values, width, lanes, "vm", pc, order=order)

    return step


@define(" ".join(f"{segment}_store_{width}" for segment in ("global", "flat") for width in STORES))
def _store(i: Instruction) -> Step:
    width, first, pc = STORES[i.name.split("_store_")[1]], i.operands[1].index, i.pc
    address = address_of(i, i.operands[0], i.operands[2] if len(i.operands) > 2 else None)
    coherent = bool(i.modifiers.get("sc1"))

    def step(g: Group) -> None:
        lanes = g.active_lanes()
        where = chosen(address(g), lanes)
        observe(g, "store", width.size, where, lanes)
        g.run.memory.store(where, stored_values(g, first, width, lanes), width.size)
        if g.run.order:
            g.run.order.store(g, where, width.size, lanes, coherent)
        in_flight(g, pc)

    return step


@define(" ".join(f"global_load_lds_{width}" for width in LOADS if "d16" not in width and width != "dwordx2"))
def _load_to_lds(i: Instruction) -> Step:
    width, pc = LOADS[i.name.removeprefix("global_load_lds_")], i.pc
    address = address_of(i, i.operands[0], i.operands[1] if len(i.operands) > 1 else None)
    offset = i.modifiers.get("offset", 0)

    def step(g: Group) -> None:
        lanes = g.active_lanes()
        values = np.zeros((g.width * 64, width.dwords), U32)
        where = chosen(address(g), lanes)
        observe(g, "load to lds", width.size, where, lanes)
        values[slice(None) if lanes is None else lanes] = g.run.memory.load(where, width.size, "load to LDS")
        if g.run.order:
            g.run.order.load(g, where, width.size, lanes)
        store_direct(g, values, width, offset, pc)

    return step


# ---------------------------------------------------------------- caches
@define("buffer_wbl2")
def _write_back(i: Instruction) -> Step | None:
    """With sc1, to where the device's other XCDs find it; narrower scopes write nothing back (LLVM, AMDGPUUsage)."""
    if not _reaches_device(i):
        return None
    pc = i.pc

    def step(g: Group) -> None:
        if g.run.order:
            pending.push(g, "vm", Pending(pc, "write back", order=g.run.order.write_back(g)))

    return step


@define("buffer_inv")
def _invalidate(i: Instruction) -> Step | None:
    if not _reaches_device(i):
        return None

    def step(g: Group) -> None:
        if g.run.order:
            g.run.order.invalidate(g)

    return step


def _reaches_device(i: Instruction) -> bool:
    return "sc1" in i.arguments or bool(i.modifiers.get("sc1"))


# ---------------------------------------------------------------- scratch
@define(" ".join([*(f"scratch_load_{w}" for w in LOADS), *(f"scratch_store_{w}" for w in STORES)]))
def _scratch(i: Instruction) -> Step:
    is_load = i.name.startswith("scratch_load_")
    width = LOADS[i.name.removeprefix("scratch_load_")] if is_load else STORES[i.name.removeprefix("scratch_store_")]
    at, data = (i.operands[1], i.operands[0]) if is_load else (i.operands[0], i.operands[1])
    base = i.operands[2] if len(i.operands) > 2 else None
    parts = [read(o, "u32") for o in (at, base) if o is not None and o.kind != "off"]
    offset, pc, first = i.modifiers.get("offset", 0), i.pc, data.index

    def step(g: Group) -> None:
        lanes, size = g.active_lanes(), g.run.scratch_bytes
        within = np.full((g.width, 64), offset, I64)
        for part in parts:
            within = within + part(g).astype(I64)
        taken = chosen(within, lanes)
        if taken.size and (int(taken.min()) < 0 or int(taken.max()) + width.size > size):
            bad = int(np.nonzero((taken < 0) | (taken + width.size > size))[0][0])
            raise MemoryFault(f"scratch access of {width.size} bytes at {int(taken[bad])} of {size}", bad)
        where = chosen(within + (g.wave_ids[:, None].astype(I64) * 64 + np.arange(64)) * size, lanes)
        dwords = g.run.scratch.view(U32)
        if is_load:
            finish_load(g, first, gather(g.run.scratch, dwords, where, width.size), width, lanes, "vm", pc)
        else:
            scatter(g.run.scratch, dwords, where, stored_values(g, first, width, lanes), width.size)
            in_flight(g, pc)

    return step


# ---------------------------------------------------------------- scalar loads
_DWORDS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}


@define(" ".join(f"s_{buffer}load_{size}" for buffer in ("", "buffer_") for size in _DWORDS))
def _scalar_load(i: Instruction) -> Step:
    """Addresses are made multiples of 4; beyond a buffer's range a dword reads 0."""
    match = re.fullmatch(r"s_(buffer_)?load_(\w+)", i.name)
    assert match
    is_buffer, count = bool(match[1]), _DWORDS[match[2]]
    first, base = i.operands[0].index, i.operands[1].index
    if first + count > 126:
        raise UnsupportedInstruction("scalar load to EXEC")
    offset, pc = U64(i.modifiers.get("offset", 0)), i.pc
    register = read(i.operands[2], "u32", vector=False) if len(i.operands) > 2 else None

    def step(g: Group) -> None:
        start = pair(g.s[base], g.s[base + 1] & U32(0xFFFF))
        address = start + offset
        if register is not None:
            address = address + register(g).astype(U64)
        address = address & U64(0xFFFFFFFFFFFC)
        g.lanes = np.arange(g.width) * 64
        if is_buffer:
            values = np.zeros((g.width, count), U32)
            limit, within = g.s[base + 2].astype(I64), (address - start).view(I64)
            for j in range(count):
                inside = np.nonzero(within + 4 * j + 4 <= limit)[0]
                where = address[inside] + U64(4 * j)
                values[inside, j] = g.run.memory.load(where, 4, "scalar load")[:, 0]
                if g.run.order:
                    g.run.order.load(g, where, 4, g.lanes[inside], scalar=True)
        else:
            values = g.run.memory.load(address, 4 * count, "scalar load")
            if g.run.order:
                g.run.order.load(g, address, 4 * count, g.lanes, scalar=True)
        if g.run.strict:
            pending.push(g, "lgkm", Pending(pc, "scalar", first, values=values))
            g.s[first : first + count] = U32(g.run.poison)
        else:
            g.s[first : first + count] = values.T

    return step
