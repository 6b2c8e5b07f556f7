"""Which configuration of w4_mma is fastest, on weights that models have: measured within a budget of seconds.

    PYTHONPATH=. python bench/mma_table.py -o mma_table.json [--seconds 190]
    PYTHONPATH=. python bench/mma_table.py -o part.json --only bf16:raw --least 1.6e7 --built 14 --width 24

For every weight below and M of 1 to 32, in each format and form, the configurations that the route's own estimate puts
first: each is launched once and judged, timed briefly, and the fastest again; device time of whole calls by graph
replay over rotating weights, beside torch.mm in bf16 in the same run. Rows of routing_tables/sm_90.json with the source
"mma" are of three such runs; ``mxgemm tune`` measures fewer configurations and starts from those.

The budget is kept: first what is built, in processes that are forked before CUDA starts, then what is measured, in the
order of PASSES; what there was no time for is left out, and said. Exit status 1 if a configuration was wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mxgemm
from bench.hopper import WEIGHTS
from bench.w4_kernels import HEATER, Instance, Shape, build_one, rounded
from bench.w4_mma import instances, timed_problem
from mxgemm.cuda import w4_mma
from mxgemm.cuda.operands import CHUNK
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_mma_choice import candidates
from mxgemm.device import machine_of
from mxgemm.measure import output
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx.accuracy import NORM_GATE
from mxgemm.mx.fragments import fragment_order
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands

KIND = "mxgemm-w4-mma-table"
SMALL = ((2880, 512), (4096, 512), (2112, 7168), (7168, 2048), (3072, 1536), (2880, 2880), (5760, 2880))
MS = (1, 2, 4, 8, 16, 32)
LARGEST_MS = (1, 4, 16, 32)
FEW_MS = (1, 16, 32)
LARGEST = 3e8
"""Elements of a weight that is measured at fewer M."""
FEW_ELEMENTS = 2e7
"""From this weight on launches that round A are also timed without overlapping what comes before."""
PASSES = (
    *(("e2m1", "prepared", MS, 5), ("bf16", "prepared", MS, 3), ("bf16", "raw", MS, 3), ("e2m1", "raw", MS, 3)),
    ("e4m3", "prepared", FEW_MS, 2),
)
"""Format, form, M, and how many configurations are built for each problem."""
BUILD_SHARE = 0.45
"""Of the budget that builds may take."""
KEPT_BACK = 6.0
"""Seconds of it for writing."""
SCREEN = Effort(seconds=0.003, least=3, most=6)
FINAL = Effort(seconds=0.012, least=5, most=40)
MOST_BUILT = max(built for *_, built in PASSES)
"""The passes that build so many also try the first one with registers left to the compiler."""
AGAIN = 3
TWICE = 4
"""Configurations of a ranking that may differ in what is in flight alone."""
ROWS_JUDGED = 512
"""Of the weight, the first and the last ones."""


class Work(NamedTuple):
    """A problem and the configurations that are timed on it."""

    shape: Shape
    a_format: str
    form: str
    configs: tuple[MmaConfig, ...]


@dataclass
class Clock:
    """A budget in seconds, from the start of the process's work."""

    seconds: float
    started: float

    def left(self, share: float = 1.0) -> float:
        """Return what is left of a share of the budget."""
        return self.seconds * share - (time.monotonic() - self.started)


def planned(width: int, only: Sequence[str] = (), least: float = 0, built_of_all: int = 0) -> list[Work]:
    """Return what to measure, most important first.

    Args:
        width: configurations of a problem.
        only: passes, as format:form; all by default.
        least: elements of a weight.
        built_of_all: configurations that are built for a problem, where not as the pass says.

    Kernels know the class of M, whether K has a tail and how often warps come back for more of it, not N and K: the
    first configurations of every problem are built, and of all that there are for its class each problem takes the
    first ``width``.
    """
    work: list[Work] = []
    for a_format, form, ms, of_pass in PASSES:
        if only and f"{a_format}:{form}" not in only:
            continue
        built = built_of_all or of_pass
        weights = [(n, k) for n, k in (*SMALL, *WEIGHTS) if n * k >= least]
        shapes = [(m, n, k) for n, k in weights for m in ms if n * k < LARGEST or m in LARGEST_MS]
        ranked = {shape: ranking(*rows_and_weight(shape), a_format, form) for shape in shapes}
        pools: dict[tuple[object, ...], set[MmaConfig]] = {}
        for shape in shapes:
            pool = pools.setdefault(class_of(shape), set())
            pool.update(ranked[shape][:built])
            pool.update(called_early(ranked[shape][0], form))
            if built >= MOST_BUILT:
                pool.add(replace(ranked[shape][0], resident=0))
        for shape in shapes:
            pool = pools[class_of(shape)]
            chosen = [config for config in ranked[shape] if config in pool][:width]
            unbound = replace(chosen[0], resident=0)
            for config in (unbound, *called_early(chosen[0], form)):
                if config in pool and config not in chosen:
                    chosen.append(config)
            work.append(Work(shape, a_format, form, tuple(chosen)))
    return work


