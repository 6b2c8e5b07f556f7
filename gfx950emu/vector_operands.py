"""How vector instructions read sources and write results: SDWA, DPP, op_sel, clamp.

CDNA3 ISA, sections 6.4 (SDWA), 6.5 (DPP), 6.2.3 (output modifiers), 6.2.4 (op_sel). The output modifiers mul and div
are refused: they do nothing while MODE.IEEE is 1 or denormals are kept, as compilers set both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.errors import UnsupportedInstruction
from gfx950emu.numeric import F32, I32, I64, LANES, U16, U32, Array, flush_subnormals, sign_extend
from gfx950emu.operands import Operand
from gfx950emu.registers import TYPES, Read, Write, is_float, read, read_dword, signed, to_bits, write
from gfx950emu.table import Step, define
from gfx950emu.waves import Group

KEEPS_UPPER_HALF: Final = {"v_mad_u16", "v_fma_f16", "v_mad_i16", "v_div_fixup_f16", "v_mad_f16", "v_bitop3_b16"}
"""16-bit VOP3 instructions that leave the half they don't write; the others zero it (gfx9)."""
_SATURATING: Final = {
    "v_add_u32", "v_sub_u32", "v_subrev_u32", "v_add_i32", "v_sub_i32", "v_add_u16", "v_sub_u16", "v_subrev_u16",
    "v_mad_u16",
}  # fmt: skip
"""Integer instructions with a clamp, whose functions are exact on int64."""


def pure(names: str, result: str, sources: str, function: Callable[..., Array], *, by_mode: bool = False) -> None:
    """Define vector instructions whose result is a function of their sources, lane by lane.

    Args:
        names: of the instructions.
        result: operand type of the result.
        sources: those of the sources.
        function: what they compute.
        by_mode: ``function`` takes MODE.IEEE before the sources.
    """
    kinds = sources.split()

    def build(i: Instruction) -> Step:
        if len(i.operands) != len(kinds) + 1:
            raise UnsupportedInstruction(f"{len(i.operands)} operands, not {len(kinds) + 1}")
        reads = [source(i, k, kind) for k, kind in enumerate(kinds)]
        if by_mode:
            reads.insert(0, ieee_mode)
        saturates = i.name in _SATURATING and result[0] != "f" and bool(i.modifiers.get("clamp"))
        compute = saturated(function, result) if saturates else function
        store = destination(i, result)
        if not saturates:
            store = clamped(i, result, store)
        return finish(reads, compute, store, "f32" in (result, *kinds))

    define(names)(build)


def ieee_mode(g: Group) -> Array:
    """Return MODE.IEEE as an array without dimensions."""
    return np.array(g.run.ieee)


def saturated(function: Callable[..., Array], kind: str) -> Callable[..., Array]:
    """Return a function of integers, exact on int64, whose result stops at the ends of its type."""
    limits = np.iinfo(TYPES[kind][1])
    return lambda *sources: np.clip(function(*[x.astype(I64) for x in sources]), limits.min, limits.max).astype(
        limits.dtype
    )


def clamped(i: Instruction, kind: str, store: Write) -> Write:
    """Return a ``store`` that obeys the clamp of a float result: to 0 .. 1, -0 to +0, NaN to 0 by MODE.DX10_CLAMP."""
    if not is_float(kind) or not i.modifiers.get("clamp"):
        return store
    return lambda g, x: store(g, clamp_float(g, x))


def clamp_float(g: Group, x: Array) -> Array:
    """Clamp to 0 .. 1."""
    one = x.dtype.type(1)
    result = np.where(x > 0, np.minimum(x, one), one * 0)
    return result if g.run.dx10_clamp else np.where(np.isnan(x), x, result)


