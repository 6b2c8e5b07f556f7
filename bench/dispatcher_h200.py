"""The dispatcher's Triton kernels on an NVIDIA GPU: right for odd shapes, and timed against torch's row-wise product.

    python bench/dispatcher_h200.py [-o bench/results/dispatcher_h200.json] [--seconds 70]

Correctness: every kind of operand and scale at odd sizes, judged against float64 by the gates of docs/numbers.md; fp8
products with fp32 scales are summed in Hopper's fp8 units, whose roundoffs are 2**-13.

Times: device microseconds of one call by mxgemm.measure.timing.graph_us, on copies of B that together exceed the L2
cache twice; median and quartiles over the replays. Ours is the quickest of the tiles listed, for each shape and kind of
accumulation; torch._scaled_mm chooses by itself and rounds to bf16, as its row-wise form does no other; ours rounds to
fp16. Errors are against float64, on 64 rows and 512 columns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evidence.quant_cases import decode_elements, operands
from mxgemm.device import machine_of
from mxgemm.dispatcher.jit import Tile, launcher, quant_gemm
from mxgemm.measure import Effort, output
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.timing import graph_us
from mxgemm.mx.accuracy import Accuracy, compare
from mxgemm.triton.support import triton_version

KINDS = (("e2m1", "block"), ("e4m3", "block"), ("e4m3", "row"), ("e5m2", "row"))
ODD_SHAPES = ((1, 16, 32), (1, 1, 32), (33, 17, 96), (130, 200, 416), (31, 513, 2080), (257, 512, 2048))
CK_TILES = {"block": Tile(128, 128, 128, num_warps=8), "row": Tile(16, 64, 256)}
"""The default tiles of the configurations; a 128 x 128 tile takes eight of NVIDIA's warps of 32."""
WEIGHTS = ((2048, 7168), (7168, 2048), (8192, 8192))
ROWS = (16, 256, 4096)
SMALL_TILES = (Tile(16, 64, 256, 4, 4), Tile(64, 64, 128, 4, 5), Tile(64, 128, 128, 4, 4))
LARGE_TILES = (Tile(64, 128, 128, 4, 4), Tile(128, 128, 128, 8, 4), Tile(128, 256, 128, 8, 3))
EFFORT = Effort(seconds=0.1)


def main() -> None:
    """Check, measure, print as results come; exit status 1 after a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument(
        "--seconds", type=float, default=70.0, help="leave out what is left after this long, and say so"
    )
    arguments = parser.parse_args()
    keep = output.json_file(arguments, "mxgemm-dispatcher-gpu")
    started = time.monotonic()
    checks, unchecked = odd_shapes(started + 0.6 * arguments.seconds)
    rows, unmeasured = measure(started + arguments.seconds)
    document = {
        "kind": "mxgemm-dispatcher-gpu",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "machine": machine_of(torch.device("cuda", 0)).name,
        "torch": torch.__version__,
        "triton": ".".join(map(str, triton_version() or ())),
        "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "odd_shapes": checks,
        "rows": rows,
        "left_out": unchecked + unmeasured,
        "summary": summary(checks, rows),
    }
    print(json.dumps(document["summary"], indent=1))
    keep(document)
    raise SystemExit(0 if all(check["passed"] for check in checks) else 1)


def odd_shapes(deadline: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Judge every kind at odd sizes: a small tile, the configuration's tile on two, few persistent programs on one."""
    found: list[dict[str, Any]] = []
    left_out = []
    for kind, scale in KINDS:
        bits = 13 if scale == "row" else 24
        cases = [(Tile(), shape) for shape in ODD_SHAPES]
        cases += [(CK_TILES[scale], shape) for shape in ODD_SHAPES[-2:]]
        cases.append((Tile(programs=3), ODD_SHAPES[3]))
        for tile, shape in cases:
            if time.monotonic() > deadline:
                left_out.append(f"odd shape {kind} {scale} {shape} {tile}")
                continue
            drawn = operands(kind, scale, *shape, seed=sum(shape))
            a, b, a_scales, b_scales = (torch.from_numpy(array).cuda() for array in drawn.arrays)
            accuracy = drawn.judge(quant_gemm(a, b, a_scales, b_scales, kind, tile).cpu().numpy(), bits)
            found.append({"kind": kind, "scale": scale, "shape": shape, "tile": asdict(tile), **_figures(accuracy)})
        passed = all(check["passed"] for check in found if (check["kind"], check["scale"]) == (kind, scale))
        print(json.dumps({"kind": kind, "scale": scale, "passed": passed}), flush=True)
    return found, left_out


