"""The CPU's kernels: every variant that this CPU runs, checked and timed beside torch.mm on dequantised weights.

    PYTHONPATH=. python bench/cpu_native.py [--threads 1 2] [-o bench/results/cpu_native_<cpu>.json]

Wall time of single calls, quantising A included, contenders in turn so that a busy moment of the machine hits all of
them; medians. ``ratio`` is to the faster of torch.mm in bf16 and in fp32 in the same turns, each with A and the weight
of its dtype in memory already. Before each call 64 MB of something else are written, so that weights come from memory,
as they do in a model. One to two minutes for each number of threads.

For a machine that others use as well; what caches and memory they take from it stays in. With --processor-time, of one
thread, times are those of the thread's processor and not of the wall. With --undisturbed, calls during which the system
took a processor from one of this process's threads do not count, and what has no five others at a size is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

import mxgemm
from mxgemm import files
from mxgemm.cpu import abi, build, variants
from mxgemm.cpu.launch import Product
from mxgemm.device import CPU, cpu_features
from mxgemm.errors import BuildError, Refusal
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.spread import Spread, spread_of
from mxgemm.measure.timing import single_thread_us, single_wall_us
from mxgemm.mx.accuracy import judge
from mxgemm.mx.formats import E2M1
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem, contiguous_strides

KIND: Final = "mxgemm-cpu-native"
SIZES: Final = (
    *((m, 2112, 7168) for m in (1, 4, 16, 64, 256, 1024)),
    *((1, n, k) for n, k in ((7168, 2048), (2880, 4096), (8192, 8192))),
)
BF16_SIZES: Final = tuple((m, 2112, 7168) for m in (1, 4, 8, 16, 64, 256, 1024))
E4M3_SIZES: Final = tuple((m, 2112, 7168) for m in (1, 16, 64))
CHECKED: Final = ((3, 65, 96), (33, 300, 2880))
CONVERTED: Final = (2112, 7168)
SECONDS: Final = 1.5
LEAST, MOST = 5, 60
PATIENCE: Final = 40
"""Times the seconds of a size, after which --undisturbed waits no longer."""
FLUSHED: Final = 1 << 26
LIMITS: Final = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", variants.VARIANT_VARIABLE)
"""Variables that hold torch and the kernels to less than the CPU has."""
REFERENCE_ROWS: Final = 16
"""``reference`` is timed up to this M: it takes a hundred times as long."""

Call = Callable[[], object]
Timer = Callable[[Call], float]
Libraries = dict[str, ctypes.CDLL]


def main() -> None:
    """Check, measure, print, write; exit status 1 after a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, min(2, cores)}))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each size, all contenders together")
    parser.add_argument("--most-rows", type=int, default=1024, help="of A; torch takes long for many in bf16 with AVX2")
    parser.add_argument("--rows", type=int, nargs="+", help="of A: these in every format by one weight, no other sizes")
    parser.add_argument("--variants", nargs="+", help="of those that the CPU runs, without `reference`; else all")
    output.add_options(parser)
    parser.add_argument("--processor-time", action="store_true", help="of the calling thread; with --threads 1")
    parser.add_argument("--undisturbed", action="store_true", help="leave out calls that were interrupted")
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != [1]:
        parser.error("--processor-time: is of one thread; want --threads 1")
    if arguments.processor_time and arguments.undisturbed:
        parser.error("--processor-time, --undisturbed: want one of them")
    keep = output.json_file(arguments, KIND)
    found, failed = libraries()
    found = {name: library for name, library in found.items() if name in (arguments.variants or found)}
    wrong = [fault for name, library in found.items() for fault in faults(name, library)]
    seconds, sizes = arguments.seconds, chosen_sizes(arguments.rows, arguments.most_rows)
    reference = not arguments.variants
    timer: Timer = undisturbed_us if arguments.undisturbed else single_wall_us
    timer = single_thread_us if arguments.processor_time else timer
    results = [
        record for threads in arguments.threads for record in measured(found, threads, seconds, sizes, reference, timer)
    ]
    words = (__doc__ or "").split("\n\n")[2 : 4 if timer is not single_wall_us else 3]
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "method": " ".join(" ".join(words).split()),
        "environment": describe_environment(torch.device("cpu")),
        "processor": processor(),
        "scheduling": scheduling(),
        "cores": cores,
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "features": sorted(cpu_features() & {flag for v in variants.VARIANTS for flag in (*v.needs, *v.extras)}),
        "variants": list(found),
        "not_built": failed,
        "wrong": wrong,
        "results": results,
    }
    keep(document)
    print(json.dumps({name: value for name, value in document.items() if name != "results"}, indent=1))
    raise SystemExit(bool(wrong or failed))


