"""Between the rows of a routing table: what the router takes for sizes that no row names, against tuning them afresh.

    PYTHONPATH=. python bench/between_rows.py [-o bench/results/between_rows_h200.json] [--count 40] [--jobs 16]
    PYTHONPATH=. python bench/between_rows.py --build-only     # without a GPU: what the other one builds meanwhile
    PYTHONPATH=. python bench/between_rows.py --judge          # without a GPU: what the router takes now, by that file

Sizes are drawn: N and K of 1024 to 32768 and 512 to 16384, M of 1 to 4096, all by their logarithms, with a format of A;
those of a weight that a table has rows of are left out. For each the configurations of tuning are measured, as mxgemm
tune does (prepared weights, device time of whole calls by graph replay over rotating copies, right before timed), then
the quickest three and the router's own choice once more, for longer, in turn. loss is how much longer the router's
choice takes than the quickest of them all; screened has what each configuration took at first, known where a nearby row
names it. The router knows the shipped tables alone. A run goes on with the sizes that the
file does not have yet; with --budget as far as it comes. Exit status 1 where the median loss is above 10 % or the worst
one above 25 %.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.files import FileError, read_json
from mxgemm.measure import building, output
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.held import Held
from mxgemm.measure.search import Candidate, Search
from mxgemm.measure.timing import heat
from mxgemm.measure.tune import Bench, Known, Task
from mxgemm.mx.formats import ActivationFormat
from mxgemm.routes import ROUTES as EVERY
from mxgemm.routes import Route
from mxgemm.routing.explain import problem_of
from mxgemm.routing.router import choose
from mxgemm.routing.tables import shipped, shipped_folder

KIND = "mxgemm-between-rows"
VERSION = 2
ARCH = "sm_90"
SEED = 40
MEDIAN, WORST = 0.10, 0.25
SLOW = ("a16wfp4", "w4a16", "gemm_mx", "quant_gemm_mx", "reference")
"""The quickest nowhere on Hopper; Triton's compile for seconds."""


def is_for_hopper(route: Route) -> bool:
    """Say whether a route is for such a machine, whatever is installed here."""
    missing = route.missing(KNOWN_MACHINES[ARCH])
    return missing is None or missing.about == "installation"


ROUTES = tuple(name for name, route in EVERY.items() if name not in SLOW and is_for_hopper(route))
SCREEN, AGAIN = 0.004, 0.012
"""Seconds for each candidate, and for each of the finalists, twice."""
FINALISTS = 3
SAME = ("mxgemm", "torch", "cuda", "triton", "device", "compute_units")
"""What the runs of one file share."""


