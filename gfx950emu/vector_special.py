"""Vector instructions that are more than a function of their sources: masks, carries, and moves across lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.effects import TWO_RESULTS
from gfx950emu.errors import EmulatorError, UnsupportedInstruction
from gfx950emu.minmax import is_signalling
from gfx950emu.numeric import (
    I64,
    LANES,
    U32,
    U64,
    Array,
    bit_operation,
    fma,
    fma_f64,
    multiply_i64,
    multiply_u64,
    ones,
)
from gfx950emu.operands import EXEC
from gfx950emu.registers import TYPES, Read, read, read_mask, to_bits, write, write_mask, write_scalar
from gfx950emu.table import Step, define
from gfx950emu.vector_operands import (
    KEEPS_UPPER_HALF,
    clamped,
    finish,
    flushed,
    is_indexed,
    pure,
    sdwa_source,
)
from gfx950emu.waves import Group

Test = Callable[[Any, Any], Any]


def _plain(i: Instruction, which: int, kind: str, *, high_half: bool = False) -> Read:
    """Operand ``which``, the destinations counted, without SDWA or DPP."""
    o, first = i.operands[which], 2 if i.name.startswith(TWO_RESULTS) else 1
    return read(o, kind, indexed=which >= first and is_indexed(i, which - first, o), high_half=high_half)


def _refuse_encodings(i: Instruction) -> None:
    """SDWA and DPP, which are not only modifiers: they change how all of an instruction reads and writes."""
    if i.encoding:
        raise UnsupportedInstruction(f"{i.encoding.upper()} of {i.name} is not modelled")


# ---------------------------------------------------------------- comparisons
COMPARE: Final[dict[str, Test]] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ne": np.not_equal, "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
}  # fmt: skip


def _class(x: Array, wanted: Array) -> Array:
    """``v_cmp_class``: is x one of the kinds of number whose bits are set."""
    tiny = np.finfo(x.dtype).tiny
    negative, small, nan = np.signbit(x), (x != 0) & (np.abs(x) < tiny), np.isnan(x)
    normal, zero, infinite = np.isfinite(x) & (np.abs(x) >= tiny), x == 0, np.isinf(x)
    signalling = is_signalling(x)
    kinds = [
        signalling, nan & ~signalling, infinite & negative, normal & negative, small & negative, zero & negative,
        zero & ~negative, small & ~negative, normal & ~negative, infinite & ~negative,
    ]  # fmt: skip
    found = np.zeros(np.broadcast(x, wanted).shape, bool)
    for bit, is_kind in enumerate(kinds):
        found |= is_kind & ((wanted >> U32(bit)) & U32(1)).astype(bool)
    return found


def _compare(i: Instruction) -> Step:
    _, family, condition, kind = i.name.split("_")
    test = _class if condition == "class" else COMPARE[condition]
    kinds = kind, "u32" if condition == "class" else kind
    if i.encoding == "sdwa":
        a, b = (sdwa_source(i.operands[k + 1], i.modifiers.get(f"src{k}_sel", "DWORD"), kinds[k]) for k in (0, 1))
    else:
        a, b = (
            _plain(i, k + 1, kinds[k], high_half=TYPES[kinds[k]][0] == 16 and bool(i.modifiers.bit("op_sel", k)))
            for k in (0, 1)
        )
    store, first = write_mask(i.operands[0]), i.operands[0].index

    def compared(g: Group) -> None:
        x, y = a(g), b(g)
        if g.flushes:
            x, y = flushed(g, x), flushed(g, y)
        store(g, test(x, y))

    if family == "cmp":
        return compared

    def compared_to_exec(g: Group) -> None:
        compared(g)
        g.s[EXEC], g.s[EXEC + 1] = g.s[first].copy(), g.s[first + 1].copy()
        g.update_exec()

    return compared_to_exec


_INTEGER_TESTS = ("lt", "eq", "le", "gt", "ne", "ge", "t", "f")
for _kind in ("u16", "i16", "u32", "i32", "u64", "i64"):
    define(" ".join(f"v_{f}_{c}_{_kind}" for f in ("cmp", "cmpx") for c in _INTEGER_TESTS))(_compare)
for _kind in ("f16", "f32", "f64"):
    _tests = [*(c for c in COMPARE if c not in ("ne", "t")), "class"]
    define(" ".join(f"v_{f}_{c}_{_kind}" for f in ("cmp", "cmpx") for c in _tests))(_compare)


@define("v_cndmask_b32")
def _select(i: Instruction) -> Step:
    _, first, second, condition = i.operands
    if i.encoding == "sdwa":
        i.modifiers.get("dst_unused")  # says nothing where all of the destination is written; dst_sel is refused
        a, b = (sdwa_source(o, i.modifiers.get(f"src{k}_sel", "DWORD"), "u32") for k, o in enumerate((first, second)))
    else:
        kind = "f32" if first.modifiers or second.modifiers else "u32"
        a, b = _plain(i, 1, kind), _plain(i, 2, kind)
    mask, store = read_mask(condition), write(i.operands[0], "u32")
    return lambda g: store(g, np.where(mask(g), to_bits(b(g), "u32"), to_bits(a(g), "u32")))


# ---------------------------------------------------------------- carries, accumulation, division
@define("v_add_co_u32 v_sub_co_u32 v_subrev_co_u32 v_addc_co_u32 v_subb_co_u32 v_subbrev_co_u32")
def _carry(i: Instruction) -> Step:
    _refuse_encodings(i)
    a, b = _plain(i, 2, "u32"), _plain(i, 3, "u32")
    if "rev" in i.name:
        a, b = b, a
    sign = 1 if i.name.startswith("v_add") else -1
    carry_in = read_mask(i.operands[4]) if len(i.operands) > 4 else None
    store, store_carry = write(i.operands[0], "u32"), write_mask(i.operands[1])
    clamp = bool(i.modifiers.get("clamp"))

    def step(g: Group) -> None:
        exact = a(g).astype(I64) + sign * b(g).astype(I64)
        if carry_in is not None:
            exact = exact + sign * carry_in(g).astype(I64)
        store(g, (np.clip(exact, 0, 0xFFFFFFFF) if clamp else exact).astype(U32))
        store_carry(g, (exact > 0xFFFFFFFF) | (exact < 0))

    return step


@define("v_mad_u64_u32 v_mad_i64_i32")
def _wide_multiply_add(i: Instruction) -> Step:
    unsigned = i.name == "v_mad_u64_u32"
    kind = "u32" if unsigned else "i32"
    a, b, c = _plain(i, 2, kind), _plain(i, 3, kind), _plain(i, 4, "u64")
    store, store_carry = write(i.operands[0], "u64"), write_mask(i.operands[1])
    clamp = unsigned and bool(i.modifiers.get("clamp"))

    def step(g: Group) -> None:
        product = multiply_u64(a(g), b(g)) if unsigned else multiply_i64(a(g), b(g)).view(U64)
        addend = c(g)
        total = product + addend
        carry = total < addend
        if not unsigned:  # bit 64 of the sum of two sign-extended numbers
            carry = carry ^ ((product ^ addend) >> U64(63)).astype(bool)
        store(g, np.where(carry, ~U64(0), total) if clamp else total)
        store_carry(g, carry)

    return step


@define("v_fmac_f32 v_fmac_f64")
def _accumulate(i: Instruction) -> Step:
    _refuse_encodings(i)
    kind = i.name[-3:]
    reads = [_plain(i, 1, kind), _plain(i, 2, kind), read(i.operands[0], kind)]
    store = clamped(i, kind, write(i.operands[0], kind))
    return finish(reads, fma if kind == "f32" else fma_f64, store, kind == "f32")


@define("v_div_scale_f32 v_div_scale_f64")
def _division_scale(i: Instruction) -> Step:
    """Scale nothing: v_div_fixup, at the end of LLVM's expansion, divides exactly."""
    kind = i.name[-3:]
    a, store, store_mask = _plain(i, 2, kind), write(i.operands[0], kind), write_mask(i.operands[1])

    def step(g: Group) -> None:
        store(g, a(g))
        store_mask(g, np.zeros((g.width, 64), bool))

    return step


