"""Run a kernel: set up waves as the command processor does, and schedule groups of them until all have ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gfx950emu import pending
from gfx950emu.control import KEEP_SUBNORMALS, condition
from gfx950emu.device_memory import Memory
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError, HazardError, LaneError
from gfx950emu.hazards import first_hazard
from gfx950emu.memory_order import MemoryOrder
from gfx950emu.numeric import U32, U64, Array, pack_mask, pair
from gfx950emu.operands import EXEC, M0, VCC
from gfx950emu.program import Block, End, Kernel, Program, branch_target
from gfx950emu.races import RaceChecker
from gfx950emu.waves import Group, Observer, Run, merge

MAX_WAVES: Final = 256
"""Waves that run together: larger batches are faster until they leave the caches."""
MAX_BLOCKS: Final = 50_000_000
LDS_GARBAGE, REGISTER_GARBAGE = 0xA5, 0xDEADBEEF
"""What LDS and registers hold at the start, so that a read before a write shows."""


@dataclass
class Stats:
    """What a launch did.

    Attributes:
        seconds: it took.
        waves: that ran.
        mfma: matrix instructions, counted by waves.
        splits: branches at which a group's waves parted.
        merges: groups that met again.
        trips: strict mode: the most loads and atomics of a wave that had to go one after the other.
        counts: executions of each mnemonic, counted by waves.
        blocks: executions of the basic block at each pc, counted by waves.
    """

    seconds: float = 0.0
    waves: int = 0
    mfma: int = 0
    splits: int = 0
    merges: int = 0
    trips: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    blocks: Counter[int] = field(default_factory=Counter)

    def count(self, program: Program) -> None:
        """Fill ``counts`` from ``blocks``."""
        counts: Counter[str] = Counter()
        for pc, times in self.blocks.items():
            for i in program.block(pc).instructions:
                counts[i.mnemonic] += times
        self.counts = dict(counts.most_common())


def launch(
    program: Program,
    kernel_name: str,
    grid: Sequence[int],
    block: Sequence[int],
    kernarg: bytes,
    memory: Memory,
    *,
    dynamic_lds: int = 0,
    strict: bool = False,
    observer: Observer | None = None,
    poison: int = pending.POISON,
) -> Stats:
    """Run a kernel.

    Args:
        program: the code object.
        kernel_name: which of its kernels.
        grid: workgroups along each axis.
        block: work items of a workgroup along each axis.
        kernarg: the argument segment.
        memory: the buffers that arguments point into.
        dynamic_lds: bytes of LDS beyond what the kernel declares.
        strict: model s_waitcnt, and check hazards, races in LDS and the order of device memory.
        observer: sees memory accesses.
        poison: what strict mode puts where a load is still in flight.
    """
    kernel = program.kernel(kernel_name)
    check_mode(kernel)
    if strict:
        hazard = first_hazard(program, kernel.entry)
        if hazard is not None:
            raise HazardError(f"kernel {kernel_name}: {hazard}")
    batch = _Batch(program, kernel, three(grid), three(block), kernarg, memory, dynamic_lds, strict, observer, poison)
    stats = Stats(waves=batch.groups * batch.waves_per_group)
    start = time.perf_counter()
    per_batch = max(1, MAX_WAVES // batch.waves_per_group)
    with np.errstate(all="ignore"):
        for first in range(0, batch.groups, per_batch):
            group = batch.start(first, min(per_batch, batch.groups - first))
            _Scheduler(program, stats).run(group)
    stats.seconds = time.perf_counter() - start
    stats.count(program)
    return stats


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Pad sizes along x, y, z with ones."""
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def check_mode(kernel: Kernel) -> None:
    """Raise where a kernel starts in a float mode that is not modelled."""
    d = kernel.descriptor
    if d.round_mode or d.denormal_mode >> 2 != KEEP_SUBNORMALS or d.fp16_overflow:
        raise EmulatorError(
            f"kernel {kernel.name} asks for a float mode that is not modelled: FLOAT_ROUND_MODE {d.round_mode}, "
            f"FLOAT_DENORM_MODE {d.denormal_mode}, FP16_OVFL {int(d.fp16_overflow)}; wanted 0, 12 or above, and 0"
        )


