"""Is w4_wgmma right on this GPU, and how fast is it? Stand-alone: no plugin, no pytest.

    PYTHONPATH=. python bench/w4_wgmma.py check [--cases 120] [--seed 0] [-o check.json]
    PYTHONPATH=. python bench/w4_wgmma.py time  [--shapes 64,7168,2048 ...] [--a-formats e2m1 ...]
                                                [--forms raw prepared] [--width 24] [-o time.json]

``check`` draws cases as bench/w4_mma.py does, with more rows of A and this kernel's configurations, and judges them
alike: two launches each on data of several kinds, both gates of docs/numbers.md against float64, equal bits. Where
single blocks outweigh all others ("spread"), elements may be off by what truncated sums cost (docs/lab-notes.md).

``time`` measures device time by graph replay over rotating weights (mxgemm.measure.timing), heated, beside torch.mm in
bf16 in the same run: many configurations briefly, the fastest of them again.

Kernels are built by processes that are forked before CUDA is started. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import re
import sys
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
from bench.mma_cases import DATA, DTYPES, Case, described, judged, made_of, make
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.w4_wgmma import COLUMNS, WgmmaConfig, wgmma_refusal
from mxgemm.cuda.w4_wgmma_choice import candidates
from mxgemm.device import machine_of
from mxgemm.hip.build import build
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx import layouts
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands
from mxgemm.routes.w4_wgmma import instances

KIND = "mxgemm-w4-wgmma"
ROUTE = "w4_wgmma"
SHAPES = tuple((m, n, k) for n, k in ((7168, 2048), (2880, 4096), (10240, 8192), (57344, 8192)) for m in (64, 128, 256))
FORMS = {"raw": "", "prepared": "bf16"}
"""Kinds of the prepared form: of those that bring the fragment order, one that needs no other part here."""
UNITS = 132
"""Multiprocessors of an H200, for the choice of what to build before the GPU is asked."""
SCREEN = Effort(seconds=0.006, most=12)
AGAIN = 4
"""Configurations that are measured again."""


def drawn(count: int, seed: int, most: float = 1e7) -> list[Case]:
    """Draw cases that the kernel takes, the plain ones of every format first."""
    draw = random.Random(seed)
    cases = [
        Case(m, 528, 1152, WgmmaConfig(1, 64, 2, 1, 4), a_format, derived=derived)  # type: ignore[arg-type]
        for a_format, m, derived in itertools.product(("e2m1", "e4m3", "bf16"), (33, 64, 200), ("", "fp8_fold"))
    ]
    while len(cases) < count:
        layout = (draw.choice(layouts.WEIGHT_LAYOUTS), draw.choice(layouts.SCALE_LAYOUTS))
        shuffled = layout[0] == "preshuffled"
        config = WgmmaConfig(
            tiles=draw.choice((1, 1, 2, 4)),
            columns=draw.choice(COLUMNS),
            groups_n=draw.choice((1, 2, 2, 3, 4)),
            groups_k=draw.choice((1, 1, 2, 3, 4)),
            stages=draw.choice((2, 3, 4, 5, 8)),
            depth=draw.choice((1, 1, 2, 3, 4)),
            splits=draw.choice((1, 1, 1, 2, 3, 5, 8)),
        )
        case = Case(
            draw.choice((1, 8, 33, 48, 64, 65, 100, 128, 129, 200, 256, 257, 300, 513)),
            n=draw.choice((16, 32, 80, 272, 2112, 2880) if shuffled else (1, 7, 16, 33, 80, 257, 2112, 2880)),
            k=draw.choice((64, 128, 512, 2880, 7168) if shuffled else (32, 64, 96, 128, 160, 512, 2880, 7168)),
            config=config,  # type: ignore[arg-type]
            a_format=draw.choice(("e2m1", "e2m1", "e4m3", "bf16")),
            scale_rounding=draw.choice(("even", "even", "floor", "ceil", "rceil")),
            a_dtype=draw.choice((torch.bfloat16, *DTYPES)),
            a_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed", "unaligned")),
            layout=layout,
            w_layout="contiguous" if shuffled else draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            out_dtype=draw.choice(DTYPES),
            out_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            bias=draw.choice((None, None, *DTYPES)),
            derived=draw.choice(("", "fp8_fold", "bf16")),
        )
        if case.n * case.k < most and wgmma_refusal(described(case), config) is None:
            cases.append(case)
    return cases


def launched(made: Any, config: WgmmaConfig) -> None:
    """Launch by the route."""
    ROUTES[ROUTE].bind(made.problem, config)(made.operands)


def check(cases: Sequence[Case], device: torch.device, seconds: float = 1e9) -> dict[str, Any]:
    """Run every case on every kind of data; print and return what failed."""
    started, failures, done = time.monotonic(), list[dict[str, str]](), 0
    for i, case in enumerate(cases):
        if time.monotonic() - started > seconds:
            print(f"gave up after {seconds:.0f} s with {len(cases) - i} cases left", flush=True)
            break
        for data in DATA if case.n * case.k < 3e6 else (DATA[0], DATA[1 + i % (len(DATA) - 1)]):
            one = replace(case, data=data)
            try:
                found = run_one(one, i, device)
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            done += 1
            if found:
                failures.append({"case": str(one), "found": "; ".join(found)})
                if len(failures) <= 30:
                    print(f"FAILED {one}\n    {'; '.join(found)}", flush=True)
                if any("CUDA error" in text or "(error 7" in text for text in found):
                    print("the device is lost: nothing more can be run", flush=True)
                    return {"done": done, "failures": failures}
    taken = time.monotonic() - started
    print(f"{done} cases with their data in {taken:.0f} s: {len(failures)} failed", flush=True)
    return {"done": done, "failures": failures, "seconds": round(taken, 1)}


def run_one(case: Case, seed: int, device: torch.device) -> list[str]:
    """Launch a case twice and judge it."""
    made = make(case, seed, device)
    config: Any = case.config
    launched(made, config)
    found = [text for text in judged(case, made) if not truncated(text, case, config)]
    first = made.operands.out.reshape(-1).clone()
    made.operands.out.fill_(1.0)
    launched(made, config)
    if not torch.equal(first.view(torch.uint8), made.operands.out.reshape(-1).clone().view(torch.uint8)):
        found.append("another run gave other bits")
    return found


def truncated(text: str, case: Case, config: WgmmaConfig) -> bool:
    """Say whether an element is off by no more than truncation costs where few of all blocks carry a sum.

    Tensor cores truncate a sum at each product, here for 16 of K, by up to two roundoffs and one on average.
    """
    found = re.match(r"element (\S+) roundoffs", text)
    products = -(-case.k // (16 * config.groups_k * config.splits))
    return found is not None and case.data == "spread" and float(found[1]) <= 32.0 + products


def build_all(pairs: Iterable[tuple[Problem, WgmmaConfig]]) -> None:
    """Build instances in processes that are forked before CUDA starts."""
    started = time.monotonic()
    made = {(source, tuple(sorted(macros.items()))) for pair in pairs for source, macros in instances(*pair)}
    with multiprocessing.get_context("fork").Pool(min(16, os.cpu_count() or 1)) as pool:
        errors = [error for error in pool.map(_build_one, sorted(made, key=str), chunksize=1) if error]
    print(f"built {len(made)} instances in {time.monotonic() - started:.1f} s", flush=True)
    for error in errors:
        print(error, flush=True)
    if errors:
        sys.exit(1)


def _build_one(instance: tuple[str, tuple[tuple[str, int | str], ...]]) -> str:
    source, macros = instance
    try:
        build(source, arch="sm_90", defines=dict(macros), folder=KERNELS)
    except Exception as error:
        return f"{source}, {dict(macros)}: {error}"
    return ""


def timed_problem(shape: tuple[int, int, int], a_format: str, form: str) -> Problem:
    """Return the problem of contiguous operands."""
    m, n, k = shape
    case = Case(m, n, k, WgmmaConfig(), a_format, derived=FORMS[form])  # type: ignore[arg-type]
    problem = described(case)
    return replace(problem, machine=replace(problem.machine, cu_count=UNITS))


def times(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Time configurations of every shape and format, and torch.mm; print and return rows."""
    heater = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    effort = Effort(seconds=arguments.seconds)

    def heated(calls: Sequence[Callable[[], object]], effort: Effort) -> float:
        for _ in range(10):
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
                want = _wanted(a, first, a_format) if n * k < 1e8 else None

                def measured(
                    config: WgmmaConfig, effort: Effort, problem: Problem = problem, pairs: list[Any] = pairs
                ) -> float:
                    launch = ROUTES[ROUTE].bind(problem, config)
                    calls = [partial(launch, Operands(a, None, b, s, None, out, d)) for b, s, d in pairs]  # noqa: B023
                    return heated(calls, effort)

                found = []
                for config in tried(arguments, shape, a_format, form):
                    found.append((measured(config, SCREEN), config))
                    if want is not None:
                        error = float((out.double() - want).norm() / want.norm())
                        if not error < 3e-3:
                            print(f"WRONG by {error:.2e}: {config}", flush=True)
                found.sort(key=lambda pair: pair[0])
                again = [(measured(config, effort), config) for _, config in found[:AGAIN]]
                found = sorted(again, key=lambda pair: pair[0]) + found[AGAIN:]
                print(f"{m},{n},{k} {a_format} {form}: torch.mm {torch_us:.2f}", flush=True)
                guess = candidates(problem)[0]
                for i, (us, config) in enumerate(found):
                    if i < AGAIN + 2 or config == guess:
                        print(f"    {us:8.2f} us {us / torch_us:6.3f}  {short(config)}", flush=True)
                    rows.append(
                        {"m": m, "n": n, "k": k, "a_format": a_format, "form": form, "us": round(us, 3)}
                        | {"torch_us": round(torch_us, 3), "again": i < AGAIN, "config": config.to_mapping()}
                    )
    return rows