# ---------------------------------------------------------------- between lanes, and to scalars
@define("v_readfirstlane_b32")
def _read_first_lane(i: Instruction) -> Step:
    a, store = _plain(i, 1, "u32"), write_scalar(i.operands[0], "u32")

    def step(g: Group) -> None:
        x = np.broadcast_to(a(g), (g.width, 64))
        store(g, x[:, 0] if g.active is None else x[np.arange(g.width), g.active.argmax(axis=1)])

    return step


@define("v_readlane_b32")
def _read_lane(i: Instruction) -> Step:
    a, lane = _plain(i, 1, "u32"), read(i.operands[2], "u32", vector=False)
    store = write_scalar(i.operands[0], "u32")

    def step(g: Group) -> None:
        x = np.broadcast_to(a(g), (g.width, 64))
        store(g, x[np.arange(g.width), np.broadcast_to(lane(g) & U32(63), (g.width,))])

    return step


@define("v_writelane_b32")
def _write_lane(i: Instruction) -> Step:
    value, lane = read(i.operands[1], "u32", vector=False), read(i.operands[2], "u32", vector=False)
    index = i.operands[0].index

    def step(g: Group) -> None:
        g.v[index][np.arange(g.width), np.broadcast_to(lane(g) & U32(63), (g.width,))] = value(g)
        g.versions[index] += 1

    return step


