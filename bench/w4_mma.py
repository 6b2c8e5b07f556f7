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
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mxgemm
from bench.mma_cases import Case, described, drawn
from bench.w4_kernels import FORMS, Instance, Planned, Shape, build_all, check, shape_of, times
from mxgemm.cuda import w4_mma
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_mma_choice import candidates
from mxgemm.device import machine_of
from mxgemm.measure import output
from mxgemm.mx.fragments import fragment_order
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands

KIND = "mxgemm-w4-mma"
ROUTE = "w4_mma"
SHAPES = (
    *((4, 2880, 512), (32, 2880, 512), (32, 4096, 512), (16, 2112, 7168), (1, 10240, 8192), (16, 10240, 8192)),
    *((1, 57344, 8192), (16, 57344, 8192), (32, 57344, 8192), (1, 7168, 16384), (4, 2880, 4096), (32, 5120, 2880)),
)

QUICK = ((4, 2880, 512), (32, 4096, 512), (16, 2112, 7168), (1, 57344, 8192), (16, 57344, 8192), (32, 57344, 8192))
FEW_ELEMENTS = 2e7
"""Up to this weight launches matter, so that they are also tried overlapping what comes before."""


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


def instances(problem: Problem, config: MmaConfig) -> Iterator[Instance]:
    """Yield what a configuration is built of: sources and macros."""
    yield w4_mma.SOURCE, tuple(sorted(w4_mma.defines(problem, config).items()))
    if config.a_before:
        yield w4_mma.ROUND_SOURCE, tuple(sorted(w4_mma.round_defines(problem, config).items()))


def timed_problem(shape: Shape, a_format: str, form: str) -> Problem:
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


def planned(shape: Shape, a_format: str, form: str, width: int) -> Planned:
    """Return the problem and the configurations to time."""
    problem = timed_problem(shape, a_format, form)
    configs = tried(problem, width)
    return Planned(problem, configs, configs[0])


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
        build_all(one for case in cases for one in instances(described(case), case.config))
    else:
        arguments.shapes = arguments.shapes or (QUICK if arguments.quick else SHAPES)
        every = itertools.product(arguments.shapes, arguments.a_formats, arguments.forms)
        problems = [timed_problem(*one) for one in every]
        build_all(i for p in problems for config in tried(p, arguments.width) for i in instances(p, config))
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
        result = check(ROUTE, cases, device, arguments.seconds)
        calls = whole_calls(device)
        failed = [*result["failures"], *calls]
        document |= {"check": result, "whole_calls": calls}
    else:
        document["rows"] = times(ROUTE, arguments, device, partial(planned, width=arguments.width))
    keep(document)
    if arguments.output is None and failed:
        print(json.dumps(failed[:3], indent=1))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
