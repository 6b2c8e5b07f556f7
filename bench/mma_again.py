"""The configurations of w4_mma that earlier runs of bench/mma_table.py found fastest, measured again in one run.

    PYTHONPATH=. python bench/mma_again.py -o mma_table.json --of first.json second.json [--best 2] [--seconds 50]

For every problem of those runs its best few, and the best one of the same weight at another M of the class; the rest is
as in bench/mma_table.py. That is for after a change of the kernel, when a whole search would say little more.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import mma_table
from bench.mma_table import Work, class_of
from bench.w4_kernels import Shape
from bench.w4_mma import timed_problem
from mxgemm import files
from mxgemm.cuda.w4_mma import MmaConfig, mma_refusal


def planned(documents: Sequence[dict[str, Any]], best: int) -> list[Work]:
    """Return the problems of some runs with their best configurations, by their share of torch.mm's time.

    Args:
        documents: what bench/mma_table.py wrote.
        best: configurations of a problem.
    """
    times: dict[tuple[Shape, str, str], dict[MmaConfig, float]] = defaultdict(dict)
    for row in (row for document in documents for row in document["rows"] if "us" in row):
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


def main() -> None:
    """Read the runs and measure as bench/mma_table.py does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=Path, nargs="+", required=True, help="what bench/mma_table.py wrote")
    parser.add_argument("--best", type=int, default=2, help="configurations of a problem")
    given, rest = parser.parse_known_args()
    work = planned([files.read_json(path) for path in given.of], given.best)
    sys.argv[1:] = rest
    mma_table.main(work)


if __name__ == "__main__":
    main()
