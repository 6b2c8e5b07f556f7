"""MXFP4 on Hopper: every route and kind of prepared weight against torch.mm on bf16 weights, in one run.

    python bench/hopper.py [-o bench/results/hopper_h200.json] [--m 1 16 64 256 1024 4096 8192] [--quick]

Device microseconds of one call by graph replay: a graph holds one call on each of several copies of the weight,
together beyond the L2 cache twice over, and is replayed; median over the replays. Quantising A and recomputing rows
that do not fold are inside. Errors are those of docs/numbers.md, on 64 rows and 2048 columns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mxgemm
from mxgemm.device import machine_of
from mxgemm.measure import output
from mxgemm.mx import accuracy
from mxgemm.mx.formats import E2M1
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import ROUTES
from mxgemm.routes.fp8_fold import quantize_fold_call
from mxgemm.triton.launch import Launcher
from mxgemm.triton.support import triton_version

WEIGHTS = ((5120, 2880), (2880, 4096), (7168, 2048), (7168, 16384), (10240, 8192), (57344, 8192), (8192, 28672))
ROTATE_BYTES = 130e6
MAX_COPIES = 12


@dataclass(frozen=True)
class Variant:
    """One way to call: name, a_format, route, memory of prepare() (None: not prepared), M range."""

    name: str
    a_format: str
    route: str
    memory: str | None
    m_min: int = 1
    m_max: int = 1 << 30


VARIANTS = (
    Variant("fold fast", "e2m1", "fp8_fold", "fast"),
    Variant("fold compact", "e2m1", "fp8_fold", "compact", m_min=64),
    Variant("dequant e2m1", "e2m1", "dequant_mm", None, m_min=16),
    Variant("a16wfp4", "e2m1", "a16wfp4", None, m_max=64),
    Variant("dequant bf16", "bf16", "dequant_mm", None, m_min=16),
    Variant("w4a16", "bf16", "w4a16", None, m_max=256),
)


def main() -> None:
    """Measure every weight, M and variant; print as results come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--m", type=int, nargs="+", default=[1, 16, 64, 256, 1024, 4096, 8192])
    parser.add_argument("--quick", action="store_true", help="fold and torch.mm only")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, "mxgemm-hopper")
    rows: list[dict[str, Any]] = []
    variants = [v for v in VARIANTS if not arguments.quick or v.name.startswith("fold")]
    for n, k in WEIGHTS:
        rows += measure_weight(n, k, arguments.m, variants)
    document = {
        "kind": "mxgemm-hopper",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine_of(torch.device("cuda", 0)).name,
        "torch": torch.__version__,
        "triton": ".".join(map(str, triton_version() or ())),
        "method": " ".join((__doc__ or "").split("\n\n")[2].split()),
        "copy_gb_per_s": round(copy_bandwidth(), 0),
        "rows": rows,
        "summary": summary(rows),
        "quantiser": quantiser(),
        "wide_rows": wide_rows(),
    }
    print(
        json.dumps({name: document[name] for name in ("summary", "quantiser", "wide_rows", "copy_gb_per_s")}, indent=1)
    )
    keep(document)


def measure_weight(n: int, k: int, ms: list[int], variants: list[Variant]) -> list[dict[str, Any]]:
    """Measure one weight at every M."""
    generator = torch.Generator("cuda").manual_seed(n + k)
    b = torch.randn(n, k, generator=generator, device="cuda", dtype=torch.bfloat16)
    packed = mxgemm.quantize(b)
    del b
    bf16 = copies(packed.dequantize(torch.bfloat16))
    rows = []
    for m in ms:
        a = torch.randn(m, k, generator=generator, device="cuda", dtype=torch.bfloat16)
        exact = graph_us([partial(torch.mm, a, w.t()) for w in bf16])
        row: dict[str, Any] = {"m": m, "n": n, "k": k, "torch.mm bf16": round(exact, 2)}
        for variant in variants:
            if variant.m_min <= m <= variant.m_max:
                row[variant.name] = measure_variant(variant, a, packed, exact)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def measure_variant(variant: Variant, a: Tensor, packed: MXTensor, exact_us: float) -> dict[str, Any]:
    """Time one variant and judge it."""
    weight = packed if variant.memory is None else packed.prepare(memory=variant.memory)  # type: ignore[arg-type]
    _, _, _, _, derived = weight.operand()
    tensors = [weight.data, weight.scales, *derived]
    size = sum(t.nbytes for t in (derived if variant.memory == "fast" else tensors[:2]))
    count = max(1, min(MAX_COPIES, math.ceil(ROTATE_BYTES / size)))
    weights = [weight, *(weight.clone() for _ in range(count - 1))]

    call = partial(mxgemm.gemm, a, a_format=variant.a_format, route=variant.route)  # type: ignore[arg-type]
    us = graph_us([partial(call, w) for w in weights])
    bits = ROUTES[variant.route].accumulate_bits
    rows = torch.randperm(a.shape[0])[:64].sort().values
    out = call(weight)[rows.cuda()]
    judged = accuracy.judge(out, a[rows.cuda()], packed, a_format=variant.a_format, accumulate_bits=bits)
    return {
        "us": round(us, 2),
        "ratio": round(us / exact_us, 3),
        "norm": float(f"{judged.norm:.3g}"),
        "element": float(f"{judged.element:.3g}"),
        "passed": judged.passed,
    }


