"""LDS instructions, and what goes through LDS's crossbar without touching it (CDNA3 ISA, chapter 11; CDNA4 ISA)."""

from __future__ import annotations

from typing import Final

import numpy as np

from gfx950emu import lds_memory, pending
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError, UnsupportedInstruction
from gfx950emu.formats import pack_codes, unpack_codes
from gfx950emu.memory_access import Width, finish_load
from gfx950emu.numeric import I64, LANES, U32, Array, sign_extend
from gfx950emu.operands import M0
from gfx950emu.pending import Pending
from gfx950emu.registers import Read, read
from gfx950emu.table import Step, define
from gfx950emu.waves import Group

_WIDE: Final = {"b32": Width(4), "b64": Width(8), "b96": Width(12), "b128": Width(16)}
READS: Final = {
    **_WIDE, "u8": Width(1), "i8": Width(1, True), "u16": Width(2), "i16": Width(2, True),
    "u8_d16": Width(1, half="low"), "u8_d16_hi": Width(1, half="high"),
    "i8_d16": Width(1, True, "low"), "i8_d16_hi": Width(1, True, "high"),
    "u16_d16": Width(2, half="low"), "u16_d16_hi": Width(2, half="high"),
}  # fmt: skip
WRITES: Final = {
    **_WIDE, "b8": Width(1), "b16": Width(2), "b8_d16_hi": Width(1, half="high"), "b16_d16_hi": Width(2, half="high"),
}  # fmt: skip


def load(g: Group, addresses: Array, size: int, lanes: Array | None) -> Array:
    """Read LDS, after the wave's own earlier writes."""
    if g.lgkm:
        pending.finish_own_lds(g)
    return lds_memory.load(g, addresses, size, lanes)


def store(g: Group, addresses: Array, values: Array, size: int, pc: int, lanes: Array | None, queue: str) -> None:
    """Write dwords ``[all lanes, n]`` to LDS: now, or in strict mode at the wait."""
    if not g.run.strict:
        lds_memory.store(g, addresses, values, size, lanes)
        return
    shape = (g.width, 64)
    entry = Pending(
        pc, "lds", size=size, values=np.array(values, U32, order="C").reshape(*shape, -1),
        mask=g.exec_mask().copy(), addresses=addresses.reshape(shape).copy(),
    )  # fmt: skip
    lds_memory.place(g, addresses, size, lanes)
    pending.push(g, queue, entry)


def store_direct(g: Group, values: Array, width: Width, offset: int, pc: int) -> None:
    """Write what a load brought straight to LDS: at M0 + offset + lane * size, bytes and words as dwords."""
    if width.signed:
        values = sign_extend(values, 8 * width.size)
    size = max(width.size, 4)
    addresses = g.s[M0].astype(I64)[:, None] + offset + LANES * size
    store(g, addresses.reshape(-1), values, size, pc, g.active_lanes(), "vm")


def _addresses(i: Instruction, which: int, offset: int) -> Read:
    """Return a function that gives byte addresses of all lanes, flat."""
    if i.modifiers.get("gds"):
        raise UnsupportedInstruction("gds")
    base = read(i.operands[which], "u32")
    return lambda g: np.broadcast_to(base(g).astype(I64) + offset, (g.width, 64)).reshape(-1)


@define(" ".join(f"ds_read_{width}" for width in READS))
def _read(i: Instruction) -> Step:
    width, first, pc = READS[i.name.removeprefix("ds_read_")], i.operands[0].index, i.pc
    where = _addresses(i, 1, i.modifiers.get("offset", 0))

    def step(g: Group) -> None:
        lanes, addresses = g.active_lanes(), where(g)
        finish_load(g, first, load(g, addresses, width.size, lanes), width, lanes, "lgkm", pc, addresses)

    return step


@define(" ".join(f"ds_write_{width}" for width in WRITES))
def _write(i: Instruction) -> Step:
    width, first, pc = WRITES[i.name.removeprefix("ds_write_")], i.operands[1].index, i.pc
    where = _addresses(i, 0, i.modifiers.get("offset", 0))

    def step(g: Group) -> None:
        values = g.v[first : first + width.dwords].reshape(width.dwords, -1).T
        if width.half == "high":
            values = values >> U32(16)
        store(g, where(g), values, width.size, pc, g.active_lanes(), "lgkm")

    return step


def _two_offsets(i: Instruction) -> tuple[int, int, int]:
    """Return the size of each of two accesses and their offsets, which count elements, or 64 elements (st64)."""
    size = 4 if i.name.endswith("b32") else 8
    unit = size * (64 if "st64" in i.name else 1)
    return size, i.modifiers.get("offset0", 0) * unit, i.modifiers.get("offset1", 0) * unit


