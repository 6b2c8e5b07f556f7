"""Conversions between floats, integers and packed small floats (CDNA3 ISA, section 12.8; CDNA4 ISA: the scaled).

``v_cvt_scalef32_pk_fp4_*`` divides by its scale operand, of which only the exponent counts, rounds to nearest even,
saturates, and writes one byte of its destination: op_sel[3:2] says which. The fp8 forms write one half: op_sel[3].
Conversions to fp6 and those that round stochastically are not modelled.

Overflow to fp8 is NaN, as MODE.FP16_OVFL is 0 (a kernel that sets it is refused): so say the comment at Triton's
adjustModeRegister, AMD's emulator (rocjitsu, f32_to_fp8_e4m3_rne_mode) and AMD's host model (amd_hip_ocp_host.hpp).
NaN gives sign | 0x7f in fp8, sign | 0x7e in bf8 and sign | 7 in fp4, a scale of NaN alike, as in the host model.
"""

from __future__ import annotations

import re

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError
from gfx950emu.formats import BF8, BY_NAME, FP8, encode, scale_of
from gfx950emu.minmax import quiet
from gfx950emu.numeric import (
    F16,
    F32,
    F64,
    I16,
    I32,
    U16,
    U32,
    Array,
    f16_toward_zero,
    f32_to_bf16,
    pack_halves,
    to_integer,
)
from gfx950emu.operands import Operand
from gfx950emu.registers import Read, read, to_bits
from gfx950emu.table import Step, define
from gfx950emu.vector_operands import clamp_float, pure, sdwa_source
from gfx950emu.vector_packed import half_16
from gfx950emu.waves import Group

_U32_MAX, _I32_MIN, _I32_MAX = 2**32 - 1, -(2**31), 2**31 - 1


def _half(a: Array) -> Array:
    return quiet(a.astype(F16))


pure("v_cvt_f32_u32", "f32", "u32", lambda a: a.astype(F32))
pure("v_cvt_f32_i32", "f32", "i32", lambda a: a.astype(F32))
pure("v_cvt_u32_f32", "u32", "f32", lambda a: to_integer(a, 0, _U32_MAX, U32))
pure("v_cvt_i32_f32", "i32", "f32", lambda a: to_integer(a, _I32_MIN, _I32_MAX, I32))
pure("v_cvt_rpi_i32_f32", "i32", "f32", lambda a: to_integer(np.floor(a.astype(F64) + 0.5), _I32_MIN, _I32_MAX, I32))
pure("v_cvt_flr_i32_f32", "i32", "f32", lambda a: to_integer(np.floor(a), _I32_MIN, _I32_MAX, I32))
for _byte in range(4):
    pure(f"v_cvt_f32_ubyte{_byte}", "f32", "u32", lambda a, k=_byte: ((a >> U32(8 * k)) & U32(255)).astype(F32))
pure("v_cvt_f32_f16", "f32", "f16", lambda a: quiet(a.astype(F32)))
pure("v_cvt_f16_f32", "f16", "f32", _half)
pure("v_cvt_f32_bf16", "f32", "bf16", lambda a: a)
pure("v_cvt_f64_f32", "f64", "f32", lambda a: a.astype(F64))
pure("v_cvt_f32_f64", "f32", "f64", lambda a: a.astype(F32))
pure("v_cvt_f64_i32", "f64", "i32", lambda a: a.astype(F64))
pure("v_cvt_f64_u32", "f64", "u32", lambda a: a.astype(F64))
pure("v_cvt_i32_f64", "i32", "f64", lambda a: to_integer(a, _I32_MIN, _I32_MAX, I32))
pure("v_cvt_u32_f64", "u32", "f64", lambda a: to_integer(a, 0, _U32_MAX, U32))
pure("v_cvt_f16_u16", "f16", "u16", lambda a: a.astype(F16))
pure("v_cvt_f16_i16", "f16", "i16", lambda a: a.astype(F16))
pure("v_cvt_u16_f16", "u16", "f16", lambda a: to_integer(a, 0, 65535, U16))
pure("v_cvt_i16_f16", "i16", "f16", lambda a: to_integer(a, -32768, 32767, I16))
pure("v_cvt_pk_bf16_f32", "u32", "f32 f32", lambda a, b: f32_to_bf16(a) | (f32_to_bf16(b) << U32(16)))
pure("v_cvt_pkrtz_f16_f32", "u32", "f32 f32", lambda a, b: f16_toward_zero(a) | (f16_toward_zero(b) << U32(16)))
pure("v_cvt_pk_f16_f32", "u32", "f32 f32", lambda a, b: pack_halves(_half(a), _half(b)))
pure("v_cvt_f32_fp8", "f32", "u32", lambda a: FP8.values[a & U32(255)].astype(F32))
pure("v_cvt_f32_bf8", "f32", "u32", lambda a: BF8.values[a & U32(255)].astype(F32))


