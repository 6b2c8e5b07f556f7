"""Typed access to registers: functions that read an operand of a group of waves, and functions that write one.

Values have the shape ``[W, 64]`` for vector instructions, with a 1 where something is the same for all lanes or
waves, and ``[W]`` for scalar ones. Writes to vector registers honour EXEC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gfx950emu.errors import UnsupportedInstruction
from gfx950emu.numeric import (
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    U16,
    U32,
    U64,
    Array,
    bf16_to_f32,
    f32_to_bf16,
    pack_mask,
    pair,
    unpack_mask,
)
from gfx950emu.operands import EXEC, M0, Operand
from gfx950emu.waves import Group

Read = Callable[[Group], Array]
Write = Callable[[Group, Array], None]

TYPES: Final[dict[str, tuple[int, Any]]] = {
    "u32": (32, U32), "i32": (32, I32), "f32": (32, F32), "u64": (64, U64), "i64": (64, I64), "f64": (64, F64),
    "u16": (16, U16), "i16": (16, I16), "f16": (16, F16), "bf16": (16, U16),
}  # fmt: skip
"""Operand type -> (bits, numpy type). bf16 values are float32 once read."""
_APERTURE: Final = {"src_shared_base": 0x00010000, "src_private_base": 0x00020000}


def read_dword(o: Operand, which: int = 0, *, vector: bool = True, indexed: bool = False) -> Read:
    """Return a function that gives dword ``which`` of an operand as uint32.

    Args:
        o: the operand, not a constant.
        which: dword of a register range.
        vector: shape ``[W, 64]`` rather than ``[W]``.
        indexed: add M0 to the register's number (s_set_gpr_idx_on).
    """
    index = o.index + which
    if o.is_vector:
        if indexed:
            return lambda g: _read_indexed(g, index)
        return lambda g: g.v[index]
    if o.kind == "s":
        if vector:
            return lambda g: g.s[index][:, None]
        return lambda g: g.s[index]
    if o.kind in ("src_scc", "scc"):
        if vector:
            return lambda g: g.scc.astype(U32)[:, None]
        return lambda g: g.scc.astype(U32)
    if o.kind in _APERTURE:
        base = np.full((1, 1) if vector else (1,), _APERTURE[o.kind] if which else 0, U32)
        return lambda g: base
    raise UnsupportedInstruction(f"operand {o.text}")


def _read_indexed(g: Group, index: int) -> Array:
    offsets = g.s[M0] & U32(0xFF)
    first = int(offsets.min())
    if first == int(offsets.max()):
        return g.v[index + first]
    taken: Array = g.v[index + offsets.astype(I64), np.arange(g.width)]
    return taken


def read(o: Operand, kind: str, *, vector: bool = True, indexed: bool = False, high_half: bool = False) -> Read:
    """Return a function that gives an operand as ``kind``, with neg and abs applied to floats; integers have none.

    Args:
        o: the operand.
        kind: a name of ``TYPES``.
        vector: see :func:`read_dword`.
        indexed: see :func:`read_dword`.
        high_half: of a 16-bit operand, take the upper half of the register, or of the constant's 32 bits.
    """
    if o.is_constant:
        bits = constant(o, kind) if not high_half else packed_constant(o, kind, high=True)
        value = signed(o, kind)(bits.reshape((1, 1) if vector else (1,)))
        value.setflags(write=False)
        return lambda g: value
    plain = _read_register(o, kind, vector, indexed, high_half)
    if not (o.modifiers and is_float(kind)):
        return plain
    change = signed(o, kind)
    return lambda g: change(plain(g))


def _read_register(o: Operand, kind: str, vector: bool, indexed: bool, high_half: bool) -> Read:
    bits, dtype = TYPES[kind]
    low = read_dword(o, 0, vector=vector, indexed=indexed)
    if bits == 32:
        return low if kind == "u32" else lambda g: low(g).view(dtype)
    if bits == 64:
        if o.kind == "s" and o.count == 1:
            return lambda g: low(g).astype(U64).view(dtype)
        high = read_dword(o, 1, vector=vector, indexed=indexed)
        return lambda g: pair(low(g), high(g)).view(dtype)
    shift = U32(16 if high_half else 0)
    if kind == "bf16":
        if high_half:
            return lambda g: (low(g) & U32(0xFFFF0000)).view(F32)
        return lambda g: (low(g) << U32(16)).view(F32)
    return lambda g: (low(g) >> shift).astype(U16).view(dtype)


def constant(o: Operand, kind: str) -> Array:
    """Return a constant operand as an array of one value of ``kind``."""
    bits, dtype = TYPES[kind]
    if isinstance(o.value, float):
        if kind == "bf16":
            return bf16_to_f32(f32_to_bf16(np.array([o.value], F32)))
        # An integer operand takes the bits of the float of its width.
        return np.array([o.value], {16: F16, 32: F32, 64: F64}[bits]).view(dtype)
    value = (o.value << 32) if kind == "f64" and o.is_hex else o.value  # a literal is the high half of a double
    if kind == "i64" and o.is_hex and value >> 31:
        raise UnsupportedInstruction(f"literal {o.text} of a signed 64-bit operand: zero- or sign-extended?")
    raw = np.array([value & ((1 << bits) - 1)], U64).astype({16: U16, 32: U32, 64: U64}[bits])
    return bf16_to_f32(raw) if kind == "bf16" else raw.view(dtype)


def packed_constant(o: Operand, kind: str, *, high: bool) -> Array:
    """Return one half of a constant operand of a packed 16-bit instruction.

    LLVM, getInlineEncodingV216: an integer is 32 bits, sign-extended; of a float, f16 operations get a half in the low
    16 bits and zeros above, integer ones a float's 32 bits. bf16 is taken to be as f16.
    """
    if isinstance(o.value, float) and is_float(kind):
        return np.zeros_like(constant(o, kind)) if high else constant(o, kind)
    half = (constant(o, "u32") >> U32(16 if high else 0)).astype(U16)
    return bf16_to_f32(half) if kind == "bf16" else half.view(TYPES[kind][1])


def is_float(kind: str) -> bool:
    """Say whether values of ``kind`` are floats, the only ones that have neg and abs."""
    return kind[0] in "fb"


def signed(o: Operand, kind: str) -> Callable[[Array], Array]:
    """Return the function of an operand's neg and abs on values of ``kind``."""
    absolute, negate = (is_float(kind) and bool(o.modifiers.get(name)) for name in ("abs", "neg"))
    if absolute:
        return (lambda x: -np.abs(x)) if negate else np.abs
    return np.negative if negate else lambda x: x


