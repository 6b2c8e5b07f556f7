"""Scalar arithmetic: SOP1, SOP2, SOPC, SOPK (AMD Instinct CDNA3 ISA, chapter 5 and section 12.1 to 12.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.numeric import (
    I32,
    I64,
    U32,
    U64,
    Array,
    leading_zeros,
    multiply_i64,
    multiply_u64,
    ones,
    reverse_bits,
    sign_extend,
    trailing_zeros,
)
from gfx950emu.operands import EXEC, Operand, parse_operand
from gfx950emu.registers import Read, read, write_scalar
from gfx950emu.table import Step, define
from gfx950emu.waves import Group


def _source(i: Instruction, which: int, kind: str) -> Read:
    return read(i.operands[which], kind, vector=False)


def pure(names: str, result: str, sources: str, function: Callable[..., Array], *, nonzero: bool = False) -> None:
    """Define instructions that are a function of their sources; ``nonzero``: SCC says whether the result is not 0."""

    def build(i: Instruction) -> Step:
        store = write_scalar(i.operands[0], result)
        reads = [_source(i, k + 1, kind) for k, kind in enumerate(sources.split())]

        def step(g: Group) -> None:
            value = function(*[get(g) for get in reads])
            store(g, value)
            if nonzero:
                g.scc[:] = value != 0

        return step

    define(names)(build)


def _count64(b: Array) -> Array:
    return (b & U32(63)).astype(U64)


pure("s_mov_b32", "u32", "u32", lambda a: a)
pure("s_mov_b64", "u64", "u64", lambda a: a)
pure("s_brev_b32", "u32", "u32", reverse_bits)
pure("s_mul_i32", "u32", "u32 u32", lambda a, b: a * b)
pure("s_mul_hi_u32", "u32", "u32 u32", lambda a, b: (multiply_u64(a, b) >> U64(32)).astype(U32))
pure("s_mul_hi_i32", "i32", "i32 i32", lambda a, b: (multiply_i64(a, b) >> I64(32)).astype(I32))
BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _bits, _kind in (("32", "u32"), ("64", "u64")):
    for _name, _function in BITWISE.items():
        pure(f"s_{_name}_b{_bits}", _kind, f"{_kind} {_kind}", _function, nonzero=True)
    pure(f"s_not_b{_bits}", _kind, _kind, lambda a: ~a, nonzero=True)
    pure(f"s_bcnt1_i32_b{_bits}", "u32", _kind, ones, nonzero=True)
    pure(f"s_ff1_i32_b{_bits}", "u32", _kind, trailing_zeros)
pure("s_lshl_b32", "u32", "u32 u32", lambda a, b: a << (b & U32(31)), nonzero=True)
pure("s_lshr_b32", "u32", "u32 u32", lambda a, b: a >> (b & U32(31)), nonzero=True)
pure("s_ashr_i32", "i32", "i32 u32", lambda a, b: a >> (b & U32(31)).view(I32), nonzero=True)
pure("s_lshl_b64", "u64", "u64 u32", lambda a, b: a << _count64(b), nonzero=True)
pure("s_lshr_b64", "u64", "u64 u32", lambda a, b: a >> _count64(b), nonzero=True)
pure("s_ashr_i64", "i64", "i64 u32", lambda a, b: a >> (b & U32(63)).astype(I64), nonzero=True)
pure("s_bfm_b32", "u32", "u32 u32", lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31)))
pure("s_bfm_b64", "u64", "u32 u32", lambda a, b: ((U64(1) << _count64(a)) - U64(1)) << _count64(b))
pure("s_pack_ll_b32_b16", "u32", "u32 u32", lambda a, b: (a & U32(0xFFFF)) | (b << U32(16)))
pure("s_pack_lh_b32_b16", "u32", "u32 u32", lambda a, b: (a & U32(0xFFFF)) | (b & U32(0xFFFF0000)))
pure("s_pack_hh_b32_b16", "u32", "u32 u32", lambda a, b: (a >> U32(16)) | (b & U32(0xFFFF0000)))
pure("s_sext_i32_i8", "u32", "u32", lambda a: sign_extend(a, 8))
pure("s_sext_i32_i16", "u32", "u32", lambda a: sign_extend(a, 16))
pure("s_flbit_i32_b32", "u32", "u32", leading_zeros)
pure("s_abs_i32", "u32", "i32", lambda a: np.abs(a.astype(I64)).astype(U32), nonzero=True)


def _field(b: Array, bits: int) -> tuple[Array, Array]:
    """Split the operand of s_bfe into the field's offset and its width, at most ``bits``."""
    return (b & U32(bits - 1)).astype(U64), np.minimum((b >> U32(16)) & U32(127), U32(bits)).astype(U64)