def _wanted(a: Tensor, weight: mxgemm.MXTensor, a_format: str) -> Tensor:
    left = a if a_format == "bf16" else mxgemm.dequantize(mxgemm.quantize(a, format=a_format))  # type: ignore[arg-type]
    return left.double() @ mxgemm.dequantize(weight).double().T


def short(config: WgmmaConfig) -> str:
    """Return a configuration in few letters."""
    return " ".join(f"{name}={value}" for name, value in config.to_mapping().items())


def tried(arguments: argparse.Namespace, shape: tuple[int, int, int], a_format: str, form: str) -> list[WgmmaConfig]:
    """Return the configurations to time: the better ones by estimate, of each division the best first."""
    found: list[WgmmaConfig] = []
    seen: Counter[tuple[int, ...]] = Counter()
    for config in candidates(timed_problem(shape, a_format, form)):
        division = (config.tiles, config.columns, config.groups_n, config.groups_k)
        seen[division] += 1
        if seen[division] <= (2 if len(found) < arguments.width // 3 else 1) and len(found) < arguments.width:
            found.append(config)
    return found


def shape_of(text: str) -> tuple[int, int, int]:
    """Read "M,N,K"."""
    m, n, k = map(int, text.split(","))
    return m, n, k


def main() -> None:
    """Check or time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("check", "time"))
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="of checking in all (60), or of one measurement (0.05)")
    parser.add_argument("--most", type=float, default=1e7, help="elements of the largest weight that is checked")
    parser.add_argument("--shapes", type=shape_of, nargs="+", default=list(SHAPES))
    parser.add_argument("--a-formats", nargs="+", default=["e2m1"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["prepared"])
    parser.add_argument("--width", type=int, default=24, help="configurations of a shape, format and form")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    checking = arguments.mode == "check"
    arguments.seconds = arguments.seconds or (60.0 if checking else 0.05)
    cases = drawn(arguments.cases, arguments.seed, arguments.most) if checking else []
    pairs: list[tuple[Problem, Any]] = [(described(case), case.config) for case in cases]
    if not checking:
        for shape, a_format, form in itertools.product(arguments.shapes, arguments.a_formats, arguments.forms):
            problem = timed_problem(shape, a_format, form)
            pairs += [(problem, config) for config in tried(arguments, shape, a_format, form)]
    build_all(pairs)
    device = torch.device("cuda", 0)
    result = check(cases, device, arguments.seconds) if checking else {"rows": times(arguments, device)}
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    keep({"kind": KIND, "date": date, "environment": describe_environment(device), **result})
    sys.exit(int(bool(result.get("failures"))))


if __name__ == "__main__":
    main()