def to_bits(x: Array, kind: str) -> Array:
    """Return values of ``kind`` as register bits: uint32, or uint64 for 64-bit kinds."""
    bits, dtype = TYPES[kind]
    if bits == 32:
        return x.view(U32) if x.dtype in (U32, F32, I32) else np.asarray(x).astype(dtype).view(U32)
    if kind == "bf16":
        return f32_to_bf16(x)
    if bits == 16:
        return np.asarray(x).astype(dtype).view(U16).astype(U32)
    return np.asarray(x).astype(dtype).view(U64)


def write(o: Operand, kind: str, *, high_half: bool = False, keep_rest: bool = False) -> Write:
    """Return a function that writes a vector register.

    Args:
        o: the destination.
        kind: of the values.
        high_half: a 16-bit result goes to the upper half and leaves the lower.
        keep_rest: a 16-bit result leaves the upper half; otherwise it is zeroed.
    """
    if not o.is_vector:
        raise UnsupportedInstruction(f"destination {o.text}")
    index, bits = o.index, TYPES[kind][0]
    if bits == 64:
        return lambda g, x: _write_pair(g, index, to_bits(x, kind))
    if bits == 16 and high_half:
        return lambda g, x: g.write(index, (g.v[index] & U32(0xFFFF)) | (to_bits(x, kind) << U32(16)))
    if bits == 16 and keep_rest:
        return lambda g, x: g.write(index, (g.v[index] & U32(0xFFFF0000)) | to_bits(x, kind))
    if kind == "u32":
        return lambda g, x: g.write(index, x)
    return lambda g, x: g.write(index, to_bits(x, kind))


def _write_pair(g: Group, index: int, bits: Array) -> None:
    g.write(index, bits.astype(U32))
    g.write(index + 1, (bits >> U64(32)).astype(U32))


def write_scalar(o: Operand, kind: str) -> Write:
    """Return a function that writes a scalar register, or a pair of them for a 64-bit kind."""
    if o.kind != "s":
        raise UnsupportedInstruction(f"destination {o.text}")
    index, wide = o.index, TYPES[kind][0] == 64

    def store(g: Group, x: Array) -> None:
        bits = to_bits(x, kind)
        g.s[index] = bits.astype(U32)
        if wide:
            g.s[index + 1] = (bits >> U64(32)).astype(U32)
        if index >= EXEC:
            g.update_exec()

    return store


def read_mask(o: Operand) -> Read:
    """Return a function that gives an SGPR pair as a lane mask, bool ``[W, 64]``."""
    if o.is_constant:
        mask = unpack_mask(*(np.array([int(o.value) >> shift & 0xFFFFFFFF], U32) for shift in (0, 32)))
        return lambda g: mask
    index = o.index
    if index == EXEC:
        return lambda g: g.exec_mask()
    return lambda g: unpack_mask(g.s[index], g.s[index + 1])


def write_mask(o: Operand) -> Write:
    """Return a function that writes a lane mask to an SGPR pair; inactive lanes give 0."""
    index = o.index

    def store(g: Group, mask: Array) -> None:
        mask = np.broadcast_to(mask, (g.width, 64))
        if g.active is not None:
            mask = mask & g.active
        g.s[index], g.s[index + 1] = pack_mask(mask)
        if index == EXEC:
            g.update_exec()

    return store
