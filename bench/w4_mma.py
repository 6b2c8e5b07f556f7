"""Is w4_mma right on this GPU, and how fast is it? Stand-alone: no plugin, no pytest.

    PYTHONPATH=. python bench/w4_mma.py check [--cases 160] [--seed 0] [-o check.json]
    PYTHONPATH=. python bench/w4_mma.py time  [--quick] [--shapes 4,2880,512 ...] [--a-formats e2m1 ...]
                                              [--forms raw prepared] [--width 40] [-o time.json]

``check`` draws cases (sizes, formats, rounding rules, dtypes, strides, layouts, bias, configurations) and launches each
on data of several kinds (even and extreme scales, NaN, zeros) into poisoned memory between guards, twice; both gates of
docs/numbers.md against float64, and equal bits. Then whole calls: a graph, threads, a stream of their own, ``out``.

``time`` measures device time by graph replay over rotating weights (mxgemm.measure.timing), heated, beside torch.mm in
bf16 in the same run: many configurations briefly, of every division among warps the best by the route's own estimate,
and the fastest of them again. Weights are raw (row-major) or prepared (in fragment order).

Kernels are built by processes that are forked before CUDA is started. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mxgemm
from bench.mma_cases import DATA, Case, Made, described, drawn, judged, made_of, make
from mxgemm.cuda import w4_mma
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.operands import ARCH
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_mma_choice import candidates
from mxgemm.device import machine_of
from mxgemm.hip.build import build
from mxgemm.measure import output
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx.fragments import fragment_order
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands

KIND = "mxgemm-w4-mma"
SHAPES = (
    *((4, 2880, 512), (32, 2880, 512), (32, 4096, 512), (16, 2112, 7168), (1, 10240, 8192), (16, 10240, 8192)),
    *((1, 57344, 8192), (16, 57344, 8192), (32, 57344, 8192), (1, 7168, 16384), (4, 2880, 4096), (32, 5120, 2880)),
)

QUICK = ((4, 2880, 512), (32, 4096, 512), (16, 2112, 7168), (1, 57344, 8192), (16, 57344, 8192), (32, 57344, 8192))
FORMS = {"raw": "", "prepared": "bf16"}
"""Kinds of the prepared form: of those that bring the fragment order, one that needs no other part here."""
SCREEN = Effort(seconds=0.006, most=12)
AGAIN = 5
"""Configurations that are measured again."""
FEW_ELEMENTS = 2e7
"""Up to this weight launches matter, so that they are also tried overlapping what comes before."""

Launcher = Callable[[Made, MmaConfig], None]


def launched(made: Made, config: MmaConfig) -> None:
    """Launch by the route."""
    ROUTES["w4_mma"].bind(made.problem, config)(made.operands)


def check(cases: Sequence[Case], device: torch.device, launch: Launcher, seconds: float = 1e9) -> dict[str, Any]:
    """Run every case on every kind of data; print and return what failed."""
    started, failures, done = time.monotonic(), list[dict[str, str]](), 0
    for i, case in enumerate(cases):
        if time.monotonic() - started > seconds:
            print(f"gave up after {seconds:.0f} s with {len(cases) - i} cases left", flush=True)
            break
        kinds = DATA if case.n * case.k < 3e6 else (DATA[0], DATA[1 + i % (len(DATA) - 1)])
        for data in kinds:
            one = replace(case, data=data)
            try:
                found = run_one(one, i, device, launch)
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


def run_one(case: Case, seed: int, device: torch.device, launch: Launcher) -> list[str]:
    """Launch a case twice and judge it."""
    made = make(case, seed, device)
    launch(made, case.config)
    found = judged(case, made)
    first = made.operands.out.reshape(-1).clone()
    made.operands.out.fill_(1.0)
    launch(made, case.config)
    if not torch.equal(first.view(torch.uint8), made.operands.out.reshape(-1).clone().view(torch.uint8)):
        found.append("another run gave other bits")
    return found


def whole_calls(device: torch.device) -> list[str]:
    """Check calls of mxgemm.gemm by this route: leading dimensions, out, a stream, threads, a graph."""
    a = torch.randn(2, 3, 2880, device=device, dtype=torch.bfloat16)
    weight = mxgemm.quantize(torch.randn(512, 2880, device=device))
    spread = mxgemm.quantize(
        torch.randn(512, 2880, device=device) * torch.randn(512, 2880, device=device).mul(9).exp2()
    )
    call = partial(mxgemm.gemm, a, weight, route="w4_mma")
    want = mxgemm.gemm(a, weight, route="reference").double()

    def error_of(got: Tensor) -> str:
        error = float((got.double() - want).norm() / want.norm())
        return "" if error < 4e-3 else f"off by {error:.2e}"

    def on_a_stream() -> str:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = call()
        torch.cuda.synchronize()
        return error_of(result)

    def of_threads() -> str:
        results: list[Tensor] = []
        threads = [threading.Thread(target=lambda: results.extend(call() for _ in range(50))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        if len(results) != 400 or not all(torch.equal(one, results[0]) for one in results):
            return "results differ, or are missing"
        return error_of(results[0])

    def of_threads_with_two_launches() -> str:
        problem = timed_problem((6, 512, 2880), "e2m1", "prepared")
        launch = ROUTES["w4_mma"].bind(problem, MmaConfig(2, 1, 8, 1, a_before=True, a_codes=True, overlap=True))
        order = (torch.empty(0, dtype=torch.bfloat16, device=device), fragment_order(weight.data, weight.scales))
        results: list[Tensor] = []

        def some() -> None:
            for _ in range(50):
                out = torch.full((6, 512), torch.nan, device=device, dtype=torch.bfloat16)
                launch(Operands(a.view(6, 2880), None, weight.data, weight.scales, None, out, order))
                results.append(out)

        threads = [threading.Thread(target=some) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        if len(results) != 400 or not all(torch.equal(one, results[0]) for one in results):
            return "results differ, or are missing"
        return error_of(results[0].view(2, 3, 512))

    def in_a_graph() -> str:
        out = torch.empty(2, 3, 512, device=device, dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(out=out)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        return error_of(out)

    def loaded_under_capture() -> str:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call(a_format="bf16", out_dtype=torch.float32)  # a kernel that nothing has loaded
        graph.replay()
        torch.cuda.synchronize()
        exact = mxgemm.gemm(a, weight, route="reference", a_format="bf16", out_dtype=torch.float32)
        return "" if torch.allclose(result, exact, rtol=1e-3, atol=1e-2) else "wrong result"

    def prepared_call(given: mxgemm.MXTensor, kind: str) -> str:
        made = given.prepare()
        if made.prepared is None or made.prepared.kind != kind:
            return f"prepared as {made.prepared and made.prepared.kind}"
        exact = mxgemm.gemm(a, given, route="reference").double()
        got = mxgemm.gemm(a, made, route="w4_mma").double()
        return "" if float((got - exact).norm() / exact.norm()) < 4e-3 else "wrong result"

    parts: dict[str, Callable[[], str]] = {
        "a weight prepared as fp8_fold": lambda: prepared_call(weight, "fp8_fold"),
        "a weight prepared as bf16": lambda: prepared_call(spread, "bf16"),
        "a call with leading dimensions": lambda: error_of(call()),
        "on a stream": on_a_stream,
        "of threads": of_threads,
        "of threads, two launches a call": of_threads_with_two_launches,
        "in a graph": in_a_graph,
        "loaded under capture": loaded_under_capture,
    }
    found = []
    for name, part in parts.items():
        try:
            wrong = part()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        print(f"{name}: {wrong or 'right'}", flush=True)
        if wrong:
            found.append(f"{name}: {wrong}")
    return found


def build_all(pairs: Iterable[tuple[Problem, MmaConfig]]) -> float:
    """Build instances in processes that are forked before CUDA starts; return the seconds."""
    started = time.monotonic()
    instances = set()
    for p, c in pairs:
        instances.add((w4_mma.SOURCE, tuple(sorted(w4_mma.defines(p, c).items()))))
        if c.a_before:
            instances.add((w4_mma.ROUND_SOURCE, tuple(sorted(w4_mma.round_defines(p, c).items()))))
    with multiprocessing.get_context("fork").Pool(min(16, os.cpu_count() or 1)) as pool:
        errors = [error for error in pool.map(_build_one, sorted(instances, key=str), chunksize=1) if error]
    seconds = time.monotonic() - started
    print(f"built {len(instances)} instances in {seconds:.1f} s", flush=True)
    for error in errors:
        print(error, flush=True)
    if errors:
        sys.exit(1)
    return seconds


def _build_one(instance: tuple[str, tuple[tuple[str, int | str], ...]]) -> str:
    source, defines = instance
    try:
        build(source, arch=ARCH, defines=dict(defines), folder=KERNELS)
    except Exception as error:
        return f"{source}, {dict(defines)}: {error}"
    return ""


def timed_problem(shape: tuple[int, int, int], a_format: str, form: str) -> Problem:
    """Return the problem of contiguous operands."""
    m, n, k = shape
    return described(Case(m, n, k, MmaConfig(), a_format, derived=FORMS[form]))


def tried(problem: Problem, width: int) -> list[MmaConfig]:
    """Return the configurations to time: of each division among warps the best by estimate, of the better ones two."""
    seen: Counter[tuple[object, ...]] = Counter()
    found: list[MmaConfig] = []
    for config in candidates(problem):
        division = (config.tiles, config.warps_n, config.warps_m, config.warps_k, config.a_before, config.a_codes)
        seen[division] += 1
        if seen[division] <= (2 if len(found) < width // 2 else 1) and len(found) < width:
            found.append(config)
    if problem.n * problem.k < FEW_ELEMENTS:
        found += [replace(config, overlap=True) for config in found[: width // 3]]
    return found


def times(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Time configurations of every shape and format, and torch.mm; print and return rows."""
    heater = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
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
            weights = [(first.data.clone(), first.scales.clone()) for _ in range(copies if form == "raw" else 1)]
            order = made_of(first, FORMS[form], device)
            orders = [tuple(part.clone() for part in order) for _ in range(copies)]
            pairs = [(*weights[i % len(weights)], orders[i]) for i in range(copies)]
            for a_format in arguments.a_formats:
                problem = replace(timed_problem(shape, a_format, form), machine=machine_of(device))

                def measured(
                    config: MmaConfig, effort: Effort, problem: Problem = problem, pairs: list[Any] = pairs
                ) -> float:
                    launch = ROUTES["w4_mma"].bind(problem, config)
                    calls = [partial(launch, Operands(a, None, b, s, None, out, d)) for b, s, d in pairs]  # noqa: B023
                    return heated(calls, effort)

                found = [(measured(config, SCREEN), config) for config in tried(problem, arguments.width)]
                found.sort(key=lambda pair: pair[0])
                again = [(measured(config, effort), config) for _, config in found[:AGAIN]]
                found = sorted(again, key=lambda pair: pair[0]) + found[AGAIN:]
                guess = tried(problem, 1)[0]
                print(f"{m},{n},{k} {a_format} {form}: torch.mm {torch_us:.2f}", flush=True)
                for i, (us, config) in enumerate(found):
                    if i < AGAIN or config == guess:
                        first_guess = "  (the route's choice)" if config == guess else ""
                        print(f"    {us:8.2f} us {us / torch_us:6.3f}  {config}{first_guess}", flush=True)
                    rows.append(
                        {"m": m, "n": n, "k": k, "a_format": a_format, "form": form, "us": round(us, 3)}
                        | {"torch_us": round(torch_us, 3), "again": i < AGAIN, "config": config.to_mapping()}
                    )
    return rows