def chosen_sizes(rows: list[int] | None, most_rows: int) -> list[tuple[str, int, int, int]]:
    """Return what is timed: a format of A, and M, N, K."""
    of_formats = {"e2m1": SIZES, "bf16": BF16_SIZES, "e4m3": E4M3_SIZES}
    if rows:
        of_formats = {a_format: tuple((m, *CONVERTED) for m in rows) for a_format in of_formats}
    return [(a_format, *size) for a_format, sizes in of_formats.items() for size in sizes if size[0] <= most_rows]


def processor() -> dict[str, str]:
    """Say which generation of CPU this is, which a model's name need not tell (Linux on x86; {} elsewhere)."""
    try:
        text = files.read_bytes("/proc/cpuinfo").decode(errors="replace")
    except files.FileError:
        return {}
    wanted = ("vendor_id", "cpu family", "model")
    lines = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines if name.strip() in wanted}


def scheduling() -> str:
    """Say whether others on the machine wait for this process: under ``chrt -f 10`` they do (Linux)."""
    if sys.platform != "linux":
        return "other"
    return "first in, first out" if os.sched_getscheduler(0) == os.SCHED_FIFO else "other"


def libraries() -> tuple[Libraries, dict[str, str]]:
    """Build every variant that this CPU runs; the best first."""
    usable = variants.usable(variants.named())
    found, failed = {}, {}
    for variant in () if isinstance(usable, Refusal) else usable:
        try:
            found[variant.name] = build.load(variant)
        except (BuildError, OSError) as error:
            failed[variant.name] = str(error)
    return found, failed