def copies(tensor: Tensor) -> list[Tensor]:
    """Return enough copies of a weight to pass the L2 cache."""
    return [tensor, *(tensor.clone() for _ in range(min(MAX_COPIES, math.ceil(ROTATE_BYTES / tensor.nbytes)) - 1))]


def graph_us(calls: list[Callable[[], object]], replays: int = 20) -> float:
    """Return device microseconds of one call: the median replay of a graph of all calls, divided by their number."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    times: list[float] = []
    for _ in range(replays + 3):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / len(calls))
    del kept
    return statistics.median(times[3:])


def copy_bandwidth() -> float:
    """Return GB/s of a device-to-device copy, bytes read and written."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    # Not copy_: in a graph that is a memory-copy node, slower than a kernel.
    return 2 * source.nbytes / graph_us([lambda: torch.bitwise_not(source, out=target)]) / 1e3


def quantiser() -> list[dict[str, Any]]:
    """Time the quantise-and-fold kernel alone, against the bytes it moves."""
    machine = machine_of(torch.device("cuda", 0))
    found = []
    for m, k in ((64, 8192), (1024, 2880), (1024, 8192), (4096, 2048), (4096, 8192), (4096, 28672), (8192, 16384)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        problem = Problem(m, 16, k, machine, strides=contiguous_strides(16, k, E2M1, k // 32))
        launch = Launcher(quantize_fold_call(problem))
        folded = torch.empty(m, k, dtype=torch.uint8, device="cuda")
        base, wide = torch.empty(m, device="cuda"), torch.empty(m, dtype=torch.int32, device="cuda")
        us = graph_us([partial(launch, a, folded, base, wide)] * 10)
        found.append({"m": m, "k": k, "us": round(us, 2), "gb_per_s": round(3 * m * k / us / 1e3)})
    return found


def wide_rows() -> list[dict[str, Any]]:
    """Time a call whose activations hold rows that do not fold: none, one, one in a hundred, all."""
    found = []
    n, k, m = 7168, 2048, 1024
    weight = mxgemm.quantize(torch.randn(n, k, device="cuda")).prepare()
    for share in (0.0, 1 / m, 0.01, 0.1, 1.0):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        count = round(share * m)
        a[:count, :32] *= 2.0**20
        us = graph_us([partial(mxgemm.gemm, a, weight, route="fp8_fold")] * 10)
        out = mxgemm.gemm(a, weight, route="fp8_fold")
        judged = accuracy.judge(out, a, weight, accumulate_bits=13)
        found.append({"wide_rows": count, "of": m, "us": round(us, 2), "norm": judged.norm, "passed": judged.passed})
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return geometric means of the ratios to torch.mm, per variant, for groups of sizes."""

    def mean(variant: str, ms: tuple[int, ...], least: float = 0.0) -> float | None:
        ratios = [r[variant]["ratio"] for r in rows if r["m"] in ms and variant in r and r["n"] * r["k"] >= least]
        return round(statistics.geometric_mean(ratios), 3) if ratios else None

    big = 80e6
    return {
        "fold fast, M >= 1024": mean("fold fast", (1024, 4096, 8192)),
        "fold fast, M = 1024 and 4096": mean("fold fast", (1024, 4096)),
        "fold fast, M = 256, N K >= 80M": mean("fold fast", (256,), big),
        "fold compact, M >= 1024, N K >= 80M": mean("fold compact", (1024, 4096, 8192), big),
        "worst fold fast, M >= 1024, N K >= 80M": max(
            (r["fold fast"]["ratio"] for r in rows if r["m"] >= 1024 and r["n"] * r["k"] >= big), default=None
        ),
        "worst fold fast, M >= 1024, N K < 80M": max(
            (r["fold fast"]["ratio"] for r in rows if r["m"] >= 1024 and r["n"] * r["k"] < big), default=None
        ),
        "all passed": all(v["passed"] for r in rows for v in r.values() if isinstance(v, dict)),
    }


if __name__ == "__main__":
    main()
