"""Predict the time of a launch on an MI355X from what its machine code executes in the emulator, strictly.

    figures = figures_of(stats, profile, program, kernel, workgroups, waves)
    parts = predict(figures, problem)      # microseconds by cause; their sum is the prediction

Arithmetic, not a measurement. Every number that is not counted is one of ``ASSUMPTIONS``, with where it comes from;
where public sources give a range or nothing, the pessimistic side is taken, and nothing overlaps but what is said to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gfx950emu import Stats
from gfx950emu.profile import Profile, issue_cycles
from gfx950emu.program import Program
from mxgemm.problem import Problem


@dataclass(frozen=True)
class Assumption:
    """A number of the model.

    Attributes:
        value: the number.
        unit: of it.
        what: it stands for.
        source: where it comes from; "assumed" where nothing public says.
    """

    value: float
    unit: str
    what: str
    source: str


ASSUMPTIONS: Final = {
    "dispatch": Assumption(
        2.5, "us", "from the event before a launch to its first wave, and from the last one to the event behind",
        "AITER's shortest tuned kernels, 3.5 us (routing_tables/gfx950.json), less a miss; with a fetch of code",
    ),
    "launch": Assumption(1.5, "us", "each further launch of a call", "assumed"),
    "arguments": Assumption(
        0.3, "us", "the scalar cache's miss, where a kernel waits for its arguments before its first load",
        "assumed, the least: AMD's MI300X workload guide says 2 to 3 us where arguments lie in the host's memory",
    ),
    "miss": Assumption(
        0.9, "us", "a load from HBM to its data; counted for each that is issued after another one's data came",
        "MI300X pointer chases of 0.7 to 0.8 us, and a TLB miss; assumed to be the same here",
    ),
    "handover": Assumption(
        1.5, "us", "store, counter and load of workgroups that share a block, one behind the other and past L2",
        "assumed: three trips to the Infinity Cache, 0.3 to 0.5 us each",
    ),
    "clock": Assumption(2.4, "GHz", "engine", "MI355X data sheet, peak"),
    "hbm": Assumption(5.0, "TB/s", "bytes that must move", "MI355X data sheet, 8 at peak; 60 % assumed at these sizes"),
    "infinity_cache": Assumption(
        10.0, "TB/s", "partial sums, which pass it and not HBM",
        "CDNA3 white paper, 17.2 at peak; 60 % assumed, and MI355X to be no slower",
    ),
    "l1": Assumption(
        64, "bytes a cycle", "of a CU, in pieces of 64 bytes to lanes that are neighbours: gfx950emu/profile.py",
        "CDNA3 white paper (64 bytes a cycle); ROCm Compute Profiler, vL1D coalescing (25 % to 100 %)",
    ),
    "code": Assumption(
        16, "bytes a cycle", "instructions that are fetched for the first time, behind the first line",
        "assumed: straight code is prefetched, from L2, by one wave for two CUs that share the cache",
    ),
    "simds": Assumption(4, "SIMDs a CU", "each issues for its waves in turn; waves a SIMD rounded up", "CDNA4 ISA, 2"),
    "issue": Assumption(
        4, "cycles", "a VALU, scalar, LDS or memory instruction; MFMA and others as in gfx950emu/profile.py",
        "CDNA3 ISA, 4 (16 lanes a cycle); waves of a SIMD one after the other, only the matrix unit beside the others",
    ),
}  # fmt: skip


def of(name: str) -> float:
    """Return an assumption's number."""
    return ASSUMPTIONS[name].value


@dataclass(frozen=True)
class Figures:
    """What one launch executed.

    Attributes:
        workgroups: of the launch.
        waves: of a workgroup.
        issue_cycles: of an average wave, a matrix instruction like others.
        matrix_cycles: of an average wave, what it keeps the matrix unit busy.
        l1_cycles: of an average workgroup.
        lds_cycles: of an average workgroup.
        trips: loads and atomics of a wave that had to go one after the other.
        code_bytes: of instructions that were executed.
        waits_for_arguments: the first load waits for a scalar load of the arguments.
        hands_over: workgroups share blocks of the result, by counters.
    """

    workgroups: int
    waves: int
    issue_cycles: float
    matrix_cycles: float
    l1_cycles: float
    lds_cycles: float
    trips: int
    code_bytes: int
    waits_for_arguments: bool
    hands_over: bool


