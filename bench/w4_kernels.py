"""What bench/w4_mma.py, w4_wgmma.py and w4_fp8.py do alike: build instances, check drawn cases, time configurations."""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

import mxgemm
from bench.mma_cases import DATA, Case, Made, described, judged, made_of, make
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.operands import ARCH
from mxgemm.device import machine_of
from mxgemm.hip.build import build
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.problem import Config, Problem
from mxgemm.routes import ROUTES, Operands

FORMS: Final = {"raw": "", "prepared": "bf16"}
"""Kinds of the prepared form: of those that bring the fragment order, one that needs no other part here."""
SCREEN: Final = Effort(seconds=0.006, most=12)
AGAIN: Final = 5
"""Configurations that are measured again."""
SMALL_ELEMENTS: Final = 3e6
"""Weights up to which a case is run on every kind of data."""
JUDGED_ELEMENTS: Final = 1e8
"""Weights up to which what is timed is also judged."""
MOST_ERROR: Final = 3e-3
"""Of it, in the norm."""
HEATER: Final = 8192
"""Rows of a square matrix that is multiplied before times are taken, so that clocks are up."""

Shape = tuple[int, int, int]
Instance = tuple[str, tuple[tuple[str, int | str], ...]]
"""A source of ``mxgemm/cuda/kernels`` and its macros."""


class Kit(NamedTuple):
    """What cases are made of and how they are judged.

    Attributes:
        data: kinds of data; those of large weights are the first and one of the others.
        make: operands of a case.
        judged: what is wrong with its result.
        forms: kinds of the prepared form that are timed.
        made_of: the parts of such a form.
        in_order: of these forms, those in which the weight's own bytes are not read.
    """

    data: Sequence[str] = DATA
    make: Callable[[Case, int, torch.device], Made] = make
    judged: Callable[[Case, Made], list[str]] = judged
    forms: Mapping[str, str] = MappingProxyType(FORMS)
    made_of: Callable[[mxgemm.MXTensor, str, torch.device], tuple[Tensor, ...]] = made_of
    in_order: Sequence[str] = ("prepared",)


PLAIN: Final = Kit()


class Planned(NamedTuple):
    """A problem of contiguous operands, the configurations that are timed on it, and which one the route takes."""

    problem: Problem
    configs: Sequence[Config]
    guess: Config


def build_all(instances: Iterable[Instance]) -> float:
    """Build instances in processes that are forked before CUDA starts; return the seconds."""
    started = time.monotonic()
    wanted = sorted(set(instances), key=str)
    with multiprocessing.get_context("fork").Pool(min(16, os.cpu_count() or 1)) as pool:
        errors = [error for _, error in pool.map(build_one, wanted, chunksize=1) if error]
    seconds = time.monotonic() - started
    print(f"built {len(wanted)} instances in {seconds:.1f} s", flush=True)
    for error in errors:
        print(error, flush=True)
    if errors:
        sys.exit(1)
    return seconds


def build_one(instance: Instance) -> tuple[Instance, str]:
    """Build an instance; return it and what went wrong."""
    source, defines = instance
    try:
        build(source, arch=ARCH, defines=dict(defines), folder=KERNELS)
    except Exception as error:
        return instance, f"{source}, {dict(defines)}: {error}"
    return instance, ""


def check(
    route: str,
    cases: Sequence[Case],
    device: torch.device,
    seconds: float = math.inf,
    allowed: Callable[[str, Case], bool] = lambda text, case: False,
    kit: Kit = PLAIN,
) -> dict[str, Any]:
    """Run every case on every kind of data; print and return what failed.

    Args:
        route: its name.
        cases: each is run on all kinds of data, or, with a large weight, on two.
        device: a GPU.
        seconds: after which no other case is begun.
        allowed: whether what is wrong with a case is none the less expected.
        kit: what the cases are made of.
    """
    started, failures, done = time.monotonic(), list[dict[str, str]](), 0
    for i, case in enumerate(cases):
        if time.monotonic() - started > seconds:
            print(f"gave up after {seconds:.0f} s with {len(cases) - i} cases left", flush=True)
            break
        for data in _kinds(case, i, kit.data):
            one = replace(case, data=data)
            try:
                found = [text for text in run_one(route, one, i, device, kit) if not allowed(text, one)]
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            done += 1
            if found:
                failures.append({"case": str(one), "found": "; ".join(found)})
                if len(failures) <= 40:
                    print(f"FAILED {one}\n    {'; '.join(found)}", flush=True)
                if any("CUDA error" in text or "(error 7" in text for text in found):
                    print("the device is lost: nothing more can be run", flush=True)
                    return {"done": done, "failures": failures}
    taken = time.monotonic() - started
    print(f"{done} cases with their data in {taken:.0f} s: {len(failures)} failed", flush=True)
    return {"done": done, "failures": failures, "seconds": round(taken, 1)}


