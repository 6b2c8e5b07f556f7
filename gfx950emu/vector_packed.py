"""Packed arithmetic, VOP3P: two 16-bit or two 32-bit operations an instruction (CDNA3 ISA, section 12.14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gfx950emu import minmax
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import UnsupportedInstruction
from gfx950emu.numeric import F32, F64, U32, Array, fma
from gfx950emu.operands import Operand
from gfx950emu.registers import Read, is_float, packed_constant, read, read_dword, to_bits
from gfx950emu.table import Step, define
from gfx950emu.vector_operands import clamp_float, flushed, ieee_mode, saturated
from gfx950emu.waves import Group

Function = Callable[..., Array]


def _selected(i: Instruction, which: int, *, high_result: bool) -> int:
    """Say which half of source ``which`` (from 0) one of the two results takes."""
    return i.modifiers.bit("op_sel_hi", which, 1) if high_result else i.modifiers.bit("op_sel", which)


def _negated(i: Instruction, which: int, get: Read, *, high_result: bool) -> Read:
    """Apply neg_lo or neg_hi to a float source."""
    if i.modifiers.bit("neg_hi" if high_result else "neg_lo", which):
        return lambda g: -get(g)
    return get


# ---------------------------------------------------------------- 32 bits
def _half_32(o: Operand, half: int, kind: str) -> Read:
    """Return one dword of a source; a single SGPR has but one."""
    if o.is_constant:
        if half and o.value:
            raise UnsupportedInstruction(f"upper half of the constant {o.text}: no public text says what it is")
        return read(o, kind)
    dword = read_dword(o, half if o.count > 1 or o.is_vector else 0)
    return dword if kind == "u32" else lambda g: dword(g).view(F32)


_FUNCTIONS_32: Final[dict[str, Function]] = {
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_fma_f32": fma,
}


@define(" ".join(_FUNCTIONS_32))
def _packed_32(i: Instruction) -> Step:
    halves = []
    for high in (False, True):
        selected = [_half_32(o, _selected(i, k, high_result=high), "f32") for k, o in enumerate(i.operands[1:])]
        halves.append([_negated(i, k, get, high_result=high) for k, get in enumerate(selected)])
    function, index, clamp = _FUNCTIONS_32[i.name], i.operands[0].index, bool(i.modifiers.get("clamp"))

    def step(g: Group) -> None:
        sources = [[get(g) for get in reads] for reads in halves]
        if g.flushes:
            results = [flushed(g, function(*[flushed(g, x) for x in each])) for each in sources]
        else:
            results = [function(*each) for each in sources]
        for half, result in enumerate(results):
            g.write(index + half, to_bits(clamp_float(g, result) if clamp else result, "f32"))

    return step


@define("v_pk_mov_b32")
def _packed_move(i: Instruction) -> Step:
    """The low result is one half of the first source, the high one of the second; op_sel_hi has no part."""
    low, high = (_half_32(i.operands[k + 1], i.modifiers.bit("op_sel", k), "u32") for k in range(2))
    index = i.operands[0].index

    def step(g: Group) -> None:
        a, b = low(g).copy(), high(g).copy()
        g.write(index, a)
        g.write(index + 1, b)

    return step


# ---------------------------------------------------------------- 16 bits
def half_16(o: Operand, half: int, kind: str) -> Read:
    """Return one half of a packed 16-bit source as ``kind``."""
    if not o.is_constant:
        return read(o, kind, high_half=bool(half))
    value = packed_constant(o, kind, high=bool(half)).reshape(1, 1)
    value.setflags(write=False)
    return lambda g: value


def _shift(count: Array) -> Array:
    return count & count.dtype.type(15)


_FUNCTIONS_16: Final[dict[str, tuple[str, Function]]] = {
    "v_pk_add_f16": ("f16", lambda a, b: a + b),
    "v_pk_mul_f16": ("f16", lambda a, b: a * b),
    "v_pk_fma_f16": ("f16", fma),
    "v_pk_minimum3_f16": ("f16", minmax.propagating_minimum3),
    "v_pk_maximum3_f16": ("f16", minmax.propagating_maximum3),
    "v_pk_add_u16": ("u16", lambda a, b: a + b),
    "v_pk_add_i16": ("i16", lambda a, b: a + b),
    "v_pk_sub_u16": ("u16", lambda a, b: a - b),
    "v_pk_sub_i16": ("i16", lambda a, b: a - b),
    "v_pk_mul_lo_u16": ("u16", lambda a, b: a * b),
    "v_pk_mad_u16": ("u16", lambda a, b, c: a * b + c),
    "v_pk_lshlrev_b16": ("u16", lambda a, b: b << _shift(a)),
    "v_pk_lshrrev_b16": ("u16", lambda a, b: b >> _shift(a)),
    "v_pk_ashrrev_i16": ("i16", lambda a, b: b >> _shift(a)),
    "v_pk_min_u16": ("u16", np.minimum),
    "v_pk_max_u16": ("u16", np.maximum),
    "v_pk_min_i16": ("i16", np.minimum),
    "v_pk_max_i16": ("i16", np.maximum),
}
_BY_MODE_16: Final[dict[str, Function]] = {"v_pk_min_f16": minmax.minimum, "v_pk_max_f16": minmax.maximum}
"""Functions that take MODE.IEEE before their sources."""
_SATURATING: Final = ("v_pk_add_u16", "v_pk_add_i16", "v_pk_sub_u16", "v_pk_sub_i16", "v_pk_mad_u16")


@define(" ".join([*_FUNCTIONS_16, *_BY_MODE_16]))
def _packed_16(i: Instruction) -> Step:
    by_mode = _BY_MODE_16.get(i.name)
    kind, function = ("f16", by_mode) if by_mode else _FUNCTIONS_16[i.name]
    clamp = (is_float(kind) or i.name in _SATURATING) and bool(i.modifiers.get("clamp"))
    if clamp and not is_float(kind):
        function = saturated(function, kind)
    halves = []
    for high in (False, True):
        reads = [half_16(o, _selected(i, k, high_result=high), kind) for k, o in enumerate(i.operands[1:])]
        if is_float(kind):
            reads = [_negated(i, k, get, high_result=high) for k, get in enumerate(reads)]
        if by_mode:
            reads.insert(0, ieee_mode)
        halves.append(reads)
    lows, highs = halves
    index, clamp_result = i.operands[0].index, clamp and is_float(kind)

    def step(g: Group) -> None:
        bottom, top = function(*[get(g) for get in lows]), function(*[get(g) for get in highs])
        if clamp_result:
            bottom, top = clamp_float(g, bottom), clamp_float(g, top)
        g.write(index, to_bits(bottom, kind) | (to_bits(top, kind) << U32(16)))

    return step


# ---------------------------------------------------------------- sums of two products
@define("v_dot2c_f32_bf16 v_dot2_f32_bf16 v_dot2_f32_f16 v_dot2c_f32_f16")
def _dot(i: Instruction) -> Step:
    """The sum is taken in float64 and rounded once: public text leaves open what the hardware rounds between."""
    kind = "bf16" if "bf16" in i.name else "f16"
    accumulates = "2c" in i.name
    halves: list[list[Read]] = []
    for high in (False, True):
        reads = []
        for k, o in enumerate(i.operands[1:3]):
            half = int(high) if accumulates else _selected(i, k, high_result=high)
            get = half_16(o, half, kind)
            reads.append(get if accumulates else _negated(i, k, get, high_result=high))
        halves.append(reads)
    (low_a, low_b), (high_a, high_b) = halves
    addend = read(i.operands[0 if accumulates else 3], "f32")
    index, clamp = i.operands[0].index, bool(i.modifiers.get("clamp"))

    def step(g: Group) -> None:
        low, high = low_a(g).astype(F64) * low_b(g), high_a(g).astype(F64) * high_b(g)
        total = (low + high + addend(g)).astype(F32)
        g.write(index, to_bits(clamp_float(g, total) if clamp else total, "f32"))

    return step
