"""Run shapes through ``gemm``, judge each against the oracle, time each; the work behind ``mxgemm bench``."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm._version import __version__
from mxgemm.accuracy import NORM_GATE, judge
from mxgemm.device import machine_of
from mxgemm.explain import explain
from mxgemm.formats import ActivationFormat
from mxgemm.gemm import gemm
from mxgemm.mx import MXTensor, quantize
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.triton_support import triton_version

Shape = tuple[int, int, int]

LEADERBOARD: Final[tuple[Shape, ...]] = (
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
)
"""(M, N, K) of the GPU MODE leaderboard amd-mxfp4-mm."""

METHOD: Final = {
    "cpu": "wall time of one call after three unmeasured ones; median over the repetitions",
    "cuda": "device time of one call between two events, the L2 cache overwritten before each; median",
}
_L2_FLUSH_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Measurement:
    """One shape, judged and timed.

    Attributes:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        route: the route taken.
        reason: why.
        norm_error: see ``mxgemm.accuracy``.
        element_error: see ``mxgemm.accuracy``.
        checked: elements compared with the oracle.
        passed: both gates hold.
        us: median microseconds a call.
        us_low: first quartile.
        us_high: third quartile.
        runs: timed calls.
        gb_per_s: bytes that must move once, over the median.
        tflop_per_s: 2 M N K over the median.
    """

    m: int
    n: int
    k: int
    route: str
    reason: str
    norm_error: float
    element_error: float
    checked: int
    passed: bool
    us: float
    us_low: float
    us_high: float
    runs: int
    gb_per_s: float
    tflop_per_s: float


def measure(
    shapes: Sequence[Shape],
    *,
    device: torch.device,
    a_format: ActivationFormat = "e2m1",
    route: str | None = None,
    seconds: float = 1.0,
    prepare: bool = True,
) -> Iterator[Measurement]:
    """Judge and time each shape, yielding as results come.

    Args:
        shapes: (M, N, K) triples.
        device: where to run.
        a_format: as in ``gemm``.
        route: as in ``gemm``.
        seconds: time to spend on timing a shape, at least five calls.
        prepare: call ``prepare()`` on the weight first.
    """
    for m, n, k in shapes:
        a, weight = inputs(m, n, k, device)
        if prepare:
            weight = weight.prepare()

        def call(a: Tensor = a, weight: MXTensor = weight) -> Tensor:
            return gemm(a, weight, a_format=a_format, route=route)

        why = explain(
            m, n, k, device=device, a_format=a_format, prepared=prepare, derived=weight.derived_kind, route=route
        )
        bits = ROUTES[why.route].accumulate_bits
        accuracy = judge(call(), a, weight, a_format=a_format, accumulate_bits=bits)
        times = time_calls(call, device, seconds)
        low, middle, high = quartiles(times)
        problem = Problem(m, n, k, machine_of(device), a_format=a_format)
        yield Measurement(
            *(m, n, k, why.route, why.reason),
            *(accuracy.norm, accuracy.element, accuracy.checked, accuracy.passed),
            *(middle, low, high, len(times)),
            gb_per_s=problem.traffic_bytes / middle / 1e3,
            tflop_per_s=problem.flops / middle / 1e6,
        )


def inputs(m: int, n: int, k: int, device: torch.device, seed: int = 0) -> tuple[Tensor, MXTensor]:
    """Make activations and a weight from N(0, 1), the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(m, k, generator=generator, dtype=torch.float32).to(torch.bfloat16)
    b = torch.randn(n, k, generator=generator, dtype=torch.float32).to(torch.bfloat16)
    return a.to(device), quantize(b.to(device))


def time_calls(call: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Return microseconds of single calls, see :data:`METHOD`."""
    for _ in range(3):
        call()
    return _time_cuda(call, device, seconds) if device.type == "cuda" else _time_cpu(call, seconds)


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    if len(times) < 2:
        return times[0], times[0], times[0]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


def report(measurements: Sequence[Measurement], device: torch.device, a_format: str) -> dict[str, Any]:
    """Return a JSON document: environment, method, gates and one record per shape."""
    version = triton_version()
    return {
        "kind": "mxgemm-bench",
        "mxgemm": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine_of(device).name if device.type == "cuda" else platform.processor() or platform.machine(),
        "arch": machine_of(device).arch,
        "torch": torch.__version__,
        "triton": ".".join(map(str, version)) if version else None,
        "python": platform.python_version(),
        "method": METHOD[device.type],
        "a_format": a_format,
        "gates": {"norm": NORM_GATE, "element": "32 + K / 64"},
        "results": [asdict(measurement) for measurement in measurements],
    }


def _time_cpu(call: Callable[[], object], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def _time_cuda(call: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    flush = torch.empty(_L2_FLUSH_BYTES, dtype=torch.uint8, device=device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        flush.zero_()
        before.record()
        call()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3)
    return times