def product(library: ctypes.CDLL, a: Tensor, weight: MXTensor, a_format: str, method: str, out: Tensor) -> None:
    """Multiply by one variant and method."""
    (m, k), n = a.shape, weight.shape[0]
    strides = contiguous_strides(n, k, E2M1, k // 32)
    problem = Problem.of(m, n, k, CPU, a_format=a_format, out_dtype=out.dtype, strides=strides)
    Product(library, problem, method)(a, None, weight.data, weight.scales, None, out)


def faults(name: str, library: ctypes.CDLL) -> Iterator[str]:
    """Say which results of a variant do not pass the gates."""
    for m, n, k in CHECKED:
        a, weight = torch.randn(m, k).to(torch.bfloat16), mxgemm.quantize(torch.randn(n, k))
        for a_format in ("e2m1", "e4m3", "bf16"):
            for method in abi.methods_of(a_format):
                out = torch.full((m, n), torch.nan, dtype=torch.float32)
                product(library, a, weight, a_format, method, out)
                accuracy = judge(out, a, weight, a_format=a_format)
                if not accuracy.passed:
                    yield f"{name} {method} {a_format} ({m}, {n}, {k}): {accuracy}"


def measured(
    found: Libraries,
    threads: int,
    seconds: float,
    sizes: list[tuple[str, int, int, int]],
    reference: bool,
    timer: Timer,
) -> Iterator[dict[str, Any]]:
    """Time these sizes with a number of threads, then conversions."""
    torch.set_num_threads(threads)
    for a_format, m, n, k in sizes:
        a, values = torch.randn(m, k).to(torch.bfloat16), torch.randn(n, k).to(torch.bfloat16)
        weight = mxgemm.quantize(values)
        peers = peers_of(a, weight.dequantize(dtype=torch.bfloat16))
        times = timed({**peers, **contenders(found, a, weight, a_format, reference)}, seconds, timer)
        fastest = min((times[name].us for name in peers if name in times), default=math.nan)
        if math.isnan(fastest):
            print(f"{m},{n},{k} {a_format} {threads} threads: interrupted too often", flush=True)
            continue
        for name, spread in times.items():
            what = {"m": m, "n": n, "k": k, "a_format": a_format, "threads": threads, "name": name}
            yield {**what, **asdict(spread), "ratio": spread.us / fastest}
        shown = "  ".join(f"{name} {s.us / 1e3:.2f} ({s.us / fastest:.2f})" for name, s in times.items())
        print(f"{m},{n},{k} {a_format} {threads} threads, ms (ratio): {shown}", flush=True)
    n, k = CONVERTED
    values = torch.randn(n, k).to(torch.bfloat16)
    weight = mxgemm.quantize(values)
    calls: dict[str, Call] = {"quantize": partial(mxgemm.quantize, values), "copy": values.clone}
    calls["dequantize"] = partial(weight.dequantize, dtype=torch.bfloat16)
    for name, spread in timed(calls, seconds, timer).items():
        yield {"m": n, "k": k, "threads": threads, "name": name, **asdict(spread)}
        print(f"{name} of {n},{k}, {threads} threads: {spread.us / 1e3:.2f} ms", flush=True)


def peers_of(a: Tensor, values: Tensor) -> dict[str, Call]:
    """Return torch.mm on dequantised weights."""
    a32, values32 = a.to(torch.float32), values.to(torch.float32)
    return {
        "torch.mm bf16": partial(torch.mm, a, values.t()),
        "torch.mm fp32": partial(torch.mm, a32, values32.t()),
    }


def contenders(found: Libraries, a: Tensor, weight: MXTensor, a_format: str, reference: bool) -> dict[str, Call]:
    """Return the public call, each variant and method, and the other routes."""
    gemm = partial(mxgemm.gemm, a, weight, a_format=a_format)  # type: ignore[arg-type]
    calls: dict[str, Call] = {"gemm": gemm}
    out = torch.empty(a.shape[0], weight.shape[0], dtype=torch.bfloat16)
    for name, library in found.items():
        for method in abi.methods_of(a_format):
            if method != "rows" or a.shape[0] <= 2 * REFERENCE_ROWS:
                calls[f"{name} {method}"] = partial(product, library, a, weight, a_format, method, out)
    if found:
        calls["cpu_dequant_mm"] = partial(gemm, route="cpu_dequant_mm")
    if reference and a.shape[0] <= REFERENCE_ROWS:
        calls["reference"] = partial(gemm, route="reference")
    return calls


def undisturbed_us(call: Call) -> float:
    """Time one call by the wall; NaN if the system interrupted one of this process's threads to run something else."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    us = single_wall_us(call)
    return us if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == before else math.nan


def timed(calls: dict[str, Call], seconds: float, timer: Timer) -> dict[str, Spread]:
    """Call all of them in turn until the time is spent, after a first turn that does not count, with cold caches."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    spent, turns, fewest = 0.0, -1, 0
    patience = PATIENCE * seconds * 1e6 if timer is undisturbed_us else math.inf
    other = torch.zeros(FLUSHED, dtype=torch.uint8)
    while spent <= patience and (fewest < LEAST or (fewest < MOST and spent < seconds * 1e6)):
        for name, call in calls.items():
            other.add_(1)
            begin = time.perf_counter()
            us = timer(call)
            if turns >= 0:
                spent += (time.perf_counter() - begin) * 1e6
                times[name] += [] if math.isnan(us) else [us]
        turns += 1
        fewest = min(map(len, times.values()))
    method = "thread" if timer is single_thread_us else "wall"
    return {name: spread_of(list_, method) for name, list_ in times.items() if len(list_) >= LEAST}


if __name__ == "__main__":
    main()
