"""Is w4_mma right on this GPU, and how fast is it? Stand-alone: no plugin, no pytest.

    PYTHONPATH=. python bench/w4_mma.py check [--cases 160] [--seed 0] [-o check.json]
    PYTHONPATH=. python bench/w4_mma.py time  [--shapes 4,2880,512 ...] [--a-formats e2m1 bf16] [--top 6] [-o time.json]

``check`` draws cases (sizes, formats, rounding rules, dtypes, strides, layouts, bias, configurations) and launches each
on data of several kinds (even and extreme scales, NaN, zeros) into poisoned memory between guards, twice; both gates of
docs/numbers.md against float64, and equal bits. Then whole calls: a graph, threads, a stream of their own, ``out``.

``time`` measures device time by graph replay over rotating weights (mxgemm.measure.timing), heated, for the best
configurations by the route's own guess, beside torch.mm in bf16 in the same run.

Kernels are built by processes that are forked before CUDA is started. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mxgemm
from mxgemm.cuda import w4_mma
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.device import KNOWN_MACHINES, machine_of
from mxgemm.hip.build import build
from mxgemm.measure import output
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import LEAST_ERROR, NORM_GATE, OUT_BITS, element_gate
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, Operands

KIND = "mxgemm-w4-mma"
MACHINE = KNOWN_MACHINES[w4_mma.ARCH]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DATA = ("even", "spread", "tiny", "huge", "nan", "zero")
SHAPES = (
    *((4, 2880, 512), (32, 2880, 512), (32, 4096, 512), (16, 2112, 7168), (1, 10240, 8192), (16, 10240, 8192)),
    *((1, 57344, 8192), (16, 57344, 8192), (32, 57344, 8192), (1, 7168, 16384), (4, 2880, 4096), (32, 5120, 2880)),
)


@dataclass(frozen=True)
class Case:
    """One instance and layout, without data."""

    m: int
    n: int
    k: int
    config: MmaConfig
    a_format: str = "e2m1"
    scale_rounding: str = "even"
    a_dtype: torch.dtype = torch.bfloat16
    a_layout: str = "contiguous"
    layout: tuple[str, str] = ("row_major", "row_major")
    w_layout: str = "contiguous"
    out_dtype: torch.dtype = torch.bfloat16
    out_layout: str = "contiguous"
    bias: torch.dtype | None = None
    data: str = "even"

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name}={value}" for name, value in values.items())


class Made(NamedTuple):
    """A case's operands and its exact result."""

    problem: Problem
    operands: Operands
    memory: Tensor
    a64: Tensor
    b64: Tensor
    ref: Tensor


def drawn(count: int, seed: int) -> list[Case]:
    """Draw cases that the kernel takes, the plain ones of every format first."""
    draw = random.Random(seed)
    cases: list[Case] = []
    for a_format, m in itertools.product(("e2m1", "e4m3", "bf16"), (1, 5, 16, 32)):
        cases.append(Case(m, 528, 1152, MmaConfig(1, 1, 4, 1, False), a_format))
    for rounding, a_format in itertools.product(("floor", "ceil", "rceil"), ("e2m1", "e4m3")):
        cases.append(Case(8, 80, 512, MmaConfig(1, 1, 4, 1, False), a_format, rounding))
    while len(cases) < count:
        m = draw.choice((1, 2, 3, 4, 7, 8, 9, 13, 16, 17, 24, 25, 31, 32))
        layout = (draw.choice(layouts.WEIGHT_LAYOUTS), draw.choice(layouts.SCALE_LAYOUTS))
        shuffled = layout[0] == "preshuffled"
        case = Case(
            m,
            n=draw.choice((16, 32, 80, 272, 2112, 2880) if shuffled else (1, 7, 16, 33, 80, 257, 2112, 2880)),
            k=draw.choice((64, 128, 512, 2880, 7168) if shuffled else (32, 64, 96, 128, 160, 512, 2880, 7168)),
            config=MmaConfig(
                draw.choice((1, 1, 2, 4)),
                draw.choice((1, 1, 2, 4)),
                draw.choice((1, 2, 3, 4, 7, 8, 16)),
                draw.choice((1, 2, 2, 3, 4)),
                draw.choice((False, True)),
                draw.choice((False, False, True)),
            ),
            a_format=draw.choice(("e2m1", "e2m1", "e4m3", "bf16")),
            scale_rounding=draw.choice(("even", "even", "floor", "ceil", "rceil")),
            a_dtype=draw.choice((torch.bfloat16, *DTYPES)),
            a_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed", "unaligned")),
            layout=layout,
            w_layout="contiguous" if shuffled else draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            out_dtype=draw.choice(DTYPES),
            out_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            bias=draw.choice((None, None, *DTYPES)),
        )
        if w4_mma.mma_refusal(described(case), case.config) is None:
            cases.append(case)
    return cases