def _field_unsigned(a: Array, b: Array, bits: int) -> Array:
    offset, width = _field(b, bits)
    shifted = a.astype(U64) >> offset
    mask = np.where(width >= 64, ~U64(0), (U64(1) << np.minimum(width, U64(63))) - U64(1))
    return shifted & mask


def _field_signed(a: Array, b: Array, bits: int) -> Array:
    """The shift keeps the sign, so a field that reaches beyond the last bit continues it."""
    offset, width = _field(b, bits)
    up = (U64(64) - np.maximum(width, U64(1))).view(I64)
    return np.where(width == 0, I64(0), ((a.astype(I64) >> offset.view(I64)) << up) >> up)


pure("s_bfe_u32", "u32", "u32 u32", lambda a, b: _field_unsigned(a, b, 32).astype(U32), nonzero=True)
pure("s_bfe_i32", "i32", "i32 u32", lambda a, b: _field_signed(a, b, 32).astype(I32), nonzero=True)
pure("s_bfe_u64", "u64", "u64 u32", lambda a, b: _field_unsigned(a, b, 64), nonzero=True)
pure("s_bfe_i64", "i64", "i64 u32", lambda a, b: _field_signed(a, b, 64), nonzero=True)


def _carries(name: str, kind: str, function: Callable[[Array, Array, Array], Array], low: int, high: int) -> None:
    """Define an addition whose SCC says that the exact result is outside of low .. high."""

    @define(name)
    def build(i: Instruction) -> Step:
        a, b, store = _source(i, 1, kind), _source(i, 2, kind), write_scalar(i.operands[0], "u32")

        def step(g: Group) -> None:
            exact = function(a(g).astype(I64), b(g).astype(I64), g.scc)
            store(g, exact.astype(U32))
            g.scc[:] = (exact > high) | (exact < low)

        return step


_carries("s_add_u32", "u32", lambda a, b, c: a + b, 0, 0xFFFFFFFF)
_carries("s_sub_u32", "u32", lambda a, b, c: a - b, 0, 0xFFFFFFFF)
_carries("s_addc_u32", "u32", lambda a, b, c: a + b + c, 0, 0xFFFFFFFF)
_carries("s_subb_u32", "u32", lambda a, b, c: a - b - c, 0, 0xFFFFFFFF)
_carries("s_add_i32", "i32", lambda a, b, c: a + b, -0x80000000, 0x7FFFFFFF)
_carries("s_sub_i32", "i32", lambda a, b, c: a - b, -0x80000000, 0x7FFFFFFF)
for _k in (1, 2, 3, 4):
    _carries(f"s_lshl{_k}_add_u32", "u32", lambda a, b, c, k=_k: (a << k) + b, 0, 0xFFFFFFFF)  # type: ignore[misc]


@define("s_min_i32 s_max_i32 s_min_u32 s_max_u32")
def _minimum(i: Instruction) -> Step:
    kind = i.name[-3:]
    a, b, store = _source(i, 1, kind), _source(i, 2, kind), write_scalar(i.operands[0], kind)
    first_wins = np.less if "min" in i.name else np.greater_equal

    def step(g: Group) -> None:
        x, y = a(g), b(g)
        wins = first_wins(x, y)
        store(g, np.where(wins, x, y))
        g.scc[:] = wins

    return step


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def _compare(i: Instruction) -> Step:
    _, family, condition, kind = i.name.split("_")
    constant = i.signed_immediate if kind[0] == "i" else i.immediate
    second = parse_operand(str(constant)) if family == "cmpk" else i.operands[1]
    a, b, test = _source(i, 0, kind), read(second, kind, vector=False), COMPARE[condition]

    def step(g: Group) -> None:
        g.scc[:] = test(a(g), b(g))

    return step


