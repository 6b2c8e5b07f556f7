"""What a kernel executed: instructions by class, bytes by width, LDS bank conflicts, and an estimate of issue cycles.

The estimate compares two versions of a kernel on paper. It is arithmetic on counts, with the assumptions that
``ASSUMPTIONS`` lists; nothing about it was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.hazards import TRANSCENDENTAL, passes_of
from gfx950emu.launch import Stats
from gfx950emu.numeric import Array
from gfx950emu.program import Program

BANKS: Final = 64
L1_BYTES: Final = 64
"""What L1 serves in a cycle, to lanes that are neighbours."""
SIMDS: Final = 4
ASSUMPTIONS: Final = (
    "each wave issues alone: a VALU instruction takes 4 cycles of its SIMD, 16 if transcendental, 8 if 64 bits wide",
    "an MFMA takes its passes of 4 cycles: 16x16x128 f8f6f4 4 passes, 8 with an 8-bit operand; 32x32x64 twice that",
    "scalar, branch, wait, memory and LDS instructions take 4 cycles to issue; an s_nop N takes 4 * (N + 1)",
    f"LDS has {BANKS} banks of 4 bytes and serves {BANKS * 4} bytes a cycle: 64 lanes of 4 bytes, 16 of 16",
    "memory latency, waiting, cache misses and contention between waves are not in it",
)


def class_of(mnemonic: str) -> str:
    """Name the unit that issues an instruction."""
    if mnemonic.startswith("v_mfma_scale"):
        return "mfma_scaled"
    if mnemonic.startswith("v_mfma"):
        return "mfma"
    if mnemonic.startswith("v_cvt"):
        return "convert"
    if mnemonic.startswith("v_"):
        return "valu"
    if mnemonic.startswith("ds_"):
        return "lds"
    if mnemonic.startswith(("s_load", "s_buffer_load")):
        return "smem"
    if mnemonic.startswith("s_waitcnt"):
        return "wait"
    if mnemonic.startswith("s_nop"):
        return "nop"
    if mnemonic.startswith(("buffer_inv", "buffer_wb")):
        return "cache"
    if mnemonic.startswith(("global_", "buffer_", "flat_", "scratch_")):
        return next((kind for kind in ("store", "atomic") if kind in mnemonic), "load")
    if mnemonic.startswith(("s_cbranch", "s_branch", "s_setpc", "s_endpgm", "s_barrier")):
        return "branch"
    return "salu"


def by_class(counts: Mapping[str, int]) -> dict[str, int]:
    """Sum executions of mnemonics by class."""
    found: Counter[str] = Counter()
    for mnemonic, count in counts.items():
        found[class_of(mnemonic)] += count
    return dict(sorted(found.items()))


class Profile:
    """An observer of a launch: pass it to ``run_code_object`` and print ``report``.

    Attributes:
        lanes: how many lanes made an access of each (kind, size in bytes).
        l1_cycles: that L1 was busy with loads, see :func:`l1_cycles`.
        lds_cycles: cycles that LDS was busy.
        lds_conflicts: of those, cycles beyond the first of each group of lanes.
    """

    def __init__(self) -> None:
        self.lanes: Counter[tuple[str, int]] = Counter()
        self.l1_cycles = 0
        self.lds_cycles = 0
        self.lds_conflicts = 0

    def device(self, kind: str, size: int, addresses: Array, lanes: Array | None) -> None:
        """Note an access to device memory."""
        self.lanes[kind, size] += addresses.size
        if kind.startswith("load"):
            self.l1_cycles += l1_cycles(addresses, size, np.arange(addresses.size) if lanes is None else lanes)

    def barrier(self, pc: int) -> None:
        """A barrier moves nothing."""

    def lds(
        self, addresses: Array, size: int, lanes: Array | None, *, writes: bool, waves: Array, waves_per_group: int
    ) -> None:
        """Note an LDS access; the lanes of a wave go in groups that fill the banks."""
        del writes, waves, waves_per_group
        active = np.ones(addresses.size, bool)
        if lanes is not None:
            active[:] = False
            active[lanes] = True
        self.lanes["lds", size] += int(active.sum())
        group = 64 if size <= 4 else 32 if size == 8 else 16
        cycles = conflict_cycles(addresses, size, active, group)
        self.lds_cycles += int(cycles.sum())
        self.lds_conflicts += int(np.maximum(cycles - 1, 0).sum())


def l1_cycles(addresses: Array, size: int, lanes: Array) -> int:
    """Return the cycles that L1 takes for a load: it serves a piece of 64 bytes in each, to lanes that are neighbours.

    So 64 lanes with 16 bytes each take 16 cycles where four of them share a piece, and 64 where each has its own: the
    range from 100 % to 25 % that AMD's profiler calls coalescing (ROCm Compute Profiler, vector L1 cache).
    """
    neighbours = lanes // max(1, L1_BYTES // size)
    first, last = (addresses.astype(np.int64) + end >> 6 for end in (0, size - 1))
    pieces = np.unique(np.concatenate([neighbours << 44 ^ first, neighbours << 44 ^ last]))
    return int(pieces.size)


def conflict_cycles(addresses: Array, size: int, active: Array, group: int) -> Array:
    """Return the cycles of each group of lanes: the most different dwords that one bank has to give."""
    dwords = (addresses >> 2)[:, None] + np.arange((size + 3) // 4)
    groups = -(-addresses.size // group)
    number = np.repeat(np.arange(addresses.size) // group, dwords.shape[1])[np.repeat(active, dwords.shape[1])]
    key = np.unique(number.astype(np.int64) << 32 | dwords.reshape(-1)[np.repeat(active, dwords.shape[1])])
    per_bank = np.bincount((key >> 32) * BANKS + key % BANKS, minlength=groups * BANKS)
    return per_bank.reshape(groups, BANKS).max(axis=1)


def issue_cycles(i: Instruction) -> tuple[str, int]:
    """Return the unit an instruction keeps busy, and for how long."""
    kind = class_of(i.mnemonic)
    if kind.startswith("mfma"):
        return "mfma", 4 * passes_of(i)
    if kind in ("valu", "convert"):
        wide = "64" in i.name.rsplit("_", 1)[-1]
        return "valu", 16 if i.name.startswith(TRANSCENDENTAL) else 8 if wide else 4
    if kind == "nop":
        return "wait", 4 * (i.immediate + 1)
    return kind, 4


def estimate(stats: Stats, program: Program) -> dict[str, float]:
    """Return issue cycles of an average wave by unit."""
    cycles: Counter[str] = Counter()
    for pc, times in stats.blocks.items():
        for i in program.block(pc).instructions:
            unit, each = issue_cycles(i)
            cycles[unit] += each * times
    return {unit: total / stats.waves for unit, total in sorted(cycles.items(), key=lambda item: -item[1])}


def report(profile: Profile, stats: Stats, program: Program) -> Iterator[str]:
    """Yield the lines of a report."""
    yield f"{stats.waves} waves, {sum(stats.counts.values())} instructions, {stats.mfma} MFMA"
    yield "executed, all waves together:"
    for kind, count in sorted(by_class(stats.counts).items(), key=lambda item: -item[1]):
        yield f"  {kind:12} {count:12}   {count / stats.waves:10.1f} a wave"
    yield "bytes by width of a lane's access:"
    for (kind, size), lanes in sorted(profile.lanes.items()):
        yield f"  {kind:12} {size:3} bytes {lanes:12} lanes {lanes * size:14} bytes"
    yield f"LDS: {profile.lds_cycles} cycles, of which {profile.lds_conflicts} for conflicts over {BANKS} banks"
    cycles = estimate(stats, program)
    yield f"issue cycles of an average wave (estimate): {sum(cycles.values()):.0f}"
    for unit, each in cycles.items():
        yield f"  {unit:12} {each:12.1f}"
    yield "  assumed:"
    for line in ASSUMPTIONS:
        yield f"  - {line}"
