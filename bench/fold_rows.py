"""The first launch of route fp8_fold, by Triton and in CUDA C++: the same bytes, and how long each takes.

    PYTHONPATH=. python bench/fold_rows.py [--m 64 128 256 512] [--weights 6] [--build-only] [-o fold_rows.json]

Device microseconds of a launch by graph replay over rotating weights (mxgemm.measure.timing), heated: A alone ("fold"),
and with the decoding of a compact weight ("both"), in CUDA C++ by some numbers of turns and by what is said of lines in
L2 (mxgemm/cuda/fold_rows.py). Then whole calls of the route with each, of a weight in e4m3 ("fast") and a compact one.
Exit status 1 if bytes differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

import mxgemm
from bench.w4_fp8 import WEIGHTS
from bench.w4_fp8 import timed_problem as problem_of
from bench.w4_kernels import HEATER, build_all
from mxgemm.cuda import fold_rows
from mxgemm.device import machine_of
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx.fold import row_bases
from mxgemm.mx.layouts import round_up
from mxgemm.problem import Problem
from mxgemm.routes import Operands
from mxgemm.routes.fold_calls import fold_both_call, quantize_fold_call
from mxgemm.routes.fold_chain import FoldChain
from mxgemm.routes.fold_forms import FP8_FOLD
from mxgemm.routes.fold_rows import FoldRows
from mxgemm.triton.launch import Launcher

KIND: Final = "mxgemm-fold-rows"
MOST_DECODED: Final = 1 << 28
KINDS: Final = tuple({"TURNS": turns, "KEEPS": keeps} for turns, keeps in ((4, 0), (4, 1), (4, 2), (8, 0), (8, 2)))


def main() -> int:
    """Measure; 1 where bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--weights", type=int, default=len(WEIGHTS), help="of them, the first so many")
    parser.add_argument("--seconds", type=float, default=0.02, help="of one measurement")
    parser.add_argument("--build-only", action="store_true", help="build what is measured, without a GPU")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    shapes = [(m, n, k) for n, k in WEIGHTS[: arguments.weights] if n * k <= MOST_DECODED for m in arguments.m]
    problems = [problem_of(shape, "e2m1", "compact") for shape in shapes]
    build_all(
        (fold_rows.SOURCE, tuple(sorted({**fold_rows.defines(p, rows), **kind}.items())))
        for p, kind in itertools.product(problems, KINDS)
        for rows in (0, p.n)
    )
    if arguments.build_only:
        return 0
    device = torch.device("cuda", 0)
    rows, wrong = [], 0
    for shape in shapes:
        found = measured(shape, device, arguments.seconds)
        wrong += not found["alike"]
        print(" ".join(f"{name} {value}" for name, value in found.items()), flush=True)
        rows.append(found)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    keep({"kind": KIND, "date": date, "environment": describe_environment(device), "rows": rows})
    return int(wrong > 0)


def measured(shape: tuple[int, int, int], device: torch.device, seconds: float) -> dict[str, Any]:
    """Launch both kinds on the same operands; return whether their bytes are the same, and times."""
    m, n, k = shape
    problem = replace(problem_of(shape, "e2m1", "compact"), machine=machine_of(device))
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    a[m // 2, :32] *= 2.0**20
    a[m // 3, 5] = torch.nan
    weight = mxgemm.quantize(torch.randn(n, k, device=device))
    bases = row_bases(weight)[0].to(torch.uint8)
    copies = copies_needed(n * k * 17 // 32, cache_bytes(device))
    weights = [(weight.data.clone(), weight.scales.clone()) for _ in range(copies)]
    heater = torch.randn(HEATER, HEATER, device=device, dtype=torch.bfloat16)

    def made() -> list[Tensor]:
        of_a = (m, k, torch.uint8), (m, 1, torch.float32), (m, 1, torch.int32)
        sizes = *of_a, (round_up(n, 16), k, torch.uint8), (round_up(n, 16), 1, torch.float32)
        return [torch.zeros(rows, columns, device=device, dtype=dtype) for rows, columns, dtype in sizes]

    def heated(calls: Sequence[Callable[[], object]]) -> float:
        for _ in range(12):
            torch.mm(heater, heater)
        return round(graph_us(calls, Effort(seconds=seconds)).us, 2)

    def calls(launch: Callable[..., None], to: list[Tensor], both: bool) -> list[Callable[[], object]]:
        if not both:
            return [partial(launch, a, *to[:3])]
        return [partial(launch, a, *to[:3], *pair, bases, *to[3:]) for pair in weights]

    launches: dict[str, tuple[Callable[..., None], bool]] = {
        "fold": (Launcher(quantize_fold_call(problem)), False),
        "fold_cuda": (FoldRows(problem, 0), False),
        "both": (Launcher(fold_both_call(problem, n)), True),
        **{name: (launch, True) for name, launch in kinds(problem).items()},
    }
    results, times = {}, {}
    for name, (launch, decodes) in launches.items():
        results[name] = made()
        each = calls(launch, results[name], decodes)
        each[0]()
        times[name] = heated(each)
    alike = all(same(results[name], results[name.split("_")[0]]) for name in results)

    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    compact = [Operands(a, None, *pair, None, out, (bases,)) for pair in weights]
    for name in (name for name, (_, decodes) in launches.items() if decodes):
        chain = chain_with(problem, launches[name][0])
        times[f"compact {name}"] = heated([partial(chain, one) for one in compact])
    form = FP8_FOLD.make(weight)
    assert form is not None
    forms = [tuple(part.clone() for part in form) for _ in range(copies_needed(n * k, cache_bytes(device)))]
    fast = [Operands(a, None, *weights[0], None, out, one) for one in forms]
    problem = replace(problem_of(shape, "e2m1", "prepared"), machine=machine_of(device))
    for name in ("fold", "fold_cuda"):
        chain = chain_with(problem, launches[name][0])
        times[f"fast {name}"] = heated([partial(chain, one) for one in fast])
    return {"m": m, "n": n, "k": k, "alike": alike, **times}


def kinds(problem: Problem) -> dict[str, FoldRows]:
    """Return the launch of both in CUDA C++, by its kinds."""
    found = {}
    for kind in KINDS:
        fold_rows.TURNS, fold_rows.KEEPS = kind["TURNS"], kind["KEEPS"]  # type: ignore[misc]
        found[f"both_cuda_{kind['TURNS']}_{kind['KEEPS']}"] = FoldRows(problem, problem.n)
    return found


def chain_with(problem: Problem, first: Any) -> FoldChain:
    """Return the route's launches with another first one."""
    chain = FoldChain(problem)
    chain.quantize = first
    return chain


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Say whether bytes are the same, those of rows that fold and are finite."""
    folds = (theirs[2] == 0) & ~theirs[1].isnan()
    pairs = [(ours[0] * folds, theirs[0] * folds), *zip(ours[1:], theirs[1:], strict=True)]
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


if __name__ == "__main__":
    sys.exit(main())