def finish(reads: list[Read], compute: Callable[..., Array], store: Write, flushable: bool) -> Step:
    """Join sources, function and destination to a step; short forms keep the common cases fast."""
    if len(reads) == 1:
        (a,) = reads

        def plain(g: Group) -> None:
            store(g, compute(a(g)))
    elif len(reads) == 2:
        a, b = reads

        def plain(g: Group) -> None:
            store(g, compute(a(g), b(g)))
    else:

        def plain(g: Group) -> None:
            store(g, compute(*[get(g) for get in reads]))

    if not flushable:
        return plain

    def step(g: Group) -> None:
        if not g.flushes:
            return plain(g)
        store(g, flushed(g, compute(*[flushed(g, get(g)) for get in reads])))

    return step


def flushed(g: Group, x: Array) -> Array:
    """Flush float32 subnormals in the waves whose MODE says so."""
    return np.where(g.flush[:, None], flush_subnormals(x), x) if x.dtype == F32 else x


def source(i: Instruction, which: int, kind: str) -> Read:
    """Return source ``which`` (from 0, destinations not counted) of an instruction with one destination."""
    o = i.operands[which + 1]
    if i.encoding == "sdwa" and which < 2:
        return sdwa_source(o, i.modifiers.get(f"src{which}_sel", "DWORD"), kind)
    high_half = TYPES[kind][0] == 16 and not o.is_constant and bool(i.modifiers.bit("op_sel", which))
    plain = read(o, kind, indexed=is_indexed(i, which, o), high_half=high_half)
    if i.encoding != "dpp" or which:
        return plain
    move = dpp_move(i)

    def moved(g: Group) -> Array:
        x = np.broadcast_to(plain(g), (g.width, 64))[:, move.source]
        return np.where(move.valid(g), x, x.dtype.type(0))

    return moved


def is_indexed(i: Instruction, which: int, o: Operand) -> bool:
    """Say whether s_set_gpr_idx_on makes source ``which`` relative to M0; only vector registers are."""
    return bool(i.modifiers.bit("gpr_idx", which)) and o.is_vector


def sdwa_source(o: Operand, select: str, kind: str) -> Read:
    """Return a byte or word of a register, extended to the operand."""
    sign_extended = bool(o.modifiers.get("sext"))
    if o.is_constant or (select == "DWORD" and not sign_extended):
        return read(o, kind)
    dword = read_dword(o)
    if select == "DWORD":
        taken = dword
    else:
        part, number = select.rsplit("_", 1)
        bits = 8 if part == "BYTE" else 16
        shift, mask = U32(int(number) * bits), U32((1 << bits) - 1)
        if sign_extended:
            taken = lambda g: sign_extend((dword(g) >> shift) & mask, bits)  # noqa: E731
        else:
            taken = lambda g: (dword(g) >> shift) & mask  # noqa: E731
    width, dtype = TYPES[kind]
    if width == 64:
        raise UnsupportedInstruction("SDWA of 64 bits")
    change = signed(o, kind)

    def typed(g: Group) -> Array:
        raw = taken(g)
        if kind == "bf16":
            x = (raw << U32(16)).view(F32)
        else:
            x = raw.view(dtype) if width == 32 else raw.astype(U16).view(dtype)
        return change(x)

    return typed


@dataclass(frozen=True)
class Move:
    """A DPP control: where each lane reads, whether that lane exists, and which lanes row and bank masks enable."""

    source: Array
    exists: Array
    enabled: Array
    zero_fill: bool

    def valid(self, g: Group) -> Array:
        """Lanes whose source exists and is active; the others read 0."""
        if g.active is None:
            return np.broadcast_to(self.exists, (g.width, 64))
        return self.exists & g.active[:, self.source]

    def written(self, g: Group) -> Array:
        """Lanes that are written: enabled, and with a source unless bound_ctrl gives zeros."""
        if self.zero_fill:
            return np.broadcast_to(self.enabled, (g.width, 64))
        return self.valid(g) & self.enabled


