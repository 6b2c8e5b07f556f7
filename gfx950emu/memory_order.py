"""Strict mode: a wave may read what another wave stored only when something has made the store visible to it.

MI350X has 8 XCDs, each with an L2 of its own, and workgroups go round them: workgroup % 8 (LLVM, AMDGPUUsage, "Memory
Model gfx942"). Data passes from a store to another wave's load by these steps, each of which the machine code must ask
for; what is missing raises, whatever the order in which waves happen to run here:

* the wave waits for its store (s_waitcnt vmcnt): it is complete, in its XCD's L2;
* a wave of that XCD that knows so (its own store, or a barrier since) issues ``buffer_wbl2 sc1`` and waits for it: the
  store is in memory, where other XCDs can find it;
* that wave, or one behind a barrier, changes a location with an atomic, or a store with sc1 (release);
* the reader sees the change by an atomic whose result it waited for, or a load with sc1 (acquire), and issues
  ``buffer_inv sc1``: lines that its caches held before are dropped. A barrier passes this on in its workgroup.

On one XCD the write-back may be missing, within a workgroup everything but the wait and the barrier. A store with sc1
goes through to memory: it needs no write-back, and a load with sc1 of it no invalidation, but the wait, the release
and the acquire. Locations that atomics write are coherent and not checked, nor is a load with sc1 of at most 8 bytes
that an sc1 store wrote, since whoever polls a flag reads it early; such a store is a release, wider ones are data. A
launch sees everything of the launches before.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gfx950emu.device_memory import BASE, LEAD, SLOT_BITS
from gfx950emu.errors import OrderError
from gfx950emu.numeric import I64, U64, Array
from gfx950emu.waves import Group

XCDS: Final = 8
COMPLETE, WRITTEN = 0, 1
"""Rows of what a wave knows: the last store of each wave that is in its XCD's L2, and that is in memory."""
_COHERENT: Final = -1
"""In place of a writer: an atomic."""
_FLAG_BYTES: Final = 8
"""What a store with sc1 writes at once, at most, to be a release."""
_NOBODY: Final = -2


