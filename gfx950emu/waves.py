"""The state of waves that run in lock-step, and of the launch that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gfx950emu.device_memory import Memory
from gfx950emu.numeric import U32, Array, unpack_mask
from gfx950emu.operands import EXEC

if TYPE_CHECKING:
    from gfx950emu.memory_order import MemoryOrder
    from gfx950emu.pending import Pending
    from gfx950emu.races import RaceChecker

ALL_LANES = U32(0xFFFFFFFF)


class Observer(Protocol):
    """Sees every memory access of a launch, for profiles."""

    def device(self, kind: str, size: int, addresses: Array, lanes: Array | None) -> None:
        """Note a load, store or atomic of ``size`` bytes at each address of ``lanes`` (flat indices, None: all)."""

    def lds(
        self, addresses: Array, size: int, lanes: Array | None, *, writes: bool, waves: Array, waves_per_group: int
    ) -> None:
        """Note an LDS access at byte addresses of ``lanes`` (flat indices, None: all).

        ``waves`` has the number of each wave. In strict mode a write is noted when it lands.
        """

    def barrier(self, pc: int) -> None:
        """Note that the barrier at ``pc`` opens."""


@dataclass(slots=True)
class Run:
    """What the waves of one batch of workgroups share.

    Attributes:
        memory: device memory.
        grid: workgroups along x, y, z.
        first: number of the batch's first workgroup.
        waves_per_group: waves of a workgroup.
        lds: the LDS of every workgroup, one after the other.
        lds_bytes: of one.
        scratch: of every lane, one after the other.
        scratch_bytes: of one.
        strict: model waits, and check races.
        observer: who sees memory accesses, if anyone.
        races: the race checker of strict mode.
        order: strict mode's record of stores to device memory, one for the launch.
        ieee: MODE.IEEE: minimum and maximum give a signalling NaN back, quieted.
        dx10_clamp: MODE.DX10_CLAMP: clamp makes NaN 0.
        poison: what the destination of a load holds in strict mode until it is waited for.
    """

    memory: Memory
    grid: tuple[int, int, int]
    first: int
    waves_per_group: int
    lds: Array
    lds_bytes: int
    scratch: Array
    scratch_bytes: int
    strict: bool
    observer: Observer | None = None
    races: RaceChecker | None = None
    order: MemoryOrder | None = None
    ieee: bool = True
    dx10_clamp: bool = True
    poison: int = 0
    lds_dwords: Array = field(init=False)

    def __post_init__(self) -> None:
        self.lds_dwords = self.lds.view(U32)


@dataclass(slots=True)
class Group:
    """Waves that execute the same instruction next.

    Attributes:
        run: what they share with the others.
        pc: of the next instruction.
        v: vector registers, then accumulation registers, ``[register, wave, lane]`` uint32.
        s: scalar registers ``[128, wave]`` uint32.
        scc: scalar condition code ``[wave]``.
        flush: float32 subnormals are flushed (MODE.FP_DENORM), ``[wave]``.
        wave_ids: number of each wave in its batch.
        lds_base: where the LDS of each wave's workgroup starts.
        versions: how often each vector register was written: what matrix operands are cached by.
        matrix_cache: decoded matrix operands.
        active: EXEC as bool ``[wave, lane]``; None when all lanes of all waves are active.
        mfma: matrix instructions executed, counted by waves.
        time: what s_memtime gives next.
        trips: strict mode: loads and atomics waited for, each issued after the one before was there.
        vm: strict mode: vector memory operations not waited for, oldest first.
        lgkm: strict mode: LDS and scalar memory operations not waited for.
        lanes: the lanes of the access in progress, flat indices; None: all. For error messages.
        width: number of waves.
        flushes: any wave flushes.
    """

    run: Run
    pc: int
    v: Array
    s: Array
    scc: Array
    flush: Array
    wave_ids: Array
    lds_base: Array
    versions: list[int]
    matrix_cache: dict[tuple[int, ...], tuple[tuple[int, ...], Array]] = field(default_factory=dict)
    active: Array | None = None
    mfma: int = 0
    time: int = 0
    trips: int = 0
    vm: list[Pending] = field(default_factory=list)
    lgkm: list[Pending] = field(default_factory=list)
    lanes: Array | None = None
    width: int = field(init=False)
    flushes: bool = field(init=False)

    def __post_init__(self) -> None:
        self.width = int(self.scc.size)
        self.flushes = bool(self.flush.any())

    def write(self, index: int, x: Array) -> None:
        """Write a vector register's active lanes."""
        if self.active is None:
            self.v[index] = x
        else:
            np.copyto(self.v[index], x, where=self.active)
        self.versions[index] += 1

    def update_exec(self) -> None:
        """Derive ``active`` from EXEC after it was written."""
        low, high = self.s[EXEC], self.s[EXEC + 1]
        everything = bool((low == ALL_LANES).all() and (high == ALL_LANES).all())
        self.active = None if everything else unpack_mask(low, high)

    def exec_mask(self) -> Array:
        """Return EXEC as bool ``[wave, lane]``."""
        return np.ones((self.width, 64), bool) if self.active is None else self.active

    def active_lanes(self, also: Array | None = None) -> Array | None:
        """Return flat indices of active lanes for which ``also`` holds, None for all, and note them for messages."""
        mask = self.active
        if also is not None:
            mask = also if mask is None else mask & also
        self.lanes = None if mask is None else np.nonzero(mask.reshape(-1))[0]
        return self.lanes

    def take(self, chosen: Array, pc: int) -> Group:
        """Return some of the waves as a group of their own."""
        taken = Group(
            run=self.run,
            pc=pc,
            v=np.take(self.v, chosen, axis=1),  # not an index expression: the result must be C-contiguous
            s=np.take(self.s, chosen, axis=1),
            scc=self.scc[chosen],
            flush=self.flush[chosen],
            wave_ids=self.wave_ids[chosen],
            lds_base=self.lds_base[chosen],
            versions=list(self.versions),
            time=self.time,
            trips=self.trips,
            vm=[p.take(chosen) for p in self.vm],
            lgkm=[p.take(chosen) for p in self.lgkm],
        )
        taken.update_exec()
        return taken

    def signature(self) -> tuple[object, ...]:
        """Return what must be equal for groups at the same pc to merge: the operations in flight."""
        return tuple(p.key for p in self.vm), tuple(p.key for p in self.lgkm)


def merge(groups: list[Group]) -> Group:
    """Join groups with the same pc and signature."""
    if len(groups) == 1:
        return groups[0]
    first = groups[0]
    joined = Group(
        run=first.run,
        pc=first.pc,
        v=np.concatenate([g.v for g in groups], axis=1),
        s=np.concatenate([g.s for g in groups], axis=1),
        scc=np.concatenate([g.scc for g in groups]),
        flush=np.concatenate([g.flush for g in groups]),
        wave_ids=np.concatenate([g.wave_ids for g in groups]),
        lds_base=np.concatenate([g.lds_base for g in groups]),
        versions=list(first.versions),
        mfma=sum(g.mfma for g in groups),
        time=max(g.time for g in groups),
        trips=max(g.trips for g in groups),
        vm=[first_p.join(rest) for first_p, *rest in zip(*(g.vm for g in groups), strict=True)],
        lgkm=[first_p.join(rest) for first_p, *rest in zip(*(g.lgkm for g in groups), strict=True)],
    )
    joined.update_exec()
    return joined