def described(case: Case) -> Problem:
    """Return the problem of a case on a Hopper GPU, strides by its layouts: those of the real operands."""
    shape = {"a": (case.m, case.k), "w": (case.n, case.k // 2), "out": (case.m, case.n)}
    scale_columns = case.k // 32
    if case.layout[1] == "shuffled":
        scale_columns = layouts.padded_scale_shape(case.n, case.k)[1]
    strides = Strides(
        a=strided(shape["a"], case.a_layout),
        b=strided(shape["w"], case.w_layout),
        b_scales=strided((case.n, scale_columns), case.w_layout if case.layout[1] == "row_major" else "contiguous"),
        out=strided(shape["out"], case.out_layout),
        bias=1 if case.bias is None else 2,
    )
    return Problem.of(
        case.m, case.n, case.k, MACHINE, a_format=case.a_format, a_dtype=case.a_dtype, out_dtype=case.out_dtype,
        scale_rounding=case.scale_rounding, weight_layout=case.layout[0], scale_layout=case.layout[1],
        has_bias=case.bias is not None, bias_dtype=case.bias or torch.float32, strides=strides,
        aligned=case.a_layout != "unaligned",
    )  # fmt: skip


def strided(shape: tuple[int, int], layout: str) -> tuple[int, int]:
    """Return the strides of a layout's name."""
    rows, columns = shape
    return {"padded": (columns + 16, 1), "transposed": (1, rows)}.get(layout, (columns, 1))


def placed(values: Tensor, layout: str, poison: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copy a matrix between guards with the strides of ``layout``; return the whole memory and the view in it."""
    row, column = strided((values.shape[0], values.shape[1]), layout)
    reach = (values.shape[0] - 1) * row + (values.shape[1] - 1) * column + 1
    start = 513 if layout == "unaligned" else 512
    memory = torch.full((reach + 1024,), poison, dtype=values.dtype, device=device)
    view = memory.as_strided(values.shape, (row, column), start)
    view.copy_(values)
    return memory, view


def make(case: Case, seed: int, device: torch.device) -> Made:
    """Draw operands of a case and compute the exact result on the device."""
    random_ = torch.Generator().manual_seed(seed)
    a, weight = drawn_operands(case, random_)
    problem = replace(described(case), machine=machine_of(device) if device.type == "cuda" else MACHINE)
    data, scales = weight.data, weight.scales
    if case.layout[0] == "preshuffled":
        data = layouts.preshuffle_weight(data)
    if case.layout[1] == "shuffled":
        real = layouts.shuffle_scales(torch.ones_like(scales)) == 1
        scales = torch.where(real, layouts.shuffle_scales(scales), 255)
    placed_a = placed(a, case.a_layout, float("nan"), device)[1]
    placed_b = placed(data, case.w_layout, 255, device)[1]
    placed_scales = placed(scales, case.w_layout if case.layout[1] == "row_major" else "contiguous", 255, device)[1]
    bias = None
    if case.bias is not None:
        bias = torch.randn(case.n, 2, generator=random_).to(case.bias).to(device)[:, 0]
    blank = torch.full((case.m, case.n), float("nan"), dtype=case.out_dtype)
    memory, out = placed(blank, case.out_layout, float("nan"), device)
    if case.a_format == "bf16":
        a64 = a.to(torch.bfloat16).double()
    else:
        coded = oracle.encode(a.float().numpy(), case.a_format, case.scale_rounding)
        a64 = torch.from_numpy(oracle.decode(*coded, case.a_format))
    b64 = decoded(weight, device)
    a64 = a64.to(device)
    ref = a64 @ b64.T if not bool(a64.isinf().any()) else (a64[:, None] * b64[None]).sum(-1)
    if bias is not None:
        ref += bias.double()
    operands = Operands(placed_a, None, placed_b, placed_scales, bias, out)
    return Made(problem, operands, memory, a64, b64, ref)


def drawn_operands(case: Case, random_: torch.Generator) -> tuple[Tensor, MXTensor]:
    """Draw A and a row-major weight whose scales are of the kind ``case.data``."""
    m, n, k = case.m, case.n, case.k

    def spread(rows: int, octaves: int) -> Tensor:
        powers = torch.randint(-octaves, octaves + 1, (rows, k // 32), generator=random_).float()
        return torch.randn(rows, k, generator=random_) * torch.exp2(powers).repeat_interleave(32, dim=1)

    a, weight = spread(m, 4), mxgemm.quantize(spread(n, 4))
    scales = weight.scales
    if case.data == "spread":  # some chunks are for the second loop
        a *= 2.0 ** (-16 if case.a_dtype != torch.float16 else 0)
        some = torch.rand(scales.shape, generator=random_) < 0.02
        scales = torch.where(some, torch.randint(60, 160, scales.shape, generator=random_).to(torch.uint8), scales)
    elif case.data == "tiny":
        scales = torch.randint(0, 100, scales.shape, generator=random_).to(torch.uint8)
        a *= 2.0 ** (40 if case.a_dtype != torch.float16 else 2)
    elif case.data == "huge":
        scales = torch.randint(140, 255, scales.shape, generator=random_).to(torch.uint8)
        a *= 2.0 ** (-40 if case.a_dtype != torch.float16 else -4)
        if case.a_dtype == torch.float16:
            scales.clamp_(max=230)
    elif case.data == "nan":
        scales.view(-1)[torch.randint(scales.numel(), (2,), generator=random_)] = 255
        bad = torch.randint(m * k, (2,), generator=random_)
        a.view(-1)[bad] = torch.tensor([float("nan"), float("inf")])
    elif case.data == "zero":
        a[: (m + 1) // 2] = 0
        a[:, : k // 2 // 32 * 32] = 0
        weight.data[: (n + 1) // 2] = 0
        scales[: (n + 1) // 2] = 0
    return a.to(case.a_dtype), replace(weight, scales=scales)


def decoded(weight: MXTensor, device: torch.device) -> Tensor:
    """Return a weight's exact values in float64."""
    values = torch.from_numpy(oracle.code_values("e2m1")).to(device)
    data = weight.data.to(device)
    codes = torch.stack((data & 15, data >> 4), -1).view(data.shape[0], -1).int()
    powers = torch.from_numpy(oracle.scale_values(weight.scales.numpy())).to(device)
    return values[codes] * powers.repeat_interleave(32, 1)


def judged(case: Case, made: Made) -> list[str]:
    """Return what is wrong with a result."""
    out, ref = made.operands.out.double(), made.ref
    found = []
    outside = made.memory.clone()
    row, column = made.operands.out.stride()
    outside.as_strided(made.operands.out.shape, (row, column), made.operands.out.storage_offset()).fill_(float("nan"))
    if not bool(outside.isnan().all()):
        found.append("memory outside the result was written")
    limit = torch.finfo(case.out_dtype).max
    judge = ref.isfinite() & (ref.abs() <= limit)
    if not torch.equal(out.isnan() & ~_may_be_nan(made, limit), ref.isnan() & ~_may_be_nan(made, limit)):
        wrong = (out.isnan() != ref.isnan()) & ~_may_be_nan(made, limit)
        found.append(f"NaN at {wrong.nonzero()[:4].tolist()} of {int(wrong.sum())} against the exact result")
    judge &= ~out.isnan() & ~_may_be_nan(made, limit)
    if not bool(judge.any()):
        return found
    error = torch.where(judge, (out - ref).abs(), 0.0)
    size = torch.where(judge, ref, 0.0)
    rounded = torch.where(judge, ref.to(case.out_dtype).double() - ref, 0.0)
    norm = float(error.norm() / size.norm()) if float(size.norm()) else float(error.norm())
    norm_limit = max(NORM_GATE, 1.01 * float(rounded.norm() / size.norm()) if float(size.norm()) else 0.0)
    least = max(LEAST_ERROR[case.out_dtype], 2.0**-134 if case.out_dtype == torch.bfloat16 else 2.0**-140)
    excess = error - torch.maximum(
        2.0 ** -OUT_BITS[case.out_dtype] * size.abs(), torch.tensor(least, device=out.device)
    )
    room = 2.0**-24 * _sizes(made)
    needed = torch.where(excess <= 0, 0.0, excess / room)
    worst = float(torch.where(judge, needed, 0.0).max())
    if not norm <= norm_limit:
        found.append(f"norm {norm:.3e}, at most {norm_limit:.3e}")
    if not worst <= element_gate(case.k):
        at = torch.where(judge, needed, 0.0).argmax()
        place = divmod(int(at), case.n)
        found.append(
            f"element {worst:.1f} roundoffs, at most {element_gate(case.k):.1f}: at {place} "
            f"{float(out[place])!r}, exact {float(ref[place])!r}; {int((needed > element_gate(case.k)).sum())} such"
        )
    return found


def _sizes(made: Made) -> Tensor:
    return made.a64.nan_to_num(0, 0, 0).abs() @ made.b64.nan_to_num(0, 0, 0).abs().T


def _may_be_nan(made: Made, limit: float) -> Tensor:
    """Where a sum of fp32 may pass through infinity, or the result is beyond its dtype."""
    del limit
    return (_sizes(made) > 2.0**120) & ~made.ref.isnan()


Launcher = Callable[[Made, MmaConfig], None]


def launched(made: Made, config: MmaConfig) -> None:
    """Launch by the route."""
    made_ = ROUTES["w4_mma"].bind(made.problem, config)(made.operands)
    assert made_ is None


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
    """Check calls of mxgemm.gemm by this route: leading dimensions, out, a graph, a stream, threads."""
    found = []
    a = torch.randn(2, 3, 2880, device=device, dtype=torch.bfloat16)
    weight = mxgemm.quantize(torch.randn(512, 2880, device=device))
    want = mxgemm.gemm(a, weight, route="reference").double()

    def right(got: Tensor, what: str) -> None:
        error = float((got.double() - want).norm() / want.norm())
        if not error < 4e-3:
            found.append(f"{what}: off by {error:.2e}")

    right(mxgemm.gemm(a, weight, route="w4_mma"), "a call with leading dimensions")
    out = torch.empty(2, 3, 512, device=device, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    fresh = mxgemm.quantize(torch.randn(528, 2880, device=device))  # a size whose kernel nothing has loaded
    with torch.cuda.graph(graph):
        mxgemm.gemm(a, weight, route="w4_mma", out=out)
        other = mxgemm.gemm(a[0], fresh, route="w4_mma", a_format="bf16")
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    right(out, "a graph")
    if not bool(other.isfinite().all()):
        found.append("a graph with a kernel that was loaded under capture")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = mxgemm.gemm(a, weight, route="w4_mma")
    torch.cuda.synchronize()
    right(on_side, "a stream of its own")
    results: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.extend(mxgemm.gemm(a, weight, route="w4_mma") for _ in range(50)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    if len(results) != 400 or not all(torch.equal(one, results[0]) for one in results):
        found.append("threads: results differ, or are missing")
    right(results[0], "a thread")
    for text in found:
        print(f"FAILED whole calls: {text}", flush=True)
    return found


def build_all(pairs: Iterable[tuple[Problem, MmaConfig]]) -> float:
    """Build instances in processes that are forked before CUDA starts; return the seconds."""
    started = time.monotonic()
    instances = {tuple(sorted(w4_mma.defines(p, c).items())) for p, c in pairs}
    assert not torch.cuda.is_initialized()
    with multiprocessing.get_context("fork").Pool(min(16, os.cpu_count() or 1)) as pool:
        errors = [error for error in pool.map(_build_one, sorted(instances, key=str), chunksize=1) if error]
    seconds = time.monotonic() - started
    print(f"built {len(instances)} instances in {seconds:.1f} s", flush=True)
    for error in errors:
        print(error, flush=True)
    if errors:
        sys.exit(1)
    return seconds


def _build_one(instance: tuple[tuple[str, int | str], ...]) -> str:
    try:
        build(w4_mma.SOURCE, arch=w4_mma.ARCH, defines=dict(instance), folder=KERNELS)
    except Exception as error:
        return f"{dict(instance)}: {error}"
    return ""


def timed_problem(shape: tuple[int, int, int], a_format: str, layout: tuple[str, str]) -> Problem:
    """Return the problem of contiguous operands."""
    m, n, k = shape
    return described(Case(m, n, k, MmaConfig(), a_format, layout=layout))


def tried(problem: Problem, top: int) -> list[MmaConfig]:
    """Return the configurations to time: the route's best guesses, two of each division among warps at most."""
    seen: Counter[tuple[int, int, int]] = Counter()
    found = []
    for config in w4_mma.candidates(problem):
        division = (config.tiles, config.warps_n, config.warps_k)
        seen[division] += 1
        if seen[division] <= 2:
            found.append(config)
    best = [next((c for c in found if c.tiles == tiles), None) for tiles in w4_mma.TILES]
    return list(dict.fromkeys([*found[:top], *(c for c in best if c is not None)]))


def times(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Time configurations of every shape and format, and torch.mm; print and return rows."""
    heater = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    effort = Effort(seconds=arguments.seconds)

    def heated(calls: list[Callable[[], object]]) -> float:
        for _ in range(12):
            torch.mm(heater, heater)
        return graph_us(calls, effort).median

    rows = []
    cache = cache_bytes(device)
    layout = (arguments.layout, "row_major" if arguments.layout == "row_major" else "shuffled")
    for shape in arguments.shapes:
        m, n, k = shape
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        right = [torch.randn(n, k, device=device, dtype=torch.bfloat16) for _ in range(copies_needed(2 * n * k, cache))]
        torch_us = heated([lambda b=b: torch.mm(a, b.t(), out=out) for b in right])  # type: ignore[misc]
        first = mxgemm.quantize(right[0])
        del right
        weights = []
        for _ in range(copies_needed(n * k * 17 // 32, cache)):
            data = first.data.clone()
            scales = first.scales.clone()
            if arguments.layout == "preshuffled":
                data, scales = layouts.preshuffle_weight(data), layouts.shuffle_scales(scales)
            weights.append((data, scales))
        for a_format in arguments.a_formats:
            problem = replace(timed_problem(shape, a_format, layout), machine=machine_of(device))
            found = []
            for config in tried(problem, arguments.top):
                launch = ROUTES["w4_mma"].bind(problem, config)
                calls = [lambda b=b, s=s: launch(Operands(a, None, b, s, None, out)) for b, s in weights]  # type: ignore[misc]
                us = heated(calls)
                found.append((us, config))
                rows.append(
                    {"m": m, "n": n, "k": k, "a_format": a_format, "layout": layout[0], "us": round(us, 3)}
                    | {"torch_us": round(torch_us, 3), "config": config.to_mapping()}
                )
            found.sort(key=lambda pair: pair[0])
            print(f"{m},{n},{k} {a_format} {layout[0]}: torch.mm {torch_us:.2f}", flush=True)
            for us, config in found[: arguments.top]:
                print(f"    {us:8.2f} us {us / torch_us:6.3f}  {config}", flush=True)
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
    parser.add_argument("--shapes", type=shape_of, nargs="+", default=list(SHAPES))
    parser.add_argument("--a-formats", nargs="+", default=["e2m1", "bf16"])
    parser.add_argument("--layout", choices=layouts.WEIGHT_LAYOUTS, default="row_major")
    parser.add_argument("--top", type=int, default=6, help="configurations of a shape")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    checking = arguments.mode == "check"
    arguments.seconds = arguments.seconds or (80.0 if checking else 0.05)
    cases = drawn(arguments.cases, arguments.seed)
    if checking:
        build_all((described(case), case.config) for case in cases)
    else:
        layout = (arguments.layout, "row_major" if arguments.layout == "row_major" else "shuffled")
        problems = [timed_problem(shape, a, layout) for shape in arguments.shapes for a in arguments.a_formats]
        build_all((problem, config) for problem in problems for config in tried(problem, arguments.top))
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