define(" ".join(f"s_cmp_{c}_{k} s_cmpk_{c}_{k}" for c in COMPARE for k in ("i32", "u32")))(_compare)
define("s_cmp_eq_u64 s_cmp_lg_u64")(_compare)


@define("s_bitcmp0_b32 s_bitcmp1_b32")
def _bit_compare(i: Instruction) -> Step:
    a, b, wanted = _source(i, 0, "u32"), _source(i, 1, "u32"), i.name == "s_bitcmp1_b32"

    def step(g: Group) -> None:
        g.scc[:] = ((a(g) >> (b(g) & U32(31))) & U32(1)).astype(bool) == wanted

    return step


@define("s_bitset0_b32 s_bitset1_b32")
def _bit_set(i: Instruction) -> Step:
    bit, old, store = _source(i, 1, "u32"), _source(i, 0, "u32"), write_scalar(i.operands[0], "u32")
    if i.name == "s_bitset1_b32":
        return lambda g: store(g, old(g) | (U32(1) << (bit(g) & U32(31))))
    return lambda g: store(g, old(g) & ~(U32(1) << (bit(g) & U32(31))))


@define("s_cselect_b32 s_cselect_b64 s_cmov_b32 s_cmov_b64")
def _select(i: Instruction) -> Step:
    kind = "u32" if i.name.endswith("32") else "u64"
    store, a = write_scalar(i.operands[0], kind), _source(i, 1, kind)
    b = _source(i, 2 if "cselect" in i.name else 0, kind)
    return lambda g: store(g, np.where(g.scc, a(g), b(g)))


@define("s_movk_i32 s_cmovk_i32 s_addk_i32 s_mulk_i32")
def _short_constant(i: Instruction) -> Step:
    store, old, value = write_scalar(i.operands[0], "u32"), _source(i, 0, "i32"), i.signed_immediate
    constant = np.array([value], I64).astype(U32)
    if i.name == "s_movk_i32":
        return lambda g: store(g, constant)
    if i.name == "s_cmovk_i32":
        return lambda g: store(g, np.where(g.scc, constant, old(g).view(U32)))
    if i.name == "s_mulk_i32":
        return lambda g: store(g, (old(g).astype(I64) * value).astype(U32))

    def add(g: Group) -> None:
        exact = old(g).astype(I64) + value
        store(g, exact.astype(U32))
        g.scc[:] = (exact > 0x7FFFFFFF) | (exact < -0x80000000)

    return add


def _exec_and(i: Instruction) -> Step:
    """``s_OP_saveexec``: old EXEC to the destination, s OP exec to EXEC; ``wrexec``: the result to both."""
    _, name, what, _ = i.name.split("_")
    save = what == "saveexec"
    swapped = name in ("andn1", "orn1")
    function = BITWISE[name.replace("n1", "n2")]
    whole = Operand("s", "exec", EXEC, 2)
    source, store = _source(i, 1, "u64"), write_scalar(i.operands[0], "u64")
    get, put = read(whole, "u64", vector=False), write_scalar(whole, "u64")

    def step(g: Group) -> None:
        old, s = get(g), source(g)
        new = function(old, s) if swapped else function(s, old)
        store(g, old if save else new)
        put(g, new)
        g.scc[:] = new != 0

    return step


_EXEC_OPS = [f"s_{name}_saveexec_b64" for name in (*BITWISE, "andn1", "orn1")]
define(" ".join([*_EXEC_OPS, "s_andn1_wrexec_b64 s_andn2_wrexec_b64"]))(_exec_and)
