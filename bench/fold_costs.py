"""What fp8_fold pays besides its product, on Hopper: its first launch, and activations with rows that do not fold.

    python bench/fold_costs.py [-o bench/results/fold_costs_h200.json]

Device microseconds of one call by mxgemm.measure.timing.graph_us, operands in what cache they fit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch

import mxgemm
from mxgemm.device import machine_of
from mxgemm.measure import Effort, output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.timing import graph_us
from mxgemm.mx import accuracy
from mxgemm.mx.formats import BLOCK, E2M1
from mxgemm.problem import Options, Problem, contiguous_strides
from mxgemm.routes import ROUTES
from mxgemm.routes.decode import decode_call
from mxgemm.routes.fold_calls import fold_both_call, quantize_fold_call
from mxgemm.triton.launch import Launcher

KIND = "mxgemm-fold-costs"
QUANTISED = ((64, 8192), (1024, 2880), (1024, 8192), (4096, 2048), (4096, 8192), (4096, 28672), (8192, 16384))
COMPACT = ((5120, 2880), (2880, 4096), (7168, 2048), (7168, 16384), (10240, 8192), (8192, 28672))
COMPACT_M = 256
WIDE = (1024, 7168, 2048)
SHARES = (0.0, 1 / 1024, 0.01, 0.1, 1.0)
EFFORT = Effort(seconds=0.05)


def main() -> None:
    """Measure, print, write; exit status 1 after a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    device = torch.device("cuda", 0)
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "quantiser": [quantiser(m, k, device) for m, k in QUANTISED],
        "compact": [compact(n, k, device) for n, k in COMPACT],
        "wide_rows": [wide_rows(share, device) for share in SHARES],
    }
    print(json.dumps(document, indent=1))
    keep(document)
    raise SystemExit(0 if all(row["passed"] for row in document["wide_rows"]) else 1)


def quantiser(m: int, k: int, device: torch.device) -> dict[str, Any]:
    """Time the quantise-and-fold kernel alone, against the bytes it moves."""
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    problem = Problem(m, 16, k, machine_of(device), strides=contiguous_strides(16, k, E2M1, k // BLOCK))
    launch = Launcher(quantize_fold_call(problem))
    folded = torch.empty(m, k, dtype=torch.uint8, device=device)
    base, wide = torch.empty(m, device=device), torch.empty(m, dtype=torch.int32, device=device)
    time = _time(partial(launch, a, folded, base, wide))
    return {"m": m, "k": k, **time, "gb_per_s": round(3 * m * k / time["us"] / 1e3)}


def compact(n: int, k: int, device: torch.device) -> dict[str, Any]:
    """Time what decodes a compact weight, alone and with the quantiser of A; copies of the weight exceed the cache."""
    m, options = COMPACT_M, Options(derived="fp8_fold_compact")
    strides = contiguous_strides(n, k, E2M1, k // BLOCK)
    problem = Problem(m, n, k, machine_of(device), options, strides=strides)
    copies = copies_needed(n * k // 2, cache_bytes(device))
    weights = [mxgemm.quantize(torch.randn(n, k, device=device)).prepare(memory="compact") for _ in range(copies)]
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    quantised = torch.empty(m, k, dtype=torch.uint8, device=device), torch.empty(m, device=device)
    left = *quantised, torch.empty(m, dtype=torch.int32, device=device)
    right = torch.empty(n, k, dtype=torch.uint8, device=device), torch.empty(n, device=device)
    decode, both = Launcher(decode_call(problem, n, to_fp8=True)), Launcher(fold_both_call(problem, n))
    read = [(w.data, w.scales, w.operand()[4][0]) for w in weights]
    alone = graph_us([partial(decode, *parts, *right) for parts in read], EFFORT).us
    with_a = graph_us([partial(both, a, *left, *parts, *right) for parts in read], EFFORT).us
    moved = n * k + n * k // 2 + n * k // BLOCK
    times = {"us": round(alone, 2), "gb_per_s": round(moved / alone / 1e3), "with_quantiser_us": round(with_a, 2)}
    return {"m": m, "n": n, "k": k, **times}


def wide_rows(share: float, device: torch.device) -> dict[str, Any]:
    """Time and judge a call a share of whose activations' rows do not fold."""
    m, n, k = WIDE
    weight = mxgemm.quantize(torch.randn(n, k, device=device)).prepare()
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    count = round(share * m)
    a[:count, :BLOCK] *= 2.0**20
    call = partial(mxgemm.gemm, a, weight, route="fp8_fold")
    judged = accuracy.judge(call(), a, weight, accumulate_bits=ROUTES["fp8_fold"].accumulate_bits)
    return {"m": m, "n": n, "k": k, "wide_rows": count, **_time(call), "norm": judged.norm, "passed": judged.passed}


def _time(call: Callable[[], object]) -> dict[str, Any]:
    return asdict(graph_us([call], EFFORT))


if __name__ == "__main__":
    main()
