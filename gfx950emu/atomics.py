"""Atomic operations on device memory and on LDS: lanes that share an address go one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.lds_memory import place
from gfx950emu.memory import address_of, chosen
from gfx950emu.memory_access import Width, finish_load, in_flight, observe
from gfx950emu.numeric import F16, F32, F64, I32, U32, U64, Array, f32_to_bf16, pair
from gfx950emu.registers import Read, read
from gfx950emu.table import Step, define
from gfx950emu.waves import Group

Update = Callable[[Array, Array], Array]


def _add_bf16_pair(old: Array, x: Array) -> Array:
    low = f32_to_bf16((old << U32(16)).view(F32) + (x << U32(16)).view(F32))
    high = f32_to_bf16((old & U32(0xFFFF0000)).view(F32) + (x & U32(0xFFFF0000)).view(F32))
    return low | (high << U32(16))


UPDATES: Final[dict[str, Update]] = {
    "add": lambda old, x: old + x,
    "sub": lambda old, x: old - x,
    "swap": lambda old, x: x,
    "umin": np.minimum,
    "umax": np.maximum,
    "smin": lambda old, x: np.minimum(old.view(I32), x.view(I32)).view(U32),
    "smax": lambda old, x: np.maximum(old.view(I32), x.view(I32)).view(U32),
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "add_f32": lambda old, x: (old.view(F32) + x.view(F32)).view(U32),
    "pk_add_f16": lambda old, x: (old.view(F16) + x.view(F16)).view(U32),
    "pk_add_bf16": _add_bf16_pair,
}
UPDATES_64: Final[dict[str, Update]] = {
    "add_x2": lambda old, x: old + x,
    "swap_x2": lambda old, x: x,
    "or_x2": lambda old, x: old | x,
    "and_x2": lambda old, x: old & x,
    "add_f64": lambda old, x: (old.view(F64) + x.view(F64)).view(U64),
}
_SUMS: Final = ("add_f32", "add_f64", "pk_add_f16", "pk_add_bf16")
"""What adds up results; nobody takes turns by them."""
NAMES: Final = (*UPDATES, *UPDATES_64, "cmpswap", "cmpswap_x2")


def in_turns(addresses: Array) -> Iterator[Array]:
    """Yield positions of addresses in rounds in which each address occurs once, in lane order."""
    left = np.arange(addresses.size)
    while left.size:
        _, first = np.unique(addresses[left], return_index=True)
        turn = left[first]
        yield turn
        left = np.setdiff1d(left, turn, assume_unique=True)


def device_atomic(
    i: Instruction, kind: str, address: Read, data: int, returned: int | None, allowed: Read | None = None
) -> Step:
    """Return the step of an atomic on device memory.

    Args:
        i: the instruction.
        kind: a name of ``NAMES``.
        address: of every lane.
        data: first data register; cmpswap has the value to compare with behind the new one.
        returned: destination of the old value, or None.
        allowed: lanes that may take part (a buffer's range check), None for all.
    """
    wide = kind.endswith("x2") or kind == "add_f64"
    compares = kind.startswith("cmpswap")
    update = None if compares else (UPDATES_64 if wide else UPDATES)[kind]
    width, pc = Width(8 if wide else 4), i.pc
    synchronises = kind not in _SUMS

    def operand(g: Group, register: int, lanes: Array | None) -> Array:
        low = chosen(g.v[register], lanes)
        return pair(low, chosen(g.v[register + 1], lanes)) if wide else np.ascontiguousarray(low)

    def step(g: Group) -> None:
        where = address(g)
        lanes = g.active_lanes(None if allowed is None else allowed(g))
        where = chosen(where, lanes)
        observe(g, "atomic", width.size, where, lanes)
        new = operand(g, data, lanes)
        expected = operand(g, data + width.dwords, lanes) if compares else new
        old = np.zeros(where.size, new.dtype)
        for turn in in_turns(where):
            now = np.ascontiguousarray(g.run.memory.load(where[turn], width.size, "atomic"))
            now = now.view(new.dtype)[:, 0]
            old[turn] = now
            if update is None:
                after = np.where(now == expected[turn], new[turn], now)
            else:
                after = update(now, np.ascontiguousarray(new[turn]))
            after = np.ascontiguousarray(after).view(U32).reshape(turn.size, width.dwords)
            g.run.memory.store(where[turn], after, width.size, "atomic")
        told = g.run.order.atomic(g, where, width.size, lanes, synchronises) if g.run.order else None
        if returned is None:
            in_flight(g, pc)
        else:
            finish_load(g, returned, old.view(U32).reshape(old.size, width.dwords), width, lanes, "vm", pc, order=told)

    return step


def returns(i: Instruction) -> bool:
    """Say whether the old value is wanted (sc0)."""
    return bool(i.modifiers.get("sc0"))


@define(" ".join(f"{segment}_atomic_{name}" for segment in ("global", "flat") for name in NAMES))
def _global_atomic(i: Instruction) -> Step:
    o = i.operands[1:] if returns(i) else i.operands
    address = address_of(i, o[0], o[2] if len(o) > 2 else None)
    returned = i.operands[0].index if returns(i) else None
    return device_atomic(i, i.name.split("_atomic_")[1], address, o[1].index, returned)


# ---------------------------------------------------------------- LDS
_LDS_UPDATES: Final[dict[str, Update]] = {
    "add_u32": UPDATES["add"], "sub_u32": UPDATES["sub"], "and_b32": UPDATES["and"], "or_b32": UPDATES["or"],
    "xor_b32": UPDATES["xor"], "min_u32": UPDATES["umin"], "max_u32": UPDATES["umax"], "min_i32": UPDATES["smin"],
    "max_i32": UPDATES["smax"], "add_f32": UPDATES["add_f32"],
    "min_f32": lambda old, x: np.where(x.view(F32) < old.view(F32), x, old),
    "max_f32": lambda old, x: np.where(x.view(F32) > old.view(F32), x, old),
}  # fmt: skip


@define(" ".join([f"ds_{name}" for name in _LDS_UPDATES] + [f"ds_{n.replace('_', '_rtn_')}" for n in _LDS_UPDATES]))
def _lds_atomic(i: Instruction) -> Step:
    has_result = "_rtn_" in i.name
    update = _LDS_UPDATES[i.name.removeprefix("ds_").replace("_rtn", "")]
    o = i.operands[1:] if has_result else i.operands
    address, source = read(o[0], "u32"), read(o[1], "u32")
    offset, pc, result = i.modifiers.get("offset", 0), i.pc, i.operands[0].index

    def step(g: Group) -> None:
        lanes = g.active_lanes()
        where = np.broadcast_to(address(g).astype(np.int64) + offset, (g.width, 64)).reshape(-1)
        where = place(g, where, 4, lanes) >> 2
        x = chosen(np.broadcast_to(source(g), (g.width, 64)), lanes)
        old, dwords = np.zeros(where.size, U32), g.run.lds_dwords
        for turn in in_turns(where):
            old[turn] = dwords[where[turn]]
            dwords[where[turn]] = update(old[turn], np.ascontiguousarray(x[turn]))
        if has_result:
            finish_load(g, result, old[:, None], Width(4), lanes, "lgkm", pc)
        else:
            in_flight(g, pc, "lgkm")

    return step
