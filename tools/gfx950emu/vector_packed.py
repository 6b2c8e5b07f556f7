"""Packed arithmetic, VOP3P: two 16-bit or two 32-bit operations an instruction (CDNA3 ISA, section 12.14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tools.gfx950emu.disassemble import Instruction
from tools.gfx950emu.numeric import F16, F32, F64, I16, U16, U32, Array, fma
from tools.gfx950emu.registers import Read, read, read_dword, to_bits
from tools.gfx950emu.table import Step, define
from tools.gfx950emu.vector_operands import flushed
from tools.gfx950emu.waves import Group

Function = Callable[..., Array]


def _selects(i: Instruction, count: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Which half of each source the low and the high result take, and which of those are negated."""
    m = i.modifiers
    zeros, ones = [0] * count, [1] * count
    return m.get("op_sel", zeros), m.get("op_sel_hi", ones), m.get("neg_lo", zeros), m.get("neg_hi", zeros)


def _negated(get: Read, negate: int) -> Read:
    return (lambda g: -get(g)) if negate else get


# ---------------------------------------------------------------- 32 bits
def _read_32(i: Instruction, which: int, half: int, negate: int, kind: str) -> Read:
    o = i.operands[which]
    if o.is_constant:
        return _negated(read(o, kind), negate)
    dword = read_dword(o, half if o.count > 1 or o.is_vector else 0)
    return _negated(dword if kind == "u32" else lambda g: dword(g).view(F32), negate)


_FUNCTIONS_32: Final[dict[str, Function]] = {
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_fma_f32": fma,
}


@define(" ".join(_FUNCTIONS_32))
def _packed_32(i: Instruction) -> Step:
    count = len(i.operands) - 1
    low, high, negate_low, negate_high = _selects(i, count)
    lows = [_read_32(i, k + 1, low[k], negate_low[k], "f32") for k in range(count)]
    highs = [_read_32(i, k + 1, high[k], negate_high[k], "f32") for k in range(count)]
    function, index = _FUNCTIONS_32[i.name], i.operands[0].index

    def step(g: Group) -> None:
        sources = [[get(g) for get in reads] for reads in (lows, highs)]
        if g.flushes:
            results = [flushed(g, function(*[flushed(g, x) for x in each])) for each in sources]
        else:
            results = [function(*each) for each in sources]
        for half, result in enumerate(results):
            g.write(index + half, to_bits(result, "f32"))

    return step


@define("v_pk_mov_b32")
def _packed_move(i: Instruction) -> Step:
    select = i.modifiers.get("op_sel", [0, 0])
    low, high = (_read_32(i, k + 1, select[k], 0, "u32") for k in range(2))
    index = i.operands[0].index

    def step(g: Group) -> None:
        a, b = low(g).copy(), high(g).copy()
        g.write(index, a)
        g.write(index + 1, b)

    return step


# ---------------------------------------------------------------- 16 bits
_FUNCTIONS_16: Final[dict[str, tuple[str, Function]]] = {
    "v_pk_add_f16": ("f16", lambda a, b: a + b),
    "v_pk_mul_f16": ("f16", lambda a, b: a * b),
    "v_pk_min_f16": ("f16", np.fmin),
    "v_pk_max_f16": ("f16", np.fmax),
    "v_pk_fma_f16": ("f16", lambda a, b, c: (a.astype(F64) * b.astype(F64) + c).astype(F16)),
    "v_pk_minimum3_f16": ("f16", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_pk_maximum3_f16": ("f16", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_pk_add_u16": ("u16", lambda a, b: a + b),
    "v_pk_add_i16": ("u16", lambda a, b: a + b),
    "v_pk_sub_u16": ("u16", lambda a, b: a - b),
    "v_pk_sub_i16": ("u16", lambda a, b: a - b),
    "v_pk_mul_lo_u16": ("u16", lambda a, b: a * b),
    "v_pk_mad_u16": ("u16", lambda a, b, c: a * b + c),
    "v_pk_lshlrev_b16": ("u16", lambda a, b: b << (a & U16(15))),
    "v_pk_lshrrev_b16": ("u16", lambda a, b: b >> (a & U16(15))),
    "v_pk_ashrrev_i16": ("i16", lambda a, b: b >> (a & I16(15))),
    "v_pk_min_u16": ("u16", np.minimum),
    "v_pk_max_u16": ("u16", np.maximum),
    "v_pk_min_i16": ("i16", np.minimum),
    "v_pk_max_i16": ("i16", np.maximum),
}


@define(" ".join(_FUNCTIONS_16))
def _packed_16(i: Instruction) -> Step:
    count = len(i.operands) - 1
    low, high, negate_low, negate_high = _selects(i, count)
    kind, function = _FUNCTIONS_16[i.name]

    def half(which: int, upper: int, negate: int) -> Read:
        return _negated(read(i.operands[which], kind, high_half=bool(upper)), negate)

    lows = [half(k + 1, low[k], negate_low[k]) for k in range(count)]
    highs = [half(k + 1, high[k], negate_high[k]) for k in range(count)]
    index = i.operands[0].index

    def step(g: Group) -> None:
        bottom, top = (to_bits(function(*[get(g) for get in reads]), kind) for reads in (lows, highs))
        g.write(index, bottom | (top << U32(16)))

    return step
