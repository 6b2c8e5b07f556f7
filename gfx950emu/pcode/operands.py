"""What an instruction's operands hold, read without the emulator's own readers, as the pseudo-code's S0, S1 and S2."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from gfx950emu.disassemble import Instruction
from gfx950emu.effects import TWO_RESULTS
from gfx950emu.numeric import Array
from gfx950emu.operands import Operand

PACKED: Final = ("v_pk_", "v_dot2_", "v_dot2c_")
_TYPED = r"\b{name}(?:\[[^\]]*\])*\.(bf16|[fuib]\d+)"


@dataclass(frozen=True)
class Roles:
    """Which operands are what.

    Attributes:
        result: the destination, if any.
        second: a second one, a mask of carries.
        sources: S0, S1, S2: operands, or numbers that the instruction holds.
        mask: the mask that is read as VCC.
        literal: the constant that the text calls SIMM32.
    """

    result: Operand | None
    second: Operand | None
    sources: list[Operand | int]
    mask: Operand | None = None
    literal: Operand | None = None


def roles(i: Instruction) -> Roles:
    """Return the roles of an instruction's operands."""
    o, name = i.operands, i.name
    if name.startswith(("s_cmpk_", "s_addk_", "s_mulk_", "s_movk_", "s_cmovk_")):
        result = None if name.startswith("s_cmpk") else o[0]
        return Roles(result, None, [o[0], i.immediate] if result is None else [i.immediate])
    if name.startswith(("s_cmp_", "s_bitcmp")):
        return Roles(None, None, [*o])
    if name.startswith(TWO_RESULTS):
        wide = name.startswith("v_mad_")
        return Roles(o[0], o[1], [*o[2 : 5 if wide else 4]], o[4] if len(o) > 4 and not wide else None)
    if name == "v_cndmask_b32":
        return Roles(o[0], None, [*o[1:3]], o[3])
    if name in ("v_fmamk_f32", "v_fmaak_f32"):
        at = 2 if name == "v_fmamk_f32" else 3
        return Roles(o[0], None, [x for k, x in enumerate(o) if k and k != at], literal=o[at])
    return Roles(o[0], None, [*o[1:]])


def type_of(text: str, name: str) -> str:
    """Return the type that a text gives a source or a result, "" where none."""
    found = re.search(_TYPED.format(name=name), text)
    return found[1] if found else ""


def _constant_bits(o: Operand, kind: str, *, packed: bool, scalar: bool) -> int:
    """LLVM's rules: floats by the operand's width, but for packed 16-bit integers; integers sign-extended."""
    width = int(re.sub(r"\D", "", kind) or 32)
    if not isinstance(o.value, float):
        return (o.value << 32 if kind == "f64" and o.is_hex else o.value) & 0xFFFFFFFFFFFFFFFF
    if width == 64:
        return int(struct.unpack("<Q", struct.pack("<d", o.value))[0])
    single = int(struct.unpack("<I", struct.pack("<f", o.value))[0])
    if kind == "bf16":
        return single >> 16
    half = kind == "f16" or (width == 16 and not packed)
    return int(struct.unpack("<H", struct.pack("<e", o.value))[0]) if half and not scalar else single


def register_bits(o: Operand, v: Array, s: Array, lane: int) -> int:
    """Return what a register, or a pair, holds in one lane."""
    file = v[:, 0, lane] if o.is_vector else s[:, 0]
    return sum(int(file[o.index + k]) << (32 * k) for k in range(min(o.count, 2)))


def source_bits(i: Instruction, which: int, o: Operand | int, kind: str, v: Array, s: Array, lane: int) -> int:
    """Return source ``which`` as the text sees it: modifiers applied."""
    if isinstance(o, int):
        return o
    packed = i.name.startswith(PACKED)
    if o.is_constant:
        raw = _constant_bits(o, kind, packed=packed, scalar=i.name.startswith("s_"))
    else:
        raw = register_bits(o, v, s, lane)
    if i.name.startswith("s_"):
        return raw
    width = int(re.sub(r"\D", "", kind) or 32)
    sign = 1 << (width - 1)
    if (
        packed
        and kind != "u32"
        and not i.name.startswith("v_dot2c")
        and not (which == 2 and kind == "f32" and "dot2" in i.name)
    ):
        return _packed_bits(i, which, raw, width)
    if width == 16 and i.modifiers.bit("op_sel", which):
        raw >>= 16
    if o.modifiers.get("abs"):
        raw &= ~sign
    return raw ^ sign if o.modifiers.get("neg") else raw


def _packed_bits(i: Instruction, which: int, raw: int, width: int) -> int:
    """Put the chosen halves side by side, with their signs."""
    mask, sign = (1 << width) - 1, 1 << (width - 1)
    low = raw >> (width * i.modifiers.bit("op_sel", which)) & mask
    high = raw >> (width * i.modifiers.bit("op_sel_hi", which, 1)) & mask
    low ^= sign * i.modifiers.bit("neg_lo", which)
    high ^= sign * i.modifiers.bit("neg_hi", which)
    return low | high << width
