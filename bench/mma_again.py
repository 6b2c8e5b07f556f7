"""The configurations of w4_mma that earlier runs of bench/mma_table.py found fastest, measured again in one run.

    PYTHONPATH=. python bench/mma_again.py -o mma_table.json --of first.json second.json [--best 2] [--seconds 50]
    PYTHONPATH=. python bench/mma_again.py -o mma_table.json --of routing_tables/sm_90.json --ms 1 4 16 32

For every problem of those runs its best few, and the best one of the same weight at another M of the class; the rest is
as in bench/mma_table.py. That is for after a change of the kernel, when a whole search would say little more. What a
routing table chooses goes before what runs found; its weights that bench/mma_table.py does not measure are left out.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import mma_table
from bench.hopper import WEIGHTS
from bench.mma_table import Work, class_of
from bench.w4_kernels import Shape
from bench.w4_mma import timed_problem
from mxgemm import files
from mxgemm.cuda.w4_mma import MmaConfig, mma_refusal

FORM_OF: Final = {"": "raw", "bf16": "prepared"}


def planned(documents: Sequence[dict[str, Any]], best: int) -> list[Work]:
    """Return the problems of some runs with their best configurations, by their share of torch.mm's time.

    Args:
        documents: what bench/mma_table.py wrote.
        best: configurations of a problem.
    """
    times: dict[tuple[Shape, str, str], dict[MmaConfig, float]] = defaultdict(dict)
    for row in (row for document in documents for row in rows_of(document) if "us" in row):
        key = (row["m"], row["n"], row["k"]), row["a_format"], row["form"]
        config, share = MmaConfig(**row["config"]), row["us"] / row["torch_us"]
        times[key][config] = min(share, times[key].get(config, share))
    of_class: dict[tuple[object, ...], list[tuple[float, MmaConfig]]] = defaultdict(list)
    for (shape, a_format, form), found in times.items():
        of_class[class_of(shape), shape[1:], a_format, form] += [(share, config) for config, share in found.items()]
    work = []
    for (shape, a_format, form), found in times.items():
        near = min(of_class[class_of(shape), shape[1:], a_format, form], key=lambda pair: pair[0])[1]
        ranked = [*sorted(found, key=lambda config: found[config])[:best], near]
        problem = timed_problem(shape, a_format, form)
        legal = tuple(config for config in dict.fromkeys(ranked) if mma_refusal(problem, config) is None)
        work.append(Work(shape, a_format, form, legal))
    return work


def rows_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a run, or those of a routing table as if they were of one, each far ahead of torch.mm."""
    rows: list[dict[str, Any]] = document["rows"]
    if not any("route" in row for row in rows):
        return rows
    weights = {*mma_table.SMALL, *WEIGHTS}
    return [
        {"a_format": "e2m1", "form": FORM_OF[row["derived"]], "torch_us": math.inf, **row}
        for row in rows
        if row["route"] == "w4_mma" and row.get("derived") in FORM_OF and (row["n"], row["k"]) in weights
    ]


def main() -> None:
    """Read the runs and measure as bench/mma_table.py does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=Path, nargs="+", required=True, help="what bench/mma_table.py wrote")
    parser.add_argument("--best", type=int, default=2, help="configurations of a problem")
    parser.add_argument("--ms", type=int, nargs="+", help="only these M")
    parser.add_argument("--build-only", action="store_true", help="fill the caches, which needs no GPU")
    given, rest = parser.parse_known_args()
    work = planned([files.read_json(path) for path in given.of], given.best)
    work = [one for one in work if given.ms is None or one.shape[0] in given.ms]
    work.sort(key=lambda one: (one.form == "raw", one.a_format == "e4m3"))  # what matters most first
    if given.build_only:
        mma_table.build_all(work, mma_table.Clock(3600.0, time.monotonic()))
        return
    sys.argv[1:] = rest
    mma_table.main(work)


if __name__ == "__main__":
    main()