def figures_of(stats: Stats, profile: Profile, program: Program, kernel: str, workgroups: int, waves: int) -> Figures:
    """Return a launch's figures.

    Args:
        stats: of a strict run; only such a one counts trips.
        profile: the observer of that run.
        program: the code object.
        kernel: its name.
        workgroups: that do something, of those launched.
        waves: of a workgroup.
    """
    code = 0
    issue, matrix = 0.0, 0.0
    for pc, times in stats.blocks.items():
        for i in program.block(pc).instructions:
            unit, cycles = issue_cycles(i)
            code += 4 * len(i.words)
            issue += times * (of("issue") if unit == "mfma" else cycles)
            matrix += times * cycles * (unit == "mfma")
    return Figures(
        workgroups, waves, round(issue / workgroups / waves, 1), round(matrix / workgroups / waves, 1),
        round(profile.l1_cycles / workgroups, 1), round(profile.lds_cycles / workgroups, 1),
        stats.trips, code, waits_for_arguments(program, kernel),
        any("atomic" in name for name in stats.counts),
    )  # fmt: skip


def waits_for_arguments(program: Program, kernel: str) -> bool:
    """Say whether a scalar load is waited for before the first vector load, in the order of the code."""
    pc, loads, waits = program.kernel(kernel).entry, False, False
    while True:
        block = program.block(pc)
        for i in block.instructions:
            loads |= i.name.startswith("s_load")
            waits |= loads and i.name == "s_waitcnt" and "lgkmcnt" in i.text
            if i.name.startswith(("global_load", "buffer_load")) or i.name == "s_endpgm":
                return waits
        pc = block.following


def predict(launches: Sequence[Figures], problem: Problem, partial_bytes: int = 0) -> dict[str, float]:
    """Return microseconds by cause; the sum is the prediction.

    What must come from HBM and what passes L1 overlap, so the longer counts; waves, fetches and misses do not.

    Args:
        launches: of the call, in order.
        problem: for the bytes that must move, and the machine.
        partial_bytes: of partial sums, which are written and read.
    """
    cycle = 1e-3 / of("clock")
    hbm = problem.traffic_bytes / of("hbm") / 1e6
    sums = 2 * partial_bytes / of("infinity_cache") / 1e6
    parts = {
        "dispatch": of("dispatch") + (len(launches) - 1) * of("launch"),
        "arguments": sum(f.waits_for_arguments for f in launches) * of("arguments"),
        "misses": 0.0, "memory": 0.0, "lds": 0.0, "issue": 0.0, "code": 0.0, "handover": 0.0,
    }  # fmt: skip
    l1 = 0.0
    for f in launches:
        on_one_cu = -(-f.workgroups // problem.machine.cu_count)
        parts["handover"] += of("handover") * f.hands_over
        parts["misses"] += of("miss") * (f.trips - 2 * f.hands_over)
        on_one_simd = -(-on_one_cu * f.waves // int(of("simds")))
        parts["issue"] += max(f.issue_cycles, f.matrix_cycles) * on_one_simd * cycle
        parts["lds"] += f.lds_cycles * on_one_cu * cycle
        parts["code"] += f.code_bytes / of("code") * cycle
        l1 += f.l1_cycles * on_one_cu * cycle
    parts["memory"] = max(hbm, l1) + sums
    return {name: round(us, 2) for name, us in parts.items()} | {"l1": round(l1, 2), "hbm": round(hbm, 2)}


def total(parts: dict[str, float]) -> float:
    """Return the prediction."""
    return round(sum(us for name, us in parts.items() if name not in ("l1", "hbm")), 1)


def table() -> list[dict[str, Any]]:
    """Return the assumptions as rows."""
    return [
        {"name": name, **{f: getattr(a, f) for f in ("value", "unit", "what", "source")}}
        for name, a in ASSUMPTIONS.items()
    ]