def main() -> None:
    """Draw, build, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="sizes")
    parser.add_argument("--patience", type=int, default=5, help="as mxgemm tune takes it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that build ahead, 0 for none")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of measuring after which no size is begun")
    parser.add_argument("--build-only", action="store_true", help="measure nothing")
    parser.add_argument("--judge", action="store_true", help="measure nothing: what the router takes now, by the file")
    parser.add_argument("--anew", action="store_true", help="forget what the file has")
    output.add_options(parser, Path("bench/results/between_rows_h200.json"))
    arguments = parser.parse_args()
    if arguments.judge:
        sys.exit(told(read_json(arguments.output)["rows"]))
    tasks = list(drawn(ARCH, arguments.count))
    machine, each = KNOWN_MACHINES[ARCH], 2 * arguments.patience
    if arguments.build_only:
        built = building.build(tasks, machine, ROUTES, each, arguments.jobs or os.cpu_count() or 1)
        print(f"built for {built.bound} configurations", *built.failures, sep="\n", flush=True)
        return
    device = torch.device("cuda", 0)
    environment = describe_environment(device)
    keep = output.json_file(arguments, KIND)
    old = None if arguments.anew else before(arguments.output, environment, arguments.patience)
    heat(device)
    run: dict[str, Any] = {
        "environment": environment,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "table": hashlib.sha256((shipped_folder() / f"{ARCH}.json").read_bytes()).hexdigest()[:16],
        "clocks": {"start": clocks(device)},
    }
    document: dict[str, Any] = {
        **{"kind": KIND, "version": VERSION},
        "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        **{"patience": arguments.patience, "drawn": arguments.count},
        "runs": [*(old["runs"] if old else []), run],
        "rows": list(old["rows"]) if old else [],
        "failures": [],
    }
    held, has = Held(device), {size_of(row) for row in document["rows"]}
    with ExitStack() as stack:
        known: Known = lambda task: None  # noqa: E731
        if arguments.jobs:
            left = [task for task in tasks if (*task.shape, task.a_format) not in has]
            known = building.Ahead(left, machine, ROUTES, each, arguments.jobs)
            stack.callback(known.close)
        go(
            document,
            tasks,
            lambda task: measured(task, device, held, arguments.patience, known),
            keep,
            arguments.budget,
        )
    run["clocks"]["end"] = clocks(device)
    keep(document)
    losses = [row["loss"] for row in document["rows"]]
    if losses:
        print(
            f"{len(losses)} of {len(tasks)}: median {document['median_loss']:.1%}, worst {document['worst_loss']:.1%}"
        )
    sys.exit(not losses or document["median_loss"] > MEDIAN or document["worst_loss"] > WORST)


def before(path: Path, environment: dict[str, Any], patience: int) -> dict[str, Any] | None:
    """Return what a file has of earlier runs on such a machine with these versions, None where it has nothing."""
    if not path.exists():
        return None
    try:
        old = read_json(path)
        runs = [{name: run["environment"][name] for name in SAME} for run in old["runs"]]
        now = {name: environment[name] for name in SAME}
        same = (old["version"], old["patience"]) == (VERSION, patience) and all(one == now for one in runs)
    except (FileError, KeyError):
        same = False
    print("goes on" if same else f"{path}: of another release, machine or patience: begun anew", flush=True)
    return old if same else None


def size_of(row: dict[str, Any]) -> tuple[int, int, int, str]:
    """Return what a row is of."""
    return row["m"], row["n"], row["k"], row["a_format"]


def go(
    document: dict[str, Any],
    tasks: list[Task],
    measure: Callable[[Task], dict[str, Any]],
    keep: Callable[[dict[str, Any]], None],
    budget: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Measure what a document has not, and keep it after each size: a killed run loses one."""
    begin, has = clock(), {size_of(row) for row in document["rows"]}
    for task in tasks:
        if (*task.shape, task.a_format) in has:
            continue
        start = clock()
        if start - begin > budget:
            break
        try:
            row = measure(task)
        except RuntimeError as error:  # what was the quickest, or the router's choice, cannot be run again
            document["failures"].append({"task": str(task), "error": str(error)})
            print(f"{task}: {error}", flush=True)
            continue
        document["rows"].append(row | {"run": len(document["runs"]) - 1})
        losses = [one["loss"] for one in document["rows"]]
        document |= {"median_loss": statistics.median(losses), "worst_loss": max(losses)}
        keep(document)
        print(f"{said(row)} ({clock() - start:.1f} s)", flush=True)


def told(rows: list[dict[str, Any]]) -> int:
    """Print what the router takes now for each size, and what that lost when all were measured; 1 where too much."""
    losses = []
    for row in rows:
        size = row["m"], row["n"], row["k"]
        choice = choose(problem_of(*size, KNOWN_MACHINES[ARCH], a_format=row["a_format"], prepared=True), tables=[])
        loss = loss_of(row, choice.route.name, choice.config.to_mapping())
        losses += [] if loss is None else [loss]
        what = "not measured then" if loss is None else f"{loss:.1%}"
        print(f"{','.join(map(str, size))} {row['a_format']}: {choice.route.name} {choice.config}: {what}")
    if not losses:
        return 1
    print(f"{len(losses)} of {len(rows)}: median {statistics.median(losses):.1%}, worst {max(losses):.1%}")
    return int(statistics.median(losses) > MEDIAN or max(losses) > WORST)


def loss_of(row: dict[str, Any], route: str, config: dict[str, Any]) -> float | None:
    """Return how much longer than the best a route's configuration took, by the times of screening; None for unknown.

    A file of before a configuration got another field knows it without.
    """

    def is_meant(one: dict[str, Any]) -> bool:
        return bool(one["route"] == route and one["config"].items() <= config.items())

    if is_meant(row["routed"]):
        return float(row["loss"])
    times = [float(one["us"]) for one in row["screened"] if is_meant(one)]
    return min(times) / min(one["us"] for one in row["screened"]) - 1 if times else None


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


def measured(
    task: Task, device: torch.device, held: Held, patience: int, known: Known = lambda task: None
) -> dict[str, Any]:
    """Tune a size, and time the quickest and what the router takes once more."""
    bench = Bench(task, device, ROUTES, held, known)
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


if __name__ == "__main__":
    main()