def shape_of(text: str) -> tuple[int, int, int]:
    """Read "M,N,K"."""
    m, n, k = map(int, text.split(","))
    return m, n, k


def main() -> None:
    """Check or time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("check", "time"))
    parser.add_argument("--cases", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="of checking in all (80), or of one measurement (0.05)")
    parser.add_argument("--shapes", type=shape_of, nargs="+")
    parser.add_argument("--quick", action="store_true", help="time six shapes")
    parser.add_argument("--a-formats", nargs="+", default=["e2m1"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--width", type=int, default=40, help="configurations of a shape, format and form")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    checking = arguments.mode == "check"
    arguments.seconds = arguments.seconds or (80.0 if checking else 0.05)
    cases = drawn(arguments.cases, arguments.seed)
    if checking:
        build_all((described(case), case.config) for case in cases)
    else:
        arguments.shapes = arguments.shapes or (QUICK if arguments.quick else SHAPES)
        every = itertools.product(arguments.shapes, arguments.a_formats, arguments.forms)
        problems = [timed_problem(shape, a_format, form) for shape, a_format, form in every]
        build_all((problem, config) for problem in problems for config in tried(problem, arguments.width))
    device = torch.device("cuda", 0)
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine_of(device).name,
        "torch": torch.__version__,
        "mode": arguments.mode,
    }
    failed: Sequence[object] = ()
    if checking:
        result = check(cases, device, launched, arguments.seconds)
        calls = whole_calls(device)
        failed = [*result["failures"], *calls]
        document |= {"check": result, "whole_calls": calls}
    else:
        document["rows"] = times(arguments, device)
    keep(document)
    if arguments.output is None and failed:
        print(json.dumps(failed[:3], indent=1))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
