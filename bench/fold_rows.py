"""The first launch of route fp8_fold, by Triton and in CUDA C++: the same bytes, and how long each takes.

    PYTHONPATH=. python bench/fold_rows.py [--m 64 128 256 512] [--k 2880 8192] [--build-only] [-o fold_rows.json]

Device microseconds of a launch by graph replay (mxgemm.measure.timing), heated, A in the cache. Exit status 1 if bytes
differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from bench.w4_fp8 import WEIGHTS
from bench.w4_fp8 import timed_problem as problem_of
from bench.w4_kernels import HEATER, build_all
from mxgemm.cuda import fold_rows
from mxgemm.device import machine_of
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.routes.fold_calls import quantize_fold_call
from mxgemm.routes.fold_rows import FoldRows
from mxgemm.triton.launch import Launcher

KIND: Final = "mxgemm-fold-rows"
CALLS: Final = 4
"""Of a graph, at least."""


def main() -> int:
    """Measure; 1 where bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--k", type=int, nargs="+", default=sorted({k for _, k in WEIGHTS}))
    parser.add_argument("--seconds", type=float, default=0.02, help="of one measurement")
    parser.add_argument("--build-only", action="store_true", help="build what is measured, without a GPU")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    sizes = list(itertools.product(arguments.k, arguments.m))
    build_all(
        (fold_rows.SOURCE, tuple(sorted(fold_rows.defines(problem_of((m, 16, k), "e2m1", "prepared")).items())))
        for k, m in sizes
    )
    if arguments.build_only:
        return 0
    device = torch.device("cuda", 0)
    rows, wrong = [], 0
    for k, m in sizes:
        found = measured(m, k, device, arguments.seconds)
        wrong += not found["alike"]
        print(" ".join(f"{name} {value}" for name, value in found.items()), flush=True)
        rows.append(found)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    keep({"kind": KIND, "date": date, "environment": describe_environment(device), "rows": rows})
    return int(wrong > 0)


def measured(m: int, k: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Launch both kinds on the same operand; return whether their bytes are the same, and times."""
    problem = replace(problem_of((m, 16, k), "e2m1", "prepared"), machine=machine_of(device))
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    a[m // 2, :32] *= 2.0**20
    a[m // 3, 5] = torch.nan
    heater = torch.randn(HEATER, HEATER, device=device, dtype=torch.bfloat16)
    launches: dict[str, Callable[..., None]] = {
        "fold": Launcher(quantize_fold_call(problem)),
        "fold_cuda": FoldRows(problem),
    }
    results: dict[str, list[Tensor]] = {}
    times: dict[str, float] = {}
    for name, launch in launches.items():
        of_a = (k, torch.uint8), (1, torch.float32), (1, torch.int32)
        results[name] = [torch.zeros(m, columns, device=device, dtype=dtype) for columns, dtype in of_a]
        call = partial(launch, a, *results[name])
        call()
        for _ in range(12):
            torch.mm(heater, heater)
        times[name] = round(graph_us([call] * CALLS, Effort(seconds=seconds)).us, 2)
    return {"m": m, "k": k, "alike": same(*results.values()), **times}


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Say whether bytes are the same, those of rows that fold and are finite."""
    folds = (theirs[2] == 0) & ~theirs[1].isnan()
    pairs = [(ours[0] * folds, theirs[0] * folds), *zip(ours[1:], theirs[1:], strict=True)]
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


if __name__ == "__main__":
    sys.exit(main())