def _kinds(case: Case, i: int, data: Sequence[str]) -> Sequence[str]:
    """Return the kinds of data of the i-th case."""
    return data if case.n * case.k < SMALL_ELEMENTS else (data[0], data[1 + i % (len(data) - 1)])


def run_one(route: str, case: Case, seed: int, device: torch.device, kit: Kit = PLAIN) -> list[str]:
    """Launch a case twice and judge it."""
    made = kit.make(case, seed, device)
    launch = ROUTES[route].bind(made.problem, case.config)
    launch(made.operands)
    found = kit.judged(case, made)
    first = made.operands.out.reshape(-1).clone()
    made.operands.out.fill_(1.0)
    launch(made.operands)
    if not torch.equal(first.view(torch.uint8), made.operands.out.reshape(-1).clone().view(torch.uint8)):
        found.append("another run gave other bits")
    return found


def times(
    route: str,
    arguments: argparse.Namespace,
    device: torch.device,
    planned: Callable[[Shape, str, str], Planned],
    kit: Kit = PLAIN,
) -> list[dict[str, Any]]:
    """Time configurations of every shape, format and form, and torch.mm; print and return rows.

    Args:
        route: its name.
        arguments: ``shapes``, ``a_formats``, ``forms``, and ``seconds`` of one measurement.
        device: a GPU.
        planned: what to time, by shape, format and form.
        kit: what the weights are made of.
    """
    heater = torch.randn(HEATER, HEATER, device=device, dtype=torch.bfloat16)
    effort = Effort(seconds=arguments.seconds)

    def heated(calls: Sequence[Callable[[], object]], effort: Effort) -> float:
        for _ in range(12):
            torch.mm(heater, heater)
        return graph_us(calls, effort).us

    rows = []
    cache = cache_bytes(device)
    for shape in arguments.shapes:
        m, n, k = shape
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        right = [torch.randn(n, k, device=device, dtype=torch.bfloat16) for _ in range(copies_needed(2 * n * k, cache))]
        torch_us = heated([partial(torch.mm, a, b.t(), out=out) for b in right], effort)
        first = mxgemm.quantize(right[0])
        del right
        copies = copies_needed(n * k * 17 // 32, cache)
        for form in arguments.forms:
            lying = form not in kit.in_order
            weights = [(first.data.clone(), first.scales.clone()) for _ in range(copies if lying else 1)]
            order = kit.made_of(first, kit.forms[form], device)
            orders = [tuple(part.clone() for part in order) for _ in range(copies)]
            pairs = [(*weights[i % len(weights)], orders[i]) for i in range(copies)]
            for a_format in arguments.a_formats:
                plan = planned(shape, a_format, form)
                problem = replace(plan.problem, machine=machine_of(device))
                want = _wanted(a, first, a_format) if n * k < JUDGED_ELEMENTS else None

                def measured(
                    config: Config, effort: Effort, problem: Problem = problem, pairs: list[Any] = pairs
                ) -> float:
                    launch = ROUTES[route].bind(problem, config)
                    calls = [partial(launch, Operands(a, None, b, s, None, out, d)) for b, s, d in pairs]  # noqa: B023
                    return heated(calls, effort)

                found = []
                for config in plan.configs:
                    found.append((measured(config, SCREEN), config))
                    if want is not None:
                        error = float((out.double() - want).norm() / want.norm())
                        if not error < MOST_ERROR:
                            print(f"WRONG by {error:.2e}: {config}", flush=True)
                found.sort(key=lambda pair: pair[0])
                again = [(measured(config, effort), config) for _, config in found[:AGAIN]]
                found = sorted(again, key=lambda pair: pair[0]) + found[AGAIN:]
                print(f"{m},{n},{k} {a_format} {form}: torch.mm {torch_us:.2f}", flush=True)
                for i, (us, config) in enumerate(found):
                    if i < AGAIN or config == plan.guess:
                        first_guess = "  (the route's choice)" if config == plan.guess else ""
                        print(f"    {us:8.2f} us {us / torch_us:6.3f}  {config}{first_guess}", flush=True)
                    rows.append(
                        {"m": m, "n": n, "k": k, "a_format": a_format, "form": form, "us": round(us, 3)}
                        | {"torch_us": round(torch_us, 3), "again": i < AGAIN, "config": config.to_mapping()}
                    )
    return rows


def _wanted(a: Tensor, weight: mxgemm.MXTensor, a_format: str) -> Tensor:
    return rounded(a, a_format) @ mxgemm.dequantize(weight).double().T


def rounded(a: Tensor, a_format: str) -> Tensor:
    """Return the values of A that are multiplied, in float64."""
    if a_format == "bf16":
        return a.double()
    return mxgemm.dequantize(mxgemm.quantize(a, format=a_format)).double()  # type: ignore[arg-type]


def shape_of(text: str) -> Shape:
    """Read "M,N,K"."""
    m, n, k = map(int, text.split(","))
    return m, n, k


class Bench(NamedTuple):
    """A route whose kernels a script checks and times.

    Attributes:
        route: its name.
        kind: of the document.
        shapes: that are timed unless others are named.
        instances: sources and macros of a problem and a configuration.
        drawn: cases, by how many, a seed and the elements of the largest weight.
        planned: what to time, by shape, format, form and width.
        allowed: whether what is wrong with a case is none the less expected.
        kit: what operands are made of.
    """

    route: str
    kind: str
    shapes: Sequence[Shape]
    instances: Callable[[Problem, Any], Iterable[tuple[str, Mapping[str, int | str]]]]
    drawn: Callable[[int, int, float], Sequence[Case]]
    planned: Callable[[Shape, str, str, int], Planned]
    allowed: Callable[[str, Case], bool] = lambda text, case: False
    kit: Kit = PLAIN


def run(bench: Bench, doc: str | None) -> None:
    """Check or time a route as the command line says, print, write; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("check", "time"))
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="of checking in all (60), or of one measurement (0.05)")
    parser.add_argument("--most", type=float, default=1e7, help="elements of the largest weight that is checked")
    parser.add_argument("--shapes", type=shape_of, nargs="+", default=list(bench.shapes))
    parser.add_argument("--a-formats", nargs="+", default=["e2m1"])
    parser.add_argument("--forms", nargs="+", choices=bench.kit.forms, default=["prepared"])
    parser.add_argument("--width", type=int, default=24, help="configurations of a shape, format and form")
    parser.add_argument("--build-only", action="store_true", help="build what the mode needs, without a GPU")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, bench.kind)
    checking = arguments.mode == "check"
    arguments.seconds = arguments.seconds or (60.0 if checking else 0.05)
    cases = bench.drawn(arguments.cases, arguments.seed, arguments.most) if checking else []
    pairs: list[tuple[Problem, Any]] = [(described(case), case.config) for case in cases]
    if not checking:
        for one in itertools.product(arguments.shapes, arguments.a_formats, arguments.forms):
            plan = bench.planned(*one, arguments.width)
            pairs += [(plan.problem, config) for config in plan.configs]
    build_all((source, tuple(sorted(macros.items()))) for pair in pairs for source, macros in bench.instances(*pair))
    if arguments.build_only:
        return
    device = torch.device("cuda", 0)
    if checking:
        result = check(bench.route, cases, device, arguments.seconds, bench.allowed, bench.kit)
    else:

        def planned(shape: Shape, a_format: str, form: str) -> Planned:
            return bench.planned(shape, a_format, form, arguments.width)

        result = {"rows": times(bench.route, arguments, device, planned, bench.kit)}
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    keep({"kind": bench.kind, "date": date, "environment": describe_environment(device), **result})
    sys.exit(int(bool(result.get("failures"))))