def _pair_of_floats(i: Instruction, kind: str) -> tuple[Read, Read, Operand]:
    """Return the two values to convert, and the operand after them: f32 takes two registers, 16-bit floats one."""
    if kind == "f32":
        return read(i.operands[1], "f32"), read(i.operands[2], "f32"), i.operands[-1]
    return half_16(i.operands[1], 0, kind), half_16(i.operands[1], 1, kind), i.operands[-1]


def _refuse_overflow(g: Group, *values: Array) -> None:
    """AMD's host model makes an overflow to bf8 the largest number, AMD's emulator and Triton infinity."""
    for x in values:
        if (g.exec_mask() & np.broadcast_to(np.abs(x) >= BF8.overflow, (g.width, 64))).any():
            raise EmulatorError("overflow of a conversion to bf8 is not modelled: public sources differ")


def _to_small(i: Instruction) -> Step:
    """v_cvt_scalef32_pk_SMALL_FLOAT and v_cvt_pk_SMALL_f32."""
    scaled = "scalef32" in i.name
    match = re.fullmatch(r"v_cvt_(?:scalef32_)?pk_(fp4|fp8|bf8)_(f32|f16|bf16)", i.name)
    assert match
    fmt = BY_NAME[match[1]]
    a, b, last = _pair_of_floats(i, match[2])
    last_bit = (i.modifiers.size("op_sel") or 4) - 1
    if fmt.bits == 4:
        bits, shift = U32(4), (i.modifiers.bit("op_sel", last_bit - 1) | i.modifiers.bit("op_sel", last_bit) << 1) * 8
    else:
        bits, shift = U32(8), i.modifiers.bit("op_sel", last_bit) * 16
    keep = U32(~(((1 << 2 * fmt.bits) - 1) << shift) & 0xFFFFFFFF)
    index, position = i.operands[0].index, U32(shift)
    scale_operand = read(last, "u32") if scaled else None

    def step(g: Group) -> None:
        x, y = a(g).astype(F64), b(g).astype(F64)
        low, high = x, y
        if scale_operand is not None:
            scale = scale_of(scale_operand(g))
            low, high = x / scale, y / scale
        if fmt is BF8:
            _refuse_overflow(g, low, high)
        codes = encode(low, fmt, x) | (encode(high, fmt, y) << bits)
        g.write(index, (g.v[index] & keep) | (codes << position))

    return step


def _from_small(i: Instruction) -> Step:
    """v_cvt_scalef32_pk_FLOAT_SMALL and v_cvt_pk_f32_SMALL."""
    match = re.fullmatch(r"v_cvt_(?:scalef32_)?pk_(f32|f16|bf16)_(fp4|fp8|bf8)", i.name)
    assert match
    kind, fmt = match[1], BY_NAME[match[2]]
    low_bit = i.modifiers.bit("op_sel", 0)
    shift = (low_bit | i.modifiers.bit("op_sel", 1) << 1) * 8 if fmt.bits == 4 else low_bit * 16
    if i.encoding == "sdwa":
        source = sdwa_source(i.operands[1], i.modifiers.get("src0_sel", "DWORD"), "u32")
    else:
        source = read(i.operands[1], "u32")
    scale_operand = read(i.operands[2], "u32") if "scalef32" in i.name else None
    clamp = kind == "f32" and scale_operand is None and bool(i.modifiers.get("clamp"))
    index, mask = i.operands[0].index, U32((1 << fmt.bits) - 1)

    def step(g: Group) -> None:
        codes = source(g) >> U32(shift)
        low, high = fmt.values[codes & mask], fmt.values[(codes >> U32(fmt.bits)) & mask]
        if scale_operand is not None:
            scale = scale_of(scale_operand(g))
            low, high = low * scale, high * scale
        low, high = low.astype(F32), high.astype(F32)
        if clamp:
            low, high = clamp_float(g, low), clamp_float(g, high)
        if kind == "f32":
            g.write(index, low.view(U32))
            g.write(index + 1, high.view(U32))
        else:
            g.write(index, to_bits(low, kind) | (to_bits(high, kind) << U32(16)))

    return step


for _small in ("fp4", "fp8", "bf8"):
    for _float in ("f32", "f16", "bf16"):
        define(f"v_cvt_scalef32_pk_{_small}_{_float}")(_to_small)
        define(f"v_cvt_scalef32_pk_{_float}_{_small}")(_from_small)
define("v_cvt_pk_fp8_f32 v_cvt_pk_bf8_f32")(_to_small)
define("v_cvt_pk_f32_fp8 v_cvt_pk_f32_bf8")(_from_small)