_BELOW = [(1 << int(lane)) - 1 for lane in LANES]
for _name, _shift in (("v_mbcnt_lo_u32_b32", 0), ("v_mbcnt_hi_u32_b32", 32)):
    _mask = np.array([below >> _shift & 0xFFFFFFFF for below in _BELOW], U32)
    pure(_name, "u32", "u32 u32", lambda a, b, mask=_mask: ones(a & mask) + b)


@define("v_permlane16_swap_b32 v_permlane32_swap_b32")
def _swap_rows(i: Instruction) -> Step:
    """CDNA4 ISA: odd rows of the first register and even rows of the second change places."""
    first, second = i.operands[0].index, i.operands[1].index
    size = 16 if i.name == "v_permlane16_swap_b32" else 32

    def step(g: Group) -> None:
        if g.active is not None:
            raise EmulatorError("permlane swap with inactive lanes is not modelled")
        a, b = g.v[first].reshape(g.width, -1, 2, size), g.v[second].reshape(g.width, -1, 2, size)
        odd = a[:, :, 1].copy()
        a[:, :, 1] = b[:, :, 0]
        b[:, :, 0] = odd
        g.versions[first] += 1
        g.versions[second] += 1

    return step


@define("v_swap_b32")
def _swap(i: Instruction) -> Step:
    first, second = i.operands[0].index, i.operands[1].index

    def step(g: Group) -> None:
        a = g.v[first].copy()
        g.write(first, g.v[second].copy())
        g.write(second, a)

    return step


@define("v_bitop3_b32 v_bitop3_b16")
def _bit_operation(i: Instruction) -> Step:
    kind = "u32" if i.name.endswith("32") else "u16"
    truth, keep = i.modifiers.get("bitop3", 0), i.name in KEEPS_UPPER_HALF
    halves = [kind == "u16" and bool(i.modifiers.bit("op_sel", k)) for k in range(4)]
    a, b, c = (_plain(i, k + 1, kind, high_half=halves[k]) for k in range(3))
    store = write(i.operands[0], kind, high_half=halves[3], keep_rest=keep)
    return lambda g: store(g, bit_operation(a(g), b(g), c(g), truth))
