"""How long a call keeps the host, on a GPU: against torch.mm, in parts, and what the first of everything costs.

    python bench/hot_path.py --calls-only [-o bench/results/hot_path_calls_h200.json]
    python bench/hot_path.py --firsts-only [-o bench/results/hot_path_h200.json]

Microseconds of the host, the device not waited for (mxgemm.measure.timing.host_us), beside torch.mm in bf16 of the same
size in the same process. The exit status is 1 where a ratio is over what docs/benchmarks.md promises, or where a result
differs from that of the way through Python.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import mxgemm
from mxgemm import c_compiler, plan, steady
from mxgemm.measure import Effort, output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.routes import Form
from mxgemm.measure.timing import host_us
from mxgemm.mx.tensor import MXTensor
from mxgemm.native import module
from mxgemm.native.program import ProductStep
from mxgemm.routes import dequant_mm, fold_chain, fold_plain

KIND = "mxgemm-hot-path"
SIZES: tuple[tuple[int, int, int, Form, str | None], ...] = (
    (4, 2880, 512, "raw", "a16wfp4"),
    (4, 2880, 512, "fast", None),
    (1, 7168, 2048, "fast", None),
    (16, 2112, 7168, "fast", None),
    (64, 7168, 2048, "fast", "w4_wgmma"),
    (64, 7168, 2048, "fast", "fp8_fold"),
    (64, 7168, 2048, "raw", "dequant_mm"),
    (256, 3072, 1536, "fast", "fp8_fold"),
    (256, 3072, 1536, "compact", "fp8_fold"),
    (256, 3072, 1536, "raw", "dequant_mm"),
)
"""M, N, K, how the weight is prepared ("raw": not), the route if it is named."""
MOST = {
    "one launch": {"gemm": 0.95, "gemm_out": 0.75},
    "more": {"gemm": 1.6, "gemm_out": 1.6},
}
"""Ratios to torch.mm that docs/benchmarks.md promises."""
ROUNDS = 5
"""Of all that is timed, one after the other: the machine is faster and slower from one tenth of a second to the next,
and a ratio is the median of those of the rounds."""
EFFORT = Effort(seconds=0.016, least=200, most=20_000)
FIRST = """
import json, time
start = time.perf_counter()
import torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
marks = {"torch": time.perf_counter() - start}
def mark(name, work):
    start = time.perf_counter(); found = work(); torch.cuda.synchronize()
    marks[name] = time.perf_counter() - start
    return found
def imported():
    import mxgemm
    return mxgemm
mxgemm = mark("import", imported)
w = mark("quantize", lambda: mxgemm.quantize(torch.randn(7168, 2048, device="cuda")))
w = mark("prepare", w.prepare)
for m in (4, 5, 64, 65):
    a = torch.randn(m, 2048, dtype=torch.bfloat16, device="cuda")
    mark(f"first call, M = {m}", lambda: mxgemm.gemm(a, w))
    mark(f"second call, M = {m}", lambda: mxgemm.gemm(a, w))
    mark(f"calls 3 to 9, M = {m}", lambda: [mxgemm.gemm(a, w) for _ in range(7)])
w = mxgemm.quantize(torch.randn(7168, 2048, device="cuda")).prepare()
mark("warmup", lambda: mxgemm.warmup(w))
a = torch.randn(33, 2048, dtype=torch.bfloat16, device="cuda")
mark("first call after warmup, M = 33", lambda: mxgemm.gemm(a, w))
a = torch.randn(50, 2048, dtype=torch.bfloat16, device="cuda")
mark("first call after warmup, M = 50", lambda: mxgemm.gemm(a, w))
print(json.dumps(marks))
"""


def main() -> None:
    """Measure, print, write; exit status 1 after a ratio that is too high or a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--route", help="only the sizes that name this route, and no firsts")
    parser.add_argument("--calls-only", action="store_true", help="no firsts")
    parser.add_argument("--firsts-only", action="store_true", help="nothing but firsts")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    device = torch.device("cuda", 0)
    sizes = [size for size in SIZES if arguments.route in (None, size[-1]) and not arguments.firsts_only]
    calls = [measured(m, n, k, form, route, device) for m, n, k, form, route in sizes]
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "method": "host microseconds of single calls, 50 queued at a time, the median of rounds of medians; ratios to "
        "torch.mm, bf16, the median of the rounds' own",
        "promised": MOST,
        "calls": calls,
    }
    if arguments.route is None and not arguments.calls_only:
        document["first"] = {"caches empty": first(fresh=True), "caches filled": first(fresh=False)}
    print(json.dumps(document, indent=1))
    keep(document)
    raise SystemExit(0 if all(call["kept"] and call["equal"] for call in calls) else 1)