def dpp_move(i: Instruction) -> Move:
    """Return the move of an instruction's DPP control."""
    row, lane = LANES // 16 * 16, LANES % 16
    all_exist = np.ones(64, bool)
    n = 0
    for control in DPP_CONTROLS:
        if control in i.modifiers:
            n = i.modifiers[control]
            break
    else:
        raise UnsupportedInstruction("DPP control")
    quad = np.array(n if control == "quad_perm" else [0, 0, 0, 0])
    last_of_row = np.maximum((LANES // 16 if n == 15 else LANES // 32 * 2) * 16 - 1, 0)
    moves: dict[str, Callable[[], tuple[Array, Array]]] = {
        "quad_perm": lambda: (LANES // 4 * 4 + quad[LANES % 4], all_exist),
        "row_shl": lambda: (row + (lane + n & 15), lane + n < 16),
        "row_shr": lambda: (row + (lane - n & 15), lane >= n),
        "row_ror": lambda: (row + (lane - n & 15), all_exist),
        "wave_shl": lambda: (LANES + 1 & 63, LANES < 63),
        "wave_rol": lambda: (LANES + 1 & 63, all_exist),
        "wave_shr": lambda: (LANES - 1 & 63, LANES >= 1),
        "wave_ror": lambda: (LANES - 1 & 63, all_exist),
        "row_mirror": lambda: (row + 15 - lane, all_exist),
        "row_half_mirror": lambda: (LANES // 8 * 8 + 7 - LANES % 8, all_exist),
        "row_newbcast": lambda: (row + n, all_exist),
        "row_bcast": lambda: (last_of_row, LANES // (16 if n == 15 else 32) > 0),
    }
    taken, exists = moves[control]()
    row_mask, bank_mask = i.modifiers.get("row_mask", 15), i.modifiers.get("bank_mask", 15)
    enabled = ((row_mask >> (LANES // 16)) & (bank_mask >> (LANES % 16 // 4)) & 1).astype(bool)
    return Move(taken, exists, enabled, bool(i.modifiers.get("bound_ctrl")))


DPP_CONTROLS: Final = (
    "quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_rol", "wave_shr", "wave_ror", "row_mirror",
    "row_half_mirror", "row_newbcast", "row_bcast",
)  # fmt: skip


def destination(i: Instruction, kind: str) -> Write:
    """Return the function that writes an instruction's first operand."""
    o = i.operands[0]
    select, unused = i.modifiers.get("dst_sel", "DWORD"), i.modifiers.get("dst_unused", "UNUSED_PAD")
    if i.encoding == "sdwa" and select != "DWORD":
        store = _sdwa_destination(o, select, unused, kind)
    else:
        last = len(i.operands) - 1
        high = TYPES[kind][0] == 16 and i.modifiers.size("op_sel") > last and bool(i.modifiers.bit("op_sel", last))
        store = write(o, kind, high_half=high, keep_rest=i.name in KEEPS_UPPER_HALF)
    if i.encoding != "dpp":
        return store
    move, index = dpp_move(i), o.index

    def masked(g: Group, x: Array) -> None:
        written = move.written(g)
        if written.all():
            return store(g, x)
        bits = to_bits(np.broadcast_to(x, (g.width, 64)), kind)
        g.write(index, np.where(written, bits, g.v[index]))

    return masked


def _sdwa_destination(o: Operand, select: str, unused: str, kind: str) -> Write:
    part, number = select.rsplit("_", 1)
    bits = 8 if part == "BYTE" else 16
    shift, mask, index = U32(int(number) * bits), U32((1 << bits) - 1), o.index
    up = U32(32 - bits - int(number) * bits)

    def store(g: Group, x: Array) -> None:
        value = (to_bits(x, kind) & mask) << shift
        if unused == "UNUSED_PRESERVE":
            value = (g.v[index] & ~(mask << shift)) | value
        elif unused == "UNUSED_SEXT":
            value = ((value << up).view(I32) >> up.view(I32)).view(U32)
        g.write(index, value)

    return store