def called_early(config: MmaConfig, form: str) -> list[MmaConfig]:
    """Return the configuration with the weight called to L2 first, where the route's estimate leaves that out."""
    return [] if config.prefetch or form == "raw" else [replace(config, prefetch=True)]


def rows_and_weight(shape: Shape) -> Shape:
    """Return a size with the M that its configurations are ranked for."""
    m, n, k = shape
    return next(rows for rows in (2, 8, 16, 32) if rows >= m), n, k


def class_of(shape: Shape) -> tuple[object, ...]:
    """Return what of a size a kernel is built for, and whether calls on the weight are short."""
    rows, n, k = rows_and_weight(shape)
    return max(w4_mma.TILE_M, rows), k % CHUNK != 0, n * k < FEW_ELEMENTS


@cache
def ranking(rows: int, n: int, k: int, a_format: str, form: str) -> Sequence[MmaConfig]:
    """Return the route's candidates, of each division among warps one, or two of the first; they overlap."""
    problem = timed_problem((rows, n, k), a_format, form)
    seen: Counter[tuple[object, ...]] = Counter()
    found: list[MmaConfig] = []
    for config in candidates(problem):
        of_a = config.a_before, config.a_codes, config.a_slots > 0
        division = config.tiles, config.warps_n, config.warps_m, config.warps_k, *of_a
        seen[division] += 1
        if seen[division] <= (2 if len(found) < TWICE else 1):
            found.append(replace(config, overlap=True))
    return found


def instances_of(problem: Problem, config: MmaConfig) -> list[Instance]:
    """Return the builds of a configuration; a launch that rounds A both as it overlaps what comes before and not."""
    overlaps = (False, True) if config.a_before else (config.overlap,)
    return [one for overlap in overlaps for one in instances(problem, replace(config, overlap=overlap))]


def build_all(work: Iterable[Work], clock: Clock) -> set[Instance]:
    """Build in forked processes until the time for it is over; return what is there."""
    wanted = dict.fromkeys(
        instance
        for shape, a_format, form, configs in work
        for config in configs
        for instance in instances_of(timed_problem(shape, a_format, form), config)
    )
    there: set[Instance] = set()
    pool = multiprocessing.get_context("fork").Pool(min(16, os.cpu_count() or 1))
    results = pool.imap_unordered(build_one, wanted, chunksize=1)
    try:
        for _ in wanted:
            instance, error = results.next(timeout=max(0.1, clock.left(BUILD_SHARE)))
            if error:
                print(error, flush=True)
            else:
                there.add(instance)
    except multiprocessing.TimeoutError:
        pass
    pool.terminate()
    pool.join()
    taken = clock.seconds - clock.left()
    print(f"built {len(there)} of {len(wanted)} instances in {taken:.1f} s", flush=True)
    return there