def measure(deadline: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Time row-wise scaled e4m3 products; return the rows and what there was no time for."""
    rows: list[dict[str, Any]] = []
    left_out = []
    for m, (n, k) in itertools.product(ROWS, WEIGHTS):
        if time.monotonic() > deadline:
            left_out.append(f"{m} x {n} x {k}")
            continue
        rows.append(_measure_shape(m, n, k))
        print(json.dumps(rows[-1]), flush=True)
    return rows, left_out


def _measure_shape(m: int, n: int, k: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    e4m3 = torch.float8_e4m3fn
    a = torch.randn(m, k, generator=generator, device="cuda").to(e4m3).view(torch.uint8)
    b = torch.randn(n, k, generator=generator, device="cuda").to(e4m3).view(torch.uint8)
    a_scales = torch.exp2(torch.rand(m, generator=generator, device="cuda") * 4 - 4)
    b_scales = torch.exp2(torch.rand(n, generator=generator, device="cuda") * 4 - 4)
    copies = [b, *(b.clone() for _ in range(copies_needed(b.nbytes, cache_bytes(b.device)) - 1))]
    judge = _judge_of(a, b, a_scales, b_scales)
    row: dict[str, Any] = {"m": m, "n": n, "k": k}
    for fast in (False, True):
        theirs = [
            partial(
                torch._scaled_mm, a.view(e4m3), copy.view(e4m3).T, scale_a=a_scales[:, None],
                scale_b=b_scales[None, :], out_dtype=torch.bfloat16, use_fast_accum=fast,
            )
            for copy in copies
        ]  # fmt: skip
        best: dict[str, Any] | None = None
        for tile in SMALL_TILES if m <= 64 else LARGE_TILES:
            launch = launcher(a, b, a_scales, b_scales, "e4m3", tile, (m, n, k), fast)
            out = torch.empty(m, n, dtype=torch.float16, device="cuda")
            calls = [partial(launch, a, copy, a_scales, b_scales, out) for copy in copies]
            timed = _time(calls)
            if best is None or timed["us"] < best["us"]:
                best = {**timed, "tile": asdict(tile), **_figures(judge(out))}
        assert best is not None
        torch_row = {**_time(theirs), **_figures(judge(theirs[0]()))}
        name = "fast_accumulation" if fast else "exact_accumulation"
        row[name] = {"ours": best, "torch": torch_row, "ratio": round(best["us"] / torch_row["us"], 3)}
    return row


def _judge_of(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Callable[[Tensor], Accuracy]:
    rows = torch.linspace(0, a.shape[0] - 1, min(64, a.shape[0])).long()
    columns = torch.linspace(0, b.shape[0] - 1, min(512, b.shape[0])).long()
    worth = [
        decode_elements(data[chosen.cuda()].cpu().numpy(), "e4m3")
        * scales[chosen.cuda()].double().cpu().numpy()[:, None]
        for data, scales, chosen in ((a, a_scales, rows), (b, b_scales, columns))
    ]
    exact = worth[0] @ worth[1].T
    return lambda out: compare(out.cpu()[rows][:, columns], exact, worth[0], worth[1], 13)


def _time(calls: Sequence[Callable[[], object]]) -> dict[str, Any]:
    spread = graph_us(calls, EFFORT)
    return {**{name: round(getattr(spread, name), 2) for name in ("us", "low", "high")}, "runs": spread.runs}


def summary(checks: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the docs cite."""
    found: dict[str, Any] = {
        "odd_shapes": len(checks),
        "odd_shapes_passed": sum(check["passed"] for check in checks),
    }
    for name in ("exact_accumulation", "fast_accumulation"):
        if not rows:
            continue
        ratios = [row[name]["ratio"] for row in rows]
        found[name] = {
            "geometric_mean_of_ratios": round(statistics.geometric_mean(ratios), 3),
            "ratios": [min(ratios), max(ratios)],
            **{
                f"worst_norm_{side}": max(row[name][side]["norm"] for row in rows)
                for side in ("ours", "torch")
            },
            **{
                f"worst_element_{side}": max(row[name][side]["element"] for row in rows)
                for side in ("ours", "torch")
            },
        }  # fmt: skip
    return found


def _figures(accuracy: Accuracy) -> dict[str, Any]:
    return {
        "norm": float(f"{accuracy.norm:.3g}"),
        "element": float(f"{accuracy.element:.3g}"),
        "passed": accuracy.passed,
    }


if __name__ == "__main__":
    main()
