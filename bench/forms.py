"""Whole calls on Hopper, as the router chooses: weights prepared, compact and raw, every a_format, against torch.mm.

    PYTHONPATH=. python bench/forms.py build                                 # without a GPU: the kernels of time
    PYTHONPATH=. python bench/forms.py time [-o bench/results/forms_h200.json] [--m 64 256] [--seconds 0.03]

Device time by graph replay over rotating weights (mxgemm.measure.timing), heated; torch.mm is bf16 in the same run. A
weight is prepared for the a_format, and judged once by the route that takes it, at the smallest M. Printed last:
geometric means over the seven weights of bench/hopper.py of the ratios to torch.mm. Exit status 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch

import mxgemm
from bench.hopper import WEIGHTS
from bench.w4_kernels import Instance, build_all
from bench.w4_wgmma import UNITS
from mxgemm.cuda.w4_wgmma import WgmmaConfig
from mxgemm.device import KNOWN_MACHINES, machine_of
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx.accuracy import judge
from mxgemm.mx.formats import ActivationFormat
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.w4_wgmma import instances
from mxgemm.routing.router import choose

KIND = "mxgemm-forms"
MS = (64, 128, 256, 512, 1024)
VARIANTS: tuple[tuple[str, ActivationFormat], ...] = (
    ("fast", "e2m1"),
    ("fast", "bf16"),
    ("fast", "e4m3"),
    ("fast for bf16", "bf16"),
    ("fast for bf16", "e4m3"),
    ("compact", "e2m1"),
    ("raw", "e2m1"),
    ("raw", "bf16"),
    ("raw", "e4m3"),
)
"""How the weight is prepared, and the format of A."""
KINDS = {"fast": "fp8_fold", "fast for bf16": "bf16", "compact": "fp8_fold_compact", "raw": ""}
"""What that makes of a weight whose rows all fold."""
BITS = {name: route.accumulate_bits for name, route in ROUTES.items()}
JUDGED = 1e8
"""Elements of a weight up to which results are judged."""


def main() -> None:
    """Build, or measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("build", "time"))
    parser.add_argument("--m", type=int, nargs="+", default=list(MS))
    parser.add_argument("--seconds", type=float, default=0.03, help="of one measurement")
    parser.add_argument("--stop-after", type=float, default=1e9, help="seconds after which no other weight is begun")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    if arguments.mode == "build":
        build_all(instances_of(arguments.m))
        return
    device = torch.device("cuda", 0)
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    for n, k in sorted(WEIGHTS, key=math.prod):
        if time.monotonic() - started > arguments.stop_after:
            print(f"{n} x {k} and larger ones: not begun after {arguments.stop_after} s")
            break
        for row in timed(n, k, arguments.m, Effort(seconds=arguments.seconds), device):
            rows.append(row)
            print(" ".join(str(value) for value in row.values()), flush=True)
        torch.cuda.empty_cache()
    means = means_of(rows)
    for (form, a_format), by_m in means.items():
        print(f"{form:13} {a_format:5}", *(f"M {m}: {mean:.3f}" for m, mean in by_m.items()))
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    keep({"kind": KIND, "date": date, "environment": describe_environment(device), "rows": rows})
    sys.exit(int(not all(row["passed"] for row in rows)))


def instances_of(ms: Sequence[int]) -> Iterator[Instance]:
    """Yield what is built for what the router gives to w4_wgmma, on an H200 whose weights all fold."""
    machine = replace(KNOWN_MACHINES["sm_90"], cu_count=UNITS)
    for (n, k), m, (form, a_format) in itertools.product(WEIGHTS, ms, VARIANTS):
        problem = Problem.of(m, n, k, machine, derived=KINDS[form], a_format=a_format)
        config = choose(problem, tables=()).config
        if isinstance(config, WgmmaConfig):
            yield from ((source, tuple(sorted(macros.items()))) for source, macros in instances(problem, config))


def timed(n: int, k: int, ms: Sequence[int], effort: Effort, device: torch.device) -> Iterator[dict[str, Any]]:
    """Time every form, a_format and M of a weight, and torch.mm."""
    heater = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    cache = cache_bytes(device)

    def heated(calls: Sequence[Callable[[], object]]) -> float:
        for _ in range(4):
            torch.mm(heater, heater)
        return graph_us(calls, effort).us

    dense = [torch.randn(n, k, device=device, dtype=torch.bfloat16) for _ in range(copies_needed(2 * n * k, cache))]
    inputs = {m: torch.randn(m, k, device=device, dtype=torch.bfloat16) for m in ms}
    outs = {m: torch.empty(m, n, device=device, dtype=torch.bfloat16) for m in ms}
    theirs = {m: heated([partial(torch.mm, inputs[m], b.t(), out=outs[m]) for b in dense]) for m in ms}
    weight = mxgemm.quantize(dense[0])
    del dense
    for form, kind in KINDS.items():
        weights = [prepared(weight.clone(), form) for _ in range(copies_needed(weight.nbytes, cache))]
        assert weights[0].operand()[3] == kind, f"{form}: got {weights[0].operand()[3]!r}, want {kind!r}"
        for (_, a_format), m in itertools.product((one for one in VARIANTS if one[0] == form), ms):
            call = partial(mxgemm.gemm, inputs[m], a_format=a_format, out=outs[m])
            asked = Problem.of(m, n, k, machine_of(device), derived=kind, a_format=a_format)
            route = choose(asked, tables=()).route.name
            passed = True
            if m == min(ms) and n * k <= JUDGED:
                passed = judge(
                    call(weights[0]), inputs[m], weight, a_format=a_format, accumulate_bits=BITS[route]
                ).passed
            us = heated([partial(call, one) for one in weights])
            yield {
                **{"m": m, "n": n, "k": k, "form": form, "a_format": a_format, "route": route},
                **{"us": round(us, 3), "torch_us": round(theirs[m], 3), "ratio": round(us / theirs[m], 3)},
                "passed": passed,
            }
        del weights


def prepared(weight: MXTensor, form: str) -> MXTensor:
    """Prepare a weight as a variant says."""
    if form == "raw":
        return weight
    if form == "compact":
        return weight.prepare(memory="compact")
    return weight.prepare(a_format="bf16" if form == "fast for bf16" else "e2m1")


def means_of(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """Return, for each form and a_format, the geometric mean of the ratios by M."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault((row["form"], row["a_format"]), {}).setdefault(row["m"], []).append(row["ratio"])
    return {
        key: {m: statistics.geometric_mean(ratios) for m, ratios in sorted(by_m.items())} for key, by_m in found.items()
    }


if __name__ == "__main__":
    main()
