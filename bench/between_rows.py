"""Between the rows of a routing table: what the router takes for sizes that no row names, against tuning them afresh.

    PYTHONPATH=. python bench/between_rows.py [-o bench/results/between_rows_h200.json] [--count 40] [--jobs 16]

Sizes are drawn: N and K of 1024 to 32768 and 512 to 16384, M of 1 to 4096, all by their logarithms, with a format of A;
those of a weight that a table has rows of are left out. For each the configurations of tuning are measured, as mxgemm
tune does (prepared weights, device time of whole calls by graph replay over rotating copies, right before timed), then
the quickest three and the router's own choice once more, for longer, in turn. loss is how much longer the router's
choice takes than the quickest of them all; screened has what each configuration took at first, known where a nearby row
names it. The router knows the shipped tables alone. Exit status 1 where the median
loss is above 10 % or the worst one above 25 %.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import torch

from mxgemm.device import machine_of
from mxgemm.measure import building, output
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.held import Held
from mxgemm.measure.search import Candidate, Search
from mxgemm.measure.tune import Bench, Task
from mxgemm.mx.formats import ActivationFormat
from mxgemm.routing.router import choose
from mxgemm.routing.tables import shipped

KIND = "mxgemm-between-rows"
SEED = 40
MEDIAN, WORST = 0.10, 0.25
ROUTES = ("w4_mma", "w4_wgmma", "fp8_fold", "dequant_mm")
"""Those that are the quickest somewhere on Hopper; Triton's, which compile for seconds, are not."""
SCREEN, AGAIN = 0.004, 0.012
"""Seconds for each candidate, and for each of the finalists, twice."""
FINALISTS = 3


def main() -> None:
    """Draw, build, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="sizes")
    parser.add_argument("--patience", type=int, default=5, help="as mxgemm tune takes it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that build, 0 for none")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no size is begun")
    parser.add_argument("--build-only", action="store_true", help="measure nothing")
    output.add_options(parser, Path("bench/results/between_rows_h200.json"))
    arguments = parser.parse_args()
    device, begin = torch.device("cuda", 0), time.monotonic()
    tasks = list(drawn("sm_90", arguments.count))
    if arguments.jobs:
        built = building.build(tasks, machine_of(device), ROUTES, 1 + arguments.patience, arguments.jobs)
        print(f"built for {built.bound} configurations", *built.failures, sep="\n", flush=True)
    if arguments.build_only:
        return
    keep = output.json_file(arguments, KIND)
    heat()
    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "clocks": {"start": clocks(device)},
        "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "patience": arguments.patience,
        "rows": rows,
    }
    held = Held(device)
    for task in tasks:
        if time.monotonic() - begin > arguments.budget:
            break
        rows.append(measured(task, device, held, arguments.patience))
        print(said(rows[-1]), flush=True)
    losses = [row["loss"] for row in rows]
    document |= {"median_loss": statistics.median(losses), "worst_loss": max(losses)}
    document["clocks"]["end"] = clocks(device)
    keep(document)
    print(f"median {document['median_loss']:.1%}, worst {document['worst_loss']:.1%}", flush=True)
    sys.exit(document["median_loss"] > MEDIAN or document["worst_loss"] > WORST)


def drawn(arch: str, count: int) -> Iterator[Task]:
    """Yield tasks that are the same in every run, of weights that no table has rows of."""
    generator, weights = random.Random(SEED), {weight for table in shipped(arch) for weight in table.by_weight}
    formats, found = get_args(ActivationFormat), 0
    while found < count:
        n, k = (128 * round(of_logarithm(generator, *span) / 128) for span in ((1024, 32768), (512, 16384)))
        m, a_format = round(of_logarithm(generator, 1, 4096)), generator.choice(formats)
        if (n, k) not in weights:
            found += 1
            yield Task((m, n, k), a_format)


def of_logarithm(generator: random.Random, low: float, high: float) -> float:
    """Draw a number whose logarithm is as likely everywhere."""
    return math.exp(generator.uniform(math.log(low), math.log(high)))


def measured(task: Task, device: torch.device, held: Held, patience: int) -> dict[str, Any]:
    """Tune a size, and time the quickest and what the router takes once more."""
    bench = Bench(task, device, ROUTES, held)
    search, times = Search(bench.candidates, patience), dict[Candidate, float]()
    while (candidate := search.next()) is not None:
        us = bench.measure(candidate, SCREEN).us
        search.take(candidate, us)
        if us is not None:
            times[candidate] = us
    choice = choose(bench.problem, tables=[])
    routed = Candidate(choice.route.name, choice.config, 0.0)
    finalists = sorted(times, key=lambda one: times[one])[:FINALISTS]
    again: dict[Candidate, list[float]] = {one: [] for one in [routed, *finalists]}
    for _ in range(2):
        for one, taken in again.items():
            timing = bench.measure(one, AGAIN)
            if timing.us is None:
                raise RuntimeError(f"{task} {one.route}: {one.config}: {timing.reason}")
            taken.append(timing.us)
    final = {one: statistics.mean(taken) for one, taken in again.items()}
    best = min(final, key=lambda one: final[one])
    m, n, k = task.shape
    return {
        **{"m": m, "n": n, "k": k, "a_format": task.a_format, "measured": search.measured},
        "routed": described(routed, final[routed]) | {"reason": choice.reason},
        "best": described(best, final[best]),
        "screened": [
            described(one, us) | {"known": one.known} for one, us in sorted(times.items(), key=lambda i: i[1])
        ],
        "loss": round(final[routed] / final[best] - 1, 4),
    }


def described(candidate: Candidate, us: float) -> dict[str, Any]:
    """Return a candidate as the document holds it."""
    return {"route": candidate.route, "config": candidate.config.to_mapping(), "us": round(us, 3)}


def said(row: dict[str, Any]) -> str:
    """Return a line for a size."""
    routed, best = row["routed"], row["best"]
    size = f"{row['m']},{row['n']},{row['k']} {row['a_format']}"
    return f"{size}: {routed['route']} {routed['us']:.2f}, best {best['route']} {best['us']:.2f}: {row['loss']:.1%}"


def heat() -> None:
    """Bring the clocks up."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(60):
        torch.mm(x, x)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