@define("ds_read2_b32 ds_read2_b64 ds_read2st64_b32 ds_read2st64_b64")
def _read_two(i: Instruction) -> Step:
    size, *offsets = _two_offsets(i)
    where, first, pc = _addresses(i, 1, 0), i.operands[0].index, i.pc

    def step(g: Group) -> None:
        lanes, addresses = g.active_lanes(), where(g)
        halves = [load(g, addresses + offset, size, lanes) for offset in offsets]
        finish_load(g, first, np.concatenate(halves, axis=1), Width(2 * size), lanes, "lgkm", pc)

    return step


@define("ds_write2_b32 ds_write2_b64 ds_write2st64_b32 ds_write2st64_b64")
def _write_two(i: Instruction) -> Step:
    size, *offsets = _two_offsets(i)
    where, pc, count = _addresses(i, 0, 0), i.pc, size // 4
    registers = [o.index for o in i.operands[1:3]]

    def step(g: Group) -> None:
        lanes, addresses = g.active_lanes(), where(g)
        for offset, register in zip(offsets, registers, strict=True):
            values = g.v[register : register + count].reshape(count, -1).T
            store(g, addresses + offset, values, size, pc, lanes, "lgkm")

    return step


@define("ds_read_b64_tr_b16 ds_read_b64_tr_b8 ds_read_b64_tr_b4 ds_read_b96_tr_b6")
def _read_transposed(i: Instruction) -> Step:
    """CDNA4 ISA: sixteen lanes read a matrix with rows of 16 elements, and each gets a column of it."""
    bits = int(i.name.rsplit("b", 1)[1])
    size = 12 if bits == 6 else 8
    count = size * 8 // bits
    where, first, pc = _addresses(i, 1, i.modifiers.get("offset", 0)), i.operands[0].index, i.pc

    def step(g: Group) -> None:
        if g.active is not None:
            raise EmulatorError("a transposed LDS read with inactive lanes is not modelled")
        dwords = load(g, where(g), size, None)
        if bits == 16:
            elements = np.ascontiguousarray(dwords).view(np.uint16)
        else:
            elements = unpack_codes(dwords, bits, count) if bits < 8 else np.ascontiguousarray(dwords).view(np.uint8)
        # 16 lanes with ``count`` elements: rows of 16 elements, 16 // count lanes to a row.
        rows = elements.reshape(-1, count, 16).transpose(0, 2, 1)
        columns = np.ascontiguousarray(rows).reshape(-1, count)
        values = pack_codes(columns, bits) if bits < 8 else columns.view(U32).reshape(-1, size // 4)
        finish_load(g, first, values, Width(size), None, "lgkm", pc)

    return step


# ---------------------------------------------------------------- moves through the crossbar
def _finish_move(g: Group, register: int, x: Array, pc: int) -> None:
    lanes = g.active_lanes()
    flat = np.broadcast_to(x, (g.width, 64)).reshape(-1)
    finish_load(g, register, (flat if lanes is None else flat[lanes])[:, None], Width(4), lanes, "lgkm", pc)


@define("ds_bpermute_b32 ds_permute_b32")
def _permute(i: Instruction) -> Step:
    offset = U32(i.modifiers.get("offset", 0))
    address, value = read(i.operands[1], "u32"), read(i.operands[2], "u32")
    register, pc, backward = i.operands[0].index, i.pc, i.name == "ds_bpermute_b32"

    def step(g: Group) -> None:
        lane = ((np.broadcast_to(address(g), (g.width, 64)) + offset) >> U32(2) & U32(63)).astype(I64)
        x = np.broadcast_to(value(g), (g.width, 64))
        mask = g.exec_mask()
        if backward:
            moved = np.take_along_axis(np.where(mask, x, U32(0)), lane, axis=1)
        else:
            moved = np.zeros((g.width, 64), U32)
            for source in range(64):  # of several lanes that push to one, the highest wins
                waves = np.nonzero(mask[:, source])[0]
                moved[waves, lane[waves, source]] = x[waves, source]
        _finish_move(g, register, moved, pc)

    return step


@define("ds_swizzle_b32")
def _swizzle(i: Instruction) -> Step:
    value, register, pc, control = read(i.operands[1], "u32"), i.operands[0].index, i.pc, i.immediate
    mode = i.modifiers.get("offset")  # in words; its bits are the instruction's
    if control >> 8 > 0x80:
        raise UnsupportedInstruction(f"offset:{mode}: the modes ROTATE and FFT are not modelled")
    if control & 0x8000:
        quad = np.array([control >> (2 * k) & 3 for k in range(4)])
        source = LANES // 4 * 4 + quad[LANES % 4]
    else:
        keep, enable, flip = control & 31, control >> 5 & 31, control >> 10 & 31
        source = LANES // 32 * 32 + (((LANES % 32) & keep | enable) ^ flip)
    return lambda g: _finish_move(g, register, np.broadcast_to(value(g), (g.width, 64))[:, source], pc)
