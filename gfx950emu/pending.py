"""Strict mode: results of memory operations stay pending until the s_waitcnt that covers them.

Until then a load's destination holds ``Run.poison``; a ds_write, or a load that goes to LDS, has not reached LDS. At
the wait a ds_read is read again and must still give what it gave at issue, else the wave raced with a write; one that
is in flight at a barrier may take place behind it, and races with what other waves write there. The counters follow
gfx9 (CDNA3 ISA, section 4.4): vmcnt is one in-order queue of loads and stores; lgkmcnt counts LDS, in order, and
scalar loads, which are done only at lgkmcnt(0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gfx950emu import lds_memory
from gfx950emu.errors import RaceError
from gfx950emu.numeric import U32, Array
from gfx950emu.waves import Group

POISON: Final = 0x7FD0DEAD
"""A NaN, and one as bf16 and fp16 in its upper half: what it meets is spoilt, where no code looks for NaN itself."""
FINITE_POISON: Final = 0x3DADDEAD
"""Small finite numbers instead, for code that does."""
VM_MAX, LGKM_MAX = 63, 15
"""Operations in flight; one more stalls until the oldest is done."""


@dataclass(slots=True)
class Pending:
    """One operation in flight.

    Attributes:
        pc: of the instruction.
        kind: "vector" (to vector registers), "scalar" (to SGPRs), "lds" (a write to LDS), "store", "write back"
            (of L2 to memory).
        first: the first destination register.
        keep: bits of the destination that survive (16-bit loads).
        size: bytes of each lane's LDS access, 0 if none.
        values: dwords ``[W, 64, n]``, or ``[W, n]`` for "scalar".
        mask: lanes that take part, ``[W, 64]``.
        addresses: of the LDS access, ``[W, 64]``.
        raw: what an LDS read gave at issue.
        order: what is learnt at the wait, ``[W, ...]``: see ``memory_order.py``.
        trips: of a load or an atomic, the group's with it.
        done: carried out already.
    """

    pc: int
    kind: str
    first: int = 0
    keep: int = 0
    size: int = 0
    values: Array | None = None
    mask: Array | None = None
    addresses: Array | None = None
    raw: Array | None = None
    order: Array | None = None
    trips: int = 0
    done: bool = False

    @property
    def key(self) -> tuple[int, bool]:
        """What two groups' operations must share for the groups to merge."""
        return self.pc, self.done

    def take(self, chosen: Array) -> Pending:
        """Return it for some of the waves."""
        taken = replace(self)
        for name, x in self._arrays().items():
            setattr(taken, name, x[chosen])
        return taken

    def join(self, others: list[Pending]) -> Pending:
        """Return it for the waves of several groups together."""
        joined = replace(self)
        for name, x in self._arrays().items():
            setattr(joined, name, np.concatenate([x, *(getattr(other, name) for other in others)]))
        return joined

    def _arrays(self) -> dict[str, Array]:
        names = ("values", "mask", "addresses", "raw", "order")
        return {name: x for name in names if (x := getattr(self, name)) is not None}


def push(g: Group, queue: str, entry: Pending) -> None:
    """Put an operation in flight, in the "vm" or the "lgkm" queue."""
    if queue == "vm" and entry.kind in ("vector", "lds"):  # the latter is a load that goes to LDS
        entry.trips = g.trips + 1
    if queue == "vm":
        while len(g.vm) >= VM_MAX:
            _apply(g, g.vm.pop(0))
        g.vm.append(entry)
    else:
        while len(g.lgkm) >= LGKM_MAX and all(p.kind != "scalar" for p in g.lgkm):
            _apply(g, g.lgkm.pop(0))
        g.lgkm.append(entry)


def push_load(g: Group, queue: str, entry: Pending) -> None:
    """Put a load to vector registers in flight, and poison them."""
    values, mask = entry.values, entry.mask
    assert values is not None
    for register in range(entry.first, entry.first + values.shape[2]):
        poisoned = (g.v[register] & U32(entry.keep)) | (U32(g.run.poison) & ~U32(entry.keep))
        np.copyto(g.v[register], poisoned, where=mask)
        g.versions[register] += 1
    push(g, queue, entry)


def wait(g: Group, vm: int | None, lgkm: int | None) -> None:
    """Carry out what s_waitcnt waits for."""
    if vm is not None and len(g.vm) > vm:
        done, g.vm = g.vm[: len(g.vm) - vm], g.vm[len(g.vm) - vm :]
        for entry in done:
            _apply(g, entry)
    if lgkm is None or not g.lgkm:
        return
    in_order = sum(entry.kind != "scalar" for entry in g.lgkm)
    entries, g.lgkm = g.lgkm, []
    for entry in entries:
        is_lds = entry.kind != "scalar"
        if lgkm == 0 or (is_lds and in_order > lgkm):
            _apply(g, entry)
        else:
            g.lgkm.append(entry)
        in_order -= is_lds


def finish_own_lds(g: Group) -> None:
    """Carry out the wave's earlier LDS writes before it reads: its own LDS operations are in order."""
    for entry in g.lgkm:
        if entry.done:
            continue
        if entry.kind == "lds":
            _apply(g, entry)
        elif entry.size:
            _check_unchanged(g, entry)


def note_unfinished_reads(g: Group) -> None:
    """Tell the race checker, at a barrier, of LDS reads that nothing has waited for: they may come after it too."""
    assert g.run.races is not None
    for entry in g.lgkm:
        if entry.kind == "vector" and entry.size:
            lanes = _lanes(entry)
            where = lds_memory.place(g, _array(entry.addresses).reshape(-1), entry.size, lanes)
            g.run.races.read(g, where, entry.size, lanes)


def _apply(g: Group, entry: Pending) -> None:
    if entry.order is not None:
        _learn(g, entry.kind, entry.order)
    g.trips = max(g.trips, entry.trips)
    if entry.kind == "vector":
        if entry.size and not entry.done:
            _check_unchanged(g, entry)
        values = _array(entry.values)
        for j in range(values.shape[2]):
            register = entry.first + j
            value = (g.v[register] & U32(entry.keep)) | values[:, :, j]
            np.copyto(g.v[register], value, where=_array(entry.mask))
            g.versions[register] += 1
    elif entry.kind == "scalar":
        values = _array(entry.values)
        g.s[entry.first : entry.first + values.shape[1]] = values.T
    elif entry.kind == "lds" and not entry.done:
        values, addresses = _array(entry.values), _array(entry.addresses)
        lds_memory.store(g, addresses.reshape(-1), values.reshape(-1, values.shape[2]), entry.size, _lanes(entry))
    entry.done = True


def _learn(g: Group, kind: str, order: Array) -> None:
    assert g.run.order is not None
    if kind == "store":
        g.run.order.completed(g, order)
    elif kind == "write back":
        g.run.order.written_back(g, order)
    else:
        g.run.order.acquire(g, order)


def _check_unchanged(g: Group, entry: Pending) -> None:
    lanes = _lanes(entry)
    now = lds_memory.load(g, _array(entry.addresses).reshape(-1), entry.size, lanes, again=True)
    then = _array(entry.raw).reshape(-1, now.shape[1])[lanes]
    entry.done = True
    if not np.array_equal(now, then):
        g.lanes = lanes
        position = int(np.nonzero((now != then).any(axis=1))[0][0])
        raise RaceError(f"LDS data read at pc 0x{entry.pc:x} changed before the wave waited for it", position)


def _lanes(entry: Pending) -> Array:
    return np.nonzero(_array(entry.mask).reshape(-1))[0]


def _array(x: Array | None) -> Array:
    assert x is not None
    return x