class MemoryOrder:
    """What every wave of a launch stored, and what each knows of the others. Stores are numbered through: ticks."""

    def __init__(self, waves: int, waves_per_group: int) -> None:
        self._workgroup = np.arange(waves) // waves_per_group
        self._xcd = self._workgroup % XCDS
        self._tick = 0
        self._issued = np.zeros(waves, I64)
        self._complete = np.zeros(waves, I64)
        self._at_barrier = np.zeros(waves, I64)
        """What was complete at the wave's last barrier: what its workgroup knows of it."""
        self._knows: dict[int, Array] = {}
        self._sees: dict[int, Array] = {}
        """The same after the wave's last ``buffer_inv``."""
        self._released: dict[int, Array] = {}
        """By address: what those knew who changed it."""
        self._shadow: dict[int, tuple[Array, Array, Array]] = {}
        """By buffer: the last writer of each dword, the tick, and whether it went through to memory (sc1)."""

    # ---------------------------------------------------------------- stores and loads
    def store(self, g: Group, addresses: Array, size: int, lanes: Array | None, coherent: bool) -> None:
        """Note a store; a narrow one with sc1 releases too."""
        self._note(g, addresses, size, _by_lane(_waves(g), lanes), through=coherent)
        if coherent and size <= _FLAG_BYTES:
            self._release(g, addresses, lanes)

    def atomic(self, g: Group, addresses: Array, size: int, lanes: Array | None, synchronises: bool) -> Array | None:
        """Note an atomic. One that ``synchronises`` releases, and tells each wave something, see :meth:`acquire`."""
        self._note(g, addresses, size, np.full(addresses.size, _COHERENT), through=True)
        return self._release(g, addresses, lanes) if synchronises else None

    def _note(self, g: Group, addresses: Array, size: int, writers: Array, *, through: bool) -> None:
        self._tick += 1
        self._issued[_waves(g)] = self._tick
        for slot, chosen, dwords in _dwords(addresses, size):
            if slot not in self._shadow:
                count = g.run.memory.buffers[slot].size // 4 + 1
                self._shadow[slot] = (np.full(count, _NOBODY, np.int32), np.zeros(count, I64), np.zeros(count, bool))
            writer, tick, went_through = self._shadow[slot]
            writer[dwords], tick[dwords], went_through[dwords] = writers[chosen][:, None], self._tick, through

    def load(
        self, g: Group, addresses: Array, size: int, lanes: Array | None, *, coherent: bool = False,
        scalar: bool = False,
    ) -> Array | None:  # fmt: skip
        """Check a load; return what one with sc1 tells each wave once it is waited for, see :meth:`acquire`."""
        if not self._shadow or not addresses.size:
            return None
        readers = _by_lane(_waves(g), lanes)
        for slot, chosen, dwords in _dwords(addresses, size):
            if slot in self._shadow:
                writer, tick, through = (x[dwords] for x in self._shadow[slot])
                mine = np.broadcast_to(readers[chosen][:, None], writer.shape)
                foreign = (writer >= 0) & (writer != mine)
                if coherent and size <= _FLAG_BYTES:
                    foreign &= ~through
                if foreign.any():
                    lane, _ = np.nonzero(foreign)
                    found = lane, mine[foreign], writer[foreign], tick[foreign], through[foreign]
                    self._check(found, np.arange(addresses.size)[chosen], coherent, scalar)
        return self._news(g, addresses, lanes) if coherent and size <= _FLAG_BYTES and self._released else None

    def _check(
        self, found: tuple[Array, Array, Array, Array, Array], position: Array, coherent: bool, scalar: bool
    ) -> None:
        lanes, readers, writers, ticks, went_through = found
        for reader in np.unique(readers):
            of_reader = readers == reader
            writer, tick, lane = writers[of_reader], ticks[of_reader], lanes[of_reader]
            through = went_through[of_reader]
            view = (self._knows if coherent else self._sees).get(int(reader))
            other = self._workgroup[writer] != self._workgroup[reader]
            far = (self._xcd[writer] != self._xcd[reader]) & ~through
            if view is None:
                known = np.where(other, -1, self._at_barrier[writer])
            else:
                beyond = np.where(far, view[WRITTEN][writer], view[:, writer].max(0))
                known = np.where(other, beyond, self._at_barrier[writer])
            bad = np.ones(writer.size, bool) if scalar else known < tick
            if bad.any():
                first = int(np.nonzero(bad)[0][0])
                raise OrderError(
                    self._message(int(writer[first]), bool(other[first]), bool(far[first]), scalar),
                    int(position[lane[first]]),
                )

    def _message(self, writer: int, other: bool, far: bool, scalar: bool) -> str:
        workgroup = int(self._workgroup[writer])
        who = f"wave {writer - int(np.argmax(self._workgroup == workgroup))} of workgroup number {workgroup}"
        if scalar:
            need = "through the scalar cache, which nothing here invalidates"
        elif not other:
            need = "which no wait before a barrier has made visible"
        else:
            back = ", write-back to memory" if far else ""
            need = f"which no wait{back}, release, acquire and cache invalidation have made visible"
        return f"reads what {who} stored in this launch, {need}"

    # ---------------------------------------------------------------- what waves learn
    def issued(self, g: Group) -> Array:
        """Return the last store of each wave, for the entry in flight that stands for it."""
        return self._issued[_waves(g)]

    def completed(self, g: Group, ticks: Array) -> None:
        """Note that stores were waited for."""
        waves = _waves(g)
        self._complete[waves] = np.maximum(self._complete[waves], ticks)

    def write_back(self, g: Group) -> Array:
        """Return what a ``buffer_wbl2 sc1`` issued now brings to memory, ``[wave, every wave]``."""
        rows = []
        for wave in _waves(g):
            row = self._known(int(wave))[COMPLETE]
            row[wave] = self._issued[wave]
            rows.append(np.where(self._xcd == self._xcd[wave], row, 0))
        return np.stack(rows)

    def written_back(self, g: Group, rows: Array) -> None:
        """Note that a write-back was waited for."""
        for wave, row in zip(_waves(g), rows, strict=True):
            known = self._known(int(wave))
            known[WRITTEN] = np.maximum(known[WRITTEN], row)
            self._knows[int(wave)] = known

    def acquire(self, g: Group, news: Array) -> None:
        """Note that the result of an atomic, or of a load with sc1, was waited for."""
        for wave, told in zip(_waves(g), news, strict=True):
            if told.any():
                self._knows[int(wave)] = np.maximum(self._known(int(wave)), told)

    def invalidate(self, g: Group) -> None:
        """Note a ``buffer_inv sc1``: loads from now on find what the wave knows of."""
        for wave in map(int, _waves(g)):
            if wave in self._knows:
                self._sees[wave] = self._knows[wave].copy()

    def barrier(self, groups: list[Group]) -> None:
        """Note that every wave that waits at a barrier goes on: workgroups share what their waves know and see."""
        waves = np.concatenate([_waves(g) for g in groups])
        self._at_barrier[waves] = self._complete[waves]
        for shared in (self._knows, self._sees):
            for workgroup in {int(self._workgroup[wave]) for wave in shared}:
                members = [int(wave) for wave in waves[self._workgroup[waves] == workgroup]]
                told = [shared[wave] for wave in members if wave in shared]
                if told:
                    joined = np.maximum.reduce(told)
                    shared.update({wave: joined.copy() for wave in members})

    # ---------------------------------------------------------------- inside
    def _known(self, wave: int) -> Array:
        """Return what a wave knows, as an array of the caller's: what it was told, and its workgroup's stores."""
        told = self._knows.get(wave)
        known = np.zeros((2, self._issued.size), I64) if told is None else told.copy()
        own = self._workgroup == self._workgroup[wave]
        known[COMPLETE][own] = np.maximum(known[COMPLETE][own], self._at_barrier[own])
        known[COMPLETE][wave] = max(int(known[COMPLETE][wave]), int(self._complete[wave]))
        return known

    def _release(self, g: Group, addresses: Array, lanes: Array | None) -> Array:
        """Tell, lane by lane, what each wave knows to whoever changes the same address next; return what it is told."""
        news = np.zeros((g.width, 2, self._issued.size), I64)
        mine = [self._known(int(wave)) for wave in _waves(g)]
        within = np.arange(g.width * 64) // 64 if lanes is None else lanes // 64
        for address, wave in zip(addresses.tolist(), within.tolist(), strict=True):
            before = self._released.get(address)
            if before is not None:
                np.maximum(news[wave], before, out=news[wave])
            self._released[address] = mine[wave].copy() if before is None else np.maximum(before, mine[wave])
        return news

    def _news(self, g: Group, addresses: Array, lanes: Array | None) -> Array:
        news = np.zeros((g.width, 2, self._issued.size), I64)
        within = np.arange(g.width * 64) // 64 if lanes is None else lanes // 64
        for address, wave in zip(addresses.tolist(), within.tolist(), strict=True):
            if address in self._released:
                np.maximum(news[wave], self._released[address], out=news[wave])
        return news


def _waves(g: Group) -> Array:
    """Return the numbers of a group's waves within the launch."""
    return g.wave_ids + g.run.first * g.run.waves_per_group


def _by_lane(waves: Array, lanes: Array | None) -> Array:
    return np.repeat(waves, 64) if lanes is None else waves[lanes // 64]


def _dwords(addresses: Array, size: int) -> list[tuple[int, Array | slice, Array]]:
    """Sort addresses by buffer: its number, which of the addresses, and the dwords that each touches ``[n, k]``."""
    relative = (addresses - U64(BASE)).view(I64)
    slots = relative >> SLOT_BITS
    found: list[tuple[int, Array | slice, Array]] = []
    for slot in np.unique(slots):
        chosen = slice(None) if (slots == slot).all() else np.nonzero(slots == slot)[0]
        first = ((relative[chosen] & ((1 << SLOT_BITS) - 1)) - LEAD) >> 2
        found.append((int(slot), chosen, first[:, None] + np.arange((size + 3) // 4)))
    return found