class _Batch:
    """Everything that the workgroups of a launch start with."""

    def __init__(
        self, program: Program, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int],
        kernarg: bytes, memory: Memory, dynamic_lds: int, strict: bool, observer: Observer | None,
        poison: int,
    ) -> None:  # fmt: skip
        self.program, self.kernel, self.grid, self.block = program, kernel, grid, block
        self.memory, self.strict, self.observer, self.poison = memory, strict, observer, poison
        self.threads = block[0] * block[1] * block[2]
        self.waves_per_group = -(-self.threads // 64)
        self.groups = grid[0] * grid[1] * grid[2]
        self.lds_bytes = -(-(kernel.descriptor.lds + dynamic_lds) // 16) * 16
        padded = kernarg + bytes(max(0, kernel.kernarg_size - len(kernarg)))
        self.order = MemoryOrder(self.groups * self.waves_per_group, self.waves_per_group) if strict else None
        self.kernarg = np.frombuffer(padded, np.uint8)
        self.kernarg_address = memory.add("kernel arguments", self.kernarg, writable=False)

    def start(self, first: int, count: int) -> Group:
        """Return the waves of ``count`` workgroups, ready to run."""
        width, descriptor = count * self.waves_per_group, self.kernel.descriptor
        stride = max(self.lds_bytes, 16)
        run = Run(
            self.memory, self.grid, first, self.waves_per_group,
            lds=np.full(count * stride, LDS_GARBAGE, np.uint8), lds_bytes=self.lds_bytes,
            scratch=np.zeros(-(-width * 64 * descriptor.scratch // 16) * 16, np.uint8),
            scratch_bytes=descriptor.scratch, strict=self.strict, observer=self.observer, order=self.order,
            ieee=descriptor.ieee, dx10_clamp=descriptor.dx10_clamp, poison=self.poison,
        )  # fmt: skip
        if self.strict:
            run.races = RaceChecker(run.lds.size)
        waves = np.arange(width)
        g = Group(
            run=run,
            pc=self.kernel.entry,
            v=np.full((self.program.registers, width, 64), REGISTER_GARBAGE, U32),
            s=np.full((128, width), REGISTER_GARBAGE, U32),
            scc=np.zeros(width, bool),
            flush=np.full(width, descriptor.denormal_mode & 3 != KEEP_SUBNORMALS),
            wave_ids=waves,
            lds_base=waves // self.waves_per_group * stride,
            versions=[0] * self.program.registers,
        )
        self._scalar_registers(g, first + waves // self.waves_per_group)
        self._work_items(g, waves % self.waves_per_group)
        return g

    def _scalar_registers(self, g: Group, workgroup: Array) -> None:
        """AMDGPUUsage, "Initial Kernel Execution State"."""
        descriptor = self.kernel.descriptor
        g.s[[M0, VCC, VCC + 1]] = 0
        for name, first, count in descriptor.user_layout():
            if name == "kernarg_ptr":
                g.s[first], g.s[first + 1] = U32(self.kernarg_address & 0xFFFFFFFF), U32(self.kernarg_address >> 32)
            elif name == "preload":
                start = 4 * descriptor.preload_offset
                raw = self.kernarg[start : start + 4 * count].tobytes()
                g.s[first : first + count] = np.frombuffer(raw.ljust(4 * count, b"\0"), U32)[:, None]
            elif name == "private_segment_size":
                g.s[first] = descriptor.scratch
        x, y, _ = self.grid
        axes = (workgroup % x, workgroup // x % y, workgroup // (x * y))
        following = descriptor.user_sgprs
        for axis, enabled in zip(axes, descriptor.workgroup_ids, strict=True):
            if enabled:
                g.s[following] = axis.astype(U32)
                following += 1
        if descriptor.workgroup_info:
            g.s[following] = 0

    def _work_items(self, g: Group, wave: Array) -> None:
        """v0 holds the work item's three ids, ten bits each; lanes beyond the workgroup are inactive."""
        item = wave[:, None] * 64 + np.arange(64)
        x, y, _ = self.block
        ids = item % x | item // x % y << 10 | item // (x * y) << 20
        real = item < self.threads
        g.v[0] = np.where(real, ids, 0).astype(U32)
        g.s[EXEC], g.s[EXEC + 1] = pack_mask(real)
        g.update_exec()


BARRIER_BYTES: Final = 4


class _Scheduler:
    """Run groups, the one with the lowest pc first; groups that meet at a pc merge, a branch can split one."""

    def __init__(self, program: Program, stats: Stats) -> None:
        self.program, self.stats = program, stats
        self.ready: list[Group] = []
        self.waiting: list[Group] = []

    def run(self, group: Group) -> None:
        """Run until every wave has ended."""
        self.ready.append(group)
        for _ in range(MAX_BLOCKS):
            if not self.ready:
                if not self.waiting:
                    return
                self._open_barrier()
            g = self._next()
            while self._run_block(g) and not self.ready:
                pass
        raise EmulatorError(f"more than {MAX_BLOCKS} basic blocks: does the kernel loop for ever?")

    def _open_barrier(self) -> None:
        """No wave can run: every one that lives is at its barrier."""
        run = self.waiting[0].run
        if run.observer is not None:
            run.observer.barrier(self.waiting[0].pc - BARRIER_BYTES)
        if run.races is not None:
            run.races.barrier()
            for g in self.waiting:
                pending.note_unfinished_reads(g)
        if run.order is not None:
            run.order.barrier(self.waiting)
        self.ready, self.waiting = self.waiting, []

    def _next(self) -> Group:
        first = min(self.ready, key=lambda g: g.pc)
        signature = first.signature()
        same = [g for g in self.ready if g.pc == first.pc and (g is first or g.signature() == signature)]
        self.ready = [g for g in self.ready if all(g is not other for other in same)]
        self.stats.merges += len(same) - 1
        return merge(same)

    def _run_block(self, g: Group) -> bool:
        """Run one basic block; return whether the group itself goes on now."""
        block = self.program.block(g.pc)
        position = 0
        try:
            for position, step in enumerate(block.steps):  # noqa: B007
                step(g)
        except Exception as error:
            raise _located(error, g, block.stepped[position]) from error
        self.stats.blocks[block.start] += g.width
        return self._leave(g, block)

    def _leave(self, g: Group, block: Block) -> bool:
        assert block.last is not None
        if block.end is End.FALL:
            g.pc = block.following
        elif block.end is End.JUMP:
            g.pc = branch_target(block.last)
        elif block.end is End.STOP:
            self.stats.mfma += g.mfma
            self.stats.trips = max(self.stats.trips, g.trips)
            return False
        elif block.end is End.BARRIER:
            g.pc = block.following
            self.waiting.append(g)
            return False
        elif block.end is End.BRANCH:
            taken = condition(g, block.last.name.removeprefix("s_cbranch_"))
            return self._go(g, np.where(taken, branch_target(block.last), block.following))
        else:
            return self._go(g, self._indirect(g, block))
        if self.ready:
            self.ready.append(g)
            return False
        return True

    def _go(self, g: Group, targets: Array) -> bool:
        """Continue at a pc for each wave; part the group where they differ."""
        different = np.unique(targets)
        if different.size == 1:
            g.pc = int(different[0])
            if not self.ready:
                return True
            self.ready.append(g)
            return False
        self.stats.splits += 1
        self.stats.mfma += g.mfma
        self.ready += [g.take(np.nonzero(targets == pc)[0], int(pc)) for pc in different]
        return False

    def _indirect(self, g: Group, block: Block) -> Array:
        """s_setpc_b64, and s_swappc_b64, which keeps the way back."""
        assert block.last is not None
        source = block.last.operands[-1].index
        targets = pair(g.s[source], g.s[source + 1])
        if block.last.name == "s_swappc_b64":
            back = block.last.operands[0].index
            g.s[back], g.s[back + 1] = U32(block.following & 0xFFFFFFFF), U32(block.following >> 32)
        return targets.astype(U64)


def _located(error: Exception, g: Group, i: Instruction) -> EmulatorError:
    """Return the error with the place where it happened."""
    kind: Callable[..., EmulatorError] = type(error) if isinstance(error, EmulatorError) else EmulatorError
    text = str(error) if isinstance(error, EmulatorError) else f"{type(error).__name__}: {error}"
    text = f"{text}, at pc 0x{i.pc:x} `{i.text}`"
    if not isinstance(error, LaneError):
        return kind(text)
    flat = error.position if g.lanes is None else int(g.lanes[error.position])
    wave = int(g.wave_ids[flat // 64])
    x, y, _ = g.run.grid
    workgroup = g.run.first + wave // g.run.waves_per_group
    where = (workgroup % x, workgroup // x % y, workgroup // (x * y))
    return kind(f"{text}, workgroup {where}, wave {wave % g.run.waves_per_group}, lane {flat % 64}", error.position)