@dataclass
class Weight:
    """Copies of a weight in both forms, for every M."""

    raw: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]]
    prepared: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]]
    rows: Tensor
    values: Tensor
    torch_us: dict[int, float]

    @classmethod
    def drawn(cls, n: int, k: int, ms: Sequence[int], device: torch.device) -> Weight:
        """Draw codes and scales; time torch.mm on as large weights in bf16."""
        cache = cache_bytes(device)
        torch_us = {}
        right = [torch.randn(n, k, device=device, dtype=torch.bfloat16) for _ in range(copies_needed(2 * n * k, cache))]
        for m in ms:
            a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
            out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
            torch_us[m] = graph_us([partial(torch.mm, a, b.t(), out=out) for b in right], FINAL).us
        del right
        data = torch.randint(256, (n, k // 2), device=device, dtype=torch.uint8)
        scales = torch.randint(114, 132, (n, k // 32), device=device, dtype=torch.uint8)
        order = fragment_order(data, scales)
        copies = range(copies_needed(n * k * 17 // 32, cache))
        rows = torch.cat((torch.arange(min(n, ROWS_JUDGED)), torch.arange(max(0, n - ROWS_JUDGED), n))).to(device)
        some = mxgemm.quantize(torch.zeros(len(rows), k, device=device))
        values = mxgemm.dequantize(replace(some, data=data[rows], scales=scales[rows])).double()
        nothing = torch.empty(0, dtype=torch.bfloat16, device=device)
        return cls(
            [(data.clone(), scales.clone(), ()) for _ in copies],
            [(data, scales, (nothing, order.clone())) for _ in copies],
            *(rows, values, torch_us),
        )


def measured(
    work: Sequence[Work], there: set[Instance], clock: Clock, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Yield a row for each configuration that was timed, or was wrong."""
    heater = torch.randn(HEATER, HEATER, device=device, dtype=torch.bfloat16)
    weights: dict[tuple[int, int], Weight] = {}
    for i, (shape, a_format, form, configs) in enumerate(work):
        if clock.left() < KEPT_BACK:
            print(f"no time for {len(work) - i} of {len(work)} problems", flush=True)
            return
        m, n, k = shape
        if (n, k) not in weights:
            ms = sorted({m for m, *nk in (one.shape for one in work) if tuple(nk) == (n, k)})
            weights[n, k] = Weight.drawn(n, k, ms, device)
        weight = weights[n, k]
        problem = replace(timed_problem(shape, a_format, form), machine=machine_of(device))
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        copies = weight.prepared if form == "prepared" else weight.raw
        calls = [Operands(a, None, b, scales, None, out, derived) for b, scales, derived in copies]
        exact = rounded(a, a_format) @ weight.values.T

        def us(
            config: MmaConfig, effort: Effort, problem: Problem = problem, calls: Sequence[Operands] = calls
        ) -> float:
            launch = ROUTES["w4_mma"].bind(problem, config)
            return graph_us([partial(launch, operands) for operands in calls], effort).us

        row = {"m": m, "n": n, "k": k, "a_format": a_format, "form": form, "torch_us": round(weight.torch_us[m], 3)}
        found: list[tuple[float, MmaConfig]] = []
        for config in configs:
            if not there.issuperset(instances_of(problem, config)):
                continue
            out.fill_(float("nan"))
            ROUTES["w4_mma"].bind(problem, config)(calls[0])
            wrong = error_of(out, exact, weight.rows)
            if wrong:
                print(f"WRONG {row} {config}: {wrong}", flush=True)
                yield {**row, "wrong": wrong, "config": config.to_mapping()}
            else:
                found.append((us(config, SCREEN), config))
        for _ in range(6):
            torch.mm(heater, heater)
        found.sort(key=lambda pair: pair[0])
        finalists = [config for _, config in found[:AGAIN]]
        if n * k >= FEW_ELEMENTS:  # a launch of its own that rounds A is built both ways
            finalists += [replace(config, overlap=False) for config in finalists[:2] if config.a_before]
        final = sorted(((us(config, FINAL), config) for config in finalists), key=lambda pair: pair[0])
        for again, pairs in ((True, final), (False, found)):
            for time_us, config in pairs:
                yield {**row, "us": round(time_us, 3), "again": again, "config": config.to_mapping()}
        if final:
            ratio = final[0][0] / weight.torch_us[m]
            print(f"{m},{n},{k} {a_format} {form}: {final[0][0]:.2f} {ratio:.3f}  {final[0][1]}", flush=True)


def error_of(out: Tensor, exact: Tensor, rows: Tensor) -> str:
    """Return what is wrong with a result, of which the values of some rows of the weight are known."""
    if not bool(out.isfinite().all()):
        return "values that are not finite"
    error = float((out[:, rows].double() - exact).norm() / exact.norm())
    of_output = float((exact.to(out.dtype).double() - exact).norm() / exact.norm())
    limit = max(NORM_GATE, 1.05 * of_output)  # few results may be rounded by more than the gate
    return "" if error <= limit else f"norm {error:.2e}, at most {limit:.1e}"


def main(given: Sequence[Work] | None = None) -> None:
    """Build, measure, write; what is ``given``, or what is planned here."""
    clock = Clock(0.0, time.monotonic())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=190.0, help="the whole run takes no longer")
    parser.add_argument("--width", type=int, default=8, help="configurations of a problem")
    parser.add_argument("--only", action="append", default=[], help="A_FORMAT:FORM, a pass; repeat for more")
    parser.add_argument("--least", type=float, default=0, help="elements of a weight")
    parser.add_argument("--built", type=int, default=0, help="configurations built for a problem; default: by the pass")
    output.add_options(parser, Path("mma_table.json"))
    arguments = parser.parse_args()
    clock.seconds = arguments.seconds
    keep = output.json_file(arguments, KIND)
    work = given or planned(arguments.width, arguments.only, arguments.least, arguments.built)
    there = build_all(work, clock)
    device = torch.device("cuda", 0)
    machine = machine_of(device)
    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": {"arch": machine.arch, "device": machine.name, "compute_units": machine.cu_count},
        "torch": torch.__version__,
        "rows": rows,
    }
    written = time.monotonic()
    for row in measured(work, there, clock, device):
        rows.append(row)
        if time.monotonic() - written > 20:
            keep(document)
            written = time.monotonic()
    keep(document)
    print(f"{arguments.output}: {len(rows)} times in {arguments.seconds - clock.left():.0f} s", flush=True)
    sys.exit(any("wrong" in row for row in rows))


if __name__ == "__main__":
    main()
