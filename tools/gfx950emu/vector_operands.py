"""How vector instructions read sources and write results: SDWA, DPP, op_sel, clamp, output modifiers.

CDNA3 ISA, sections 6.4 (SDWA), 6.5 (DPP), 6.2.3 (output modifiers), 6.2.4 (op_sel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tools.gfx950emu.disassemble import Instruction
from tools.gfx950emu.errors import UnsupportedInstruction
from tools.gfx950emu.numeric import F32, I32, I64, LANES, U16, U32, Array, flush_subnormals, sign_extend
from tools.gfx950emu.operands import Operand
from tools.gfx950emu.registers import TYPES, Read, Write, read, read_dword, to_bits, write
from tools.gfx950emu.table import Step, define
from tools.gfx950emu.waves import Group

KEEPS_UPPER_HALF: Final = {"v_mad_u16", "v_fma_f16", "v_mad_i16", "v_div_fixup_f16", "v_mad_f16", "v_bitop3_b16"}
"""16-bit VOP3 instructions that leave the half they don't write; the others zero it (gfx9)."""
_EXACT_SUM: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
}


def pure(names: str, result: str, sources: str, function: Callable[..., Array]) -> None:
    """Define vector instructions whose result is a function of their sources, lane by lane."""
    kinds = sources.split()

    def build(i: Instruction) -> Step:
        if len(i.operands) != len(kinds) + 1:
            raise UnsupportedInstruction(f"{len(i.operands)} operands, not {len(kinds) + 1}")
        reads = [source(i, k, kind) for k, kind in enumerate(kinds)]
        compute = _with_output_modifiers(i, function, result)
        return finish(i, reads, compute, destination(i, result), "f32" in (result, *kinds))

    define(names)(build)


def finish(i: Instruction, reads: list[Read], compute: Callable[..., Array], store: Write, flushable: bool) -> Step:
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
    op_sel = i.modifiers.get("op_sel", ())
    indexed = bool(i.gpr_index >> which & 1) and o.is_vector
    plain = read(o, kind, indexed=indexed, high_half=which < len(op_sel) and bool(op_sel[which]))
    if i.encoding != "dpp" or which:
        return plain
    move = dpp_move(i)

    def moved(g: Group) -> Array:
        x = np.broadcast_to(plain(g), (g.width, 64))[:, move.source]
        return np.where(move.valid(g), x, x.dtype.type(0))

    return moved


def sdwa_source(o: Operand, select: str, kind: str) -> Read:
    """Return a byte or word of a register, extended to the operand."""
    if o.is_constant or (select == "DWORD" and not o.sign_extend):
        return read(o, kind)
    dword = read_dword(o)
    if select == "DWORD":
        taken = dword
    else:
        part, number = select.rsplit("_", 1)
        bits = 8 if part == "BYTE" else 16
        shift, mask = U32(int(number) * bits), U32((1 << bits) - 1)
        if o.sign_extend:
            taken = lambda g: sign_extend((dword(g) >> shift) & mask, bits)  # noqa: E731
        else:
            taken = lambda g: (dword(g) >> shift) & mask  # noqa: E731
    width, dtype = TYPES[kind]
    negate, absolute = o.negate, o.absolute

    def typed(g: Group) -> Array:
        raw = taken(g)
        if kind == "bf16":
            x = (raw << U32(16)).view(F32)
        else:
            x = raw.view(dtype) if width == 32 else raw.astype(U16).view(dtype)
        x = np.abs(x) if absolute else x
        return -x if negate else x

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
    if i.gpr_index & 8:
        raise UnsupportedInstruction("s_set_gpr_idx on a destination")
    select = i.modifiers.get("dst_sel", "DWORD")
    if i.encoding == "sdwa" and select != "DWORD":
        store = _sdwa_destination(o, select, i.modifiers.get("dst_unused", "UNUSED_PAD"), kind)
    else:
        op_sel = i.modifiers.get("op_sel", ())
        high = len(op_sel) == len(i.operands) and bool(op_sel[-1])
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


def _with_output_modifiers(i: Instruction, function: Callable[..., Array], kind: str) -> Callable[..., Array]:
    clamp, factor, divisor = i.modifiers.get("clamp"), i.modifiers.get("mul"), i.modifiers.get("div")
    if not (clamp or factor or divisor):
        return function
    exact: Any = _EXACT_SUM.get(i.name)
    if clamp and kind[0] != "f":
        if exact is None:
            raise UnsupportedInstruction("clamp")
        return lambda a, b: np.clip(exact(a.astype(I64), b.astype(I64)), 0, 0xFFFFFFFF).astype(U32)
    scale = (factor or 1) / (divisor or 1)

    def modified(*sources: Array) -> Array:
        x = function(*sources)
        one = x.dtype.type(1)
        x = x * x.dtype.type(scale)
        return np.clip(np.where(np.isnan(x), one * 0, x), one * 0, one) if clamp else x

    return modified