def measured(m: int, n: int, k: int, form: Form, route: str | None, device: torch.device) -> dict[str, Any]:
    """Time one size in every way."""
    a = torch.randn(m, k, dtype=torch.bfloat16, device=device)
    w, other = (mxgemm.quantize(torch.randn(n, k, device=device)) for _ in range(2))
    w, other = (one if form == "raw" else one.prepare(memory=form) for one in (w, other))
    dense = torch.randn(n, k, dtype=torch.bfloat16, device=device).t()
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    call, call_out = partial(mxgemm.gemm, a, w, route=route), partial(mxgemm.gemm, a, w, out=out, route=route)
    for _ in range(2 * steady.SETTLE_AT):
        call()
        call_out()
    by_library = partial(mxgemm.gemm, a, other, route=route)
    with library_products():
        for _ in range(2 * steady.SETTLE_AT):
            by_library()
    quick = steady.quick
    assert quick is not None, "there is no steady call in C here"
    named = "e2m1", "even", torch.bfloat16, route
    known = w.known
    assert isinstance(known, steady.Known)
    found = next(one for one in known.plans.values() if not one.out_bytes)
    described = plan.described(found.plan, a, *w.operand()[:2], None, None, w.operand()[4])
    assert described is not None
    kind = "one launch" if len(described.steps) == 1 else "more"
    result = call()
    with python_only():
        equal = torch.equal(call(), result) and torch.equal(call_out(), result)
    equal = equal and torch.equal(call_out(), result)
    in_c = quick(w, a, None, None, *named) is not None
    timed: dict[str, Callable[[], object]] = {
        "torch_mm": partial(torch.mm, a, dense),
        "torch_mm_out": partial(torch.mm, a, dense, out=out),
        "gemm": call,
        "gemm_out": call_out,
        **({"gemm_by_library": by_library} if route in ("fp8_fold", "dequant_mm") else {}),
        "call_in_c": partial(quick, w, a, None, None, *named),
        "allocation": found.plan.allocate,
        "graph_of_it": _graph(a, call),
    }
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(ROUNDS):
        for name, one in timed.items():
            rounds[name].append(_host(one))
        with python_only():
            rounds["gemm_in_python"].append(_host(call))
            rounds["gemm_out_in_python"].append(_host(call_out))
    with launches_nothing():
        rounds["call_in_c_without_launch"] = [_host(timed["call_in_c"]) for _ in range(ROUNDS)]
    times = {name: median(each) for name, each in rounds.items()}
    us = {name: time["us"] for name, time in times.items()}
    ratios = {
        name: round(
            statistics.median(ours["us"] / mm["us"] for ours, mm in zip(each, rounds["torch_mm"], strict=True)), 3
        )
        for name, each in rounds.items()
        if name.startswith("gemm")
    }
    parts = {
        "entry (Python)": us["gemm"] - us["call_in_c"],
        "key, look-up, checks, scratch": us["call_in_c_without_launch"] - us["allocation"],
        "allocation": us["allocation"],
        "launches": us["call_in_c"] - us["call_in_c_without_launch"],
    }
    return {
        **{
            "m": m,
            "n": n,
            "k": k,
            "form": form,
            "route": route,
            "kind": kind,
            "launches": len(described.steps),
            "by_a_library": sum(isinstance(step, ProductStep) for step in described.steps),
        },
        **{"equal": equal, "in_c": in_c, "ratio_to_torch_mm": ratios},
        "kept": in_c and all(ratios[name] <= most for name, most in MOST[kind].items()),
        "parts_us": {name: round(value, 2) for name, value in parts.items()},
        "times": times,
    }


def median(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one in the middle."""
    return sorted(each, key=lambda one: float(one["us"]))[len(each) // 2]


def _host(call: Callable[[], object]) -> dict[str, Any]:
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    return asdict(host_us([call], EFFORT, torch.cuda.synchronize))


def _graph(a: Tensor, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return what a cache of graphs would do at a call: A into the graph's memory, a replay, the result out of it."""
    graph, held = torch.cuda.CUDAGraph(), torch.empty_like(a)
    with torch.cuda.graph(graph):
        y = call()

    def replayed() -> Tensor:
        held.copy_(a)
        graph.replay()
        return y.clone()

    return replayed


@contextmanager
def python_only() -> Iterator[None]:
    """Leave the steady call in C out."""
    quick, steady.quick = steady.quick, None
    try:
        yield
    finally:
        steady.quick = quick


@contextmanager
def library_products() -> Iterator[None]:
    """Have the vendor's products of plans that C is told of launched by the vendor's library."""
    with ExitStack() as patches:
        for chain in (fold_chain, fold_plain, dequant_mm):
            patches.enter_context(mock.patch.object(chain, "product_kernel", return_value=None))
        yield


@contextmanager
def launches_nothing() -> Iterator[None]:
    """Have C call, in place of the driver's launch and the libraries' products, a function that does nothing."""
    nothing = _nothing()
    held = module._driver_functions, module._vendor_functions
    capturing = held[0]()[2]
    module._driver_functions = lambda: (nothing, 0, capturing)
    module._vendor_functions = lambda: (nothing, held[1]()[1])
    configured()
    try:
        yield
    finally:
        module._driver_functions, module._vendor_functions = held
        configured()


@cache
def _nothing() -> int:
    """Return the address of a C function that returns 0."""
    command = next(command for command in c_compiler.commands() if isinstance(command, list))
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "nothing.c", Path(folder) / "nothing.so"
        source.write_text("int nothing(void) { return 0; }\n", encoding="utf-8")
        c_compiler.run([*command, "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], Path(folder))
        return ctypes.cast(ctypes.CDLL(str(library)).nothing, ctypes.c_void_p).value or 0


def configured() -> None:
    """Tell the extension module anew where functions are."""
    module._load.cache_clear()
    module.load(MXTensor, steady.Known, vars(plan))


def first(*, fresh: bool) -> dict[str, float]:
    """Return the seconds of the first of everything in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"MXGEMM_CACHE": f"{folder}/mxgemm", "TRITON_CACHE_DIR": f"{folder}/triton"} if fresh else {}
        command = [sys.executable, "-c", FIRST]
        done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=True)
    marks = json.loads(done.stdout.splitlines()[-1])
    return {name: round(seconds, 4) for name, seconds in marks.items()}


if __name__ == "__main__":
    main()
