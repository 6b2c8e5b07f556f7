"""Many host threads on one GPU: every result must have the bits of a serial run.

    python bench/threads.py [-o bench/results/threads_h200.json] [--threads 8] [--calls 400] [--seconds 170]

Each case is one way of one route at four sizes, so that scratch grows and shrinks between calls, of a weight that is
prepared or not. It runs on one stream that all threads share, then with a stream for each thread, then on one stream
with plans and kernels that are found anew in the midst of it. A thread takes the sizes in turn, starting at its own;
every result is kept and compared with the serial one on the device. Cases that there was no time for are named.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

import mxgemm
from mxgemm import plan
from mxgemm.device import default_device, machine_of
from mxgemm.measure import output
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, Operands
from mxgemm.triton import quantize
from mxgemm.triton.support import triton_version
from mxgemm.triton.tile_config import TileConfig

KIND: Final = "mxgemm-threads"
SIZES: Final = ((64, 7168, 2048), (256, 3072, 1536), (16, 2112, 7168), (5, 2880, 512))
SETTINGS: Final = ("one stream", "own streams", "one stream, plans made anew")
CHECK_EVERY: Final = 16
"""Calls whose results a thread keeps before it compares them."""

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """A way to multiply.

    Attributes:
        name: for the result file.
        calls: one a size, each into fresh memory.
        settings: which of ``SETTINGS`` mean something.
    """

    name: str
    calls: list[Call]
    settings: tuple[str, ...] = SETTINGS


def main() -> None:
    """Run, write, and exit with status 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--calls", type=int, default=400, help="of each thread, in each case and setting")
    parser.add_argument("--seconds", type=float, default=170.0, help="start nothing after this long")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    rows, left_out = run(arguments.threads, arguments.calls, time.monotonic() + arguments.seconds)
    machine = machine_of(default_device())
    document = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine.name,
        "arch": machine.arch,
        "mxgemm": mxgemm.__version__,
        "torch": torch.__version__,
        "triton": ".".join(map(str, triton_version() or ())),
        "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "sizes": SIZES,
        "threads": arguments.threads,
        "rows": rows,
        "left_out": left_out,
        "calls_total": sum(row["calls"] for row in rows),
        "wrong_total": sum(row["wrong"] for row in rows),
    }
    print(json.dumps({name: document[name] for name in ("device", "calls_total", "wrong_total", "left_out")}, indent=1))
    keep(document)
    raise SystemExit(1 if document["wrong_total"] else 0)


def run(threads: int, calls: int, deadline: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each case and setting, and those that there was no time for."""
    rows: list[dict[str, Any]] = []
    left_out = []
    for case in cases():
        wanted = [call() for call in case.calls]  # compiles; the serial run
        torch.cuda.synchronize()
        for setting in case.settings:
            if time.monotonic() > deadline:
                left_out.append(f"{case.name}, {setting}")
                continue
            started = time.monotonic()
            wrong = race(case, wanted, setting, threads, calls)
            seconds = round(time.monotonic() - started, 2)
            rows.append(
                {"case": case.name, "setting": setting, "calls": threads * calls, "wrong": wrong, "seconds": seconds}
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows, left_out


def race(case: Case, wanted: list[Tensor], setting: str, threads: int, calls: int) -> int:
    """Return how many results of ``threads`` threads differ from the serial ones in some bit."""
    start = threading.Barrier(threads)
    wrong = [0] * threads
    errors: list[BaseException] = []

    def work(index: int) -> None:
        own: Any = torch.cuda.Stream() if setting == "own streams" else None  # type: ignore[no-untyped-call]
        with nullcontext() if own is None else torch.cuda.stream(own):
            start.wait()
            made: list[tuple[Tensor, int]] = []
            for i in range(calls):
                if setting == SETTINGS[2] and (i + index) % 50 == 0:
                    plan.clear_plans()
                    quantize._launchers.clear()
                size = (index + i) % len(wanted)
                made.append((case.calls[size](), size))
                if len(made) == CHECK_EVERY or i == calls - 1:
                    same = torch.stack([(_bits(out) == _bits(wanted[size])).all() for out, size in made])
                    wrong[index] += int((~same).sum())
                    made = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)
            start.abort()

    workers = [threading.Thread(target=guarded, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
    if errors:
        raise errors[0]
    return sum(wrong)


def cases() -> list[Case]:
    """Return the router's choice, and every route with scratch in each of its forms that this GPU runs."""
    drawn = [_operands(*size, seed) for seed, size in enumerate(SIZES)]
    fast = [(a, weight.prepare()) for a, weight in drawn]
    compact = [(a, weight.prepare(memory="compact")) for a, weight in drawn]
    found = [_public("router, prepared", fast), _public("router, as its bytes lie", drawn)]
    if machine_of(default_device()).arch == "sm_90":
        found += [
            _public("fp8_fold fast", fast, route="fp8_fold"),
            _public("fp8_fold compact", compact, route="fp8_fold"),
            _public("fp8_fold fast, fp32 result", fast, route="fp8_fold", out_dtype=torch.float32),
        ]
    found += [
        _public("dequant_mm", drawn, route="dequant_mm"),
        _public("dequant_mm, bf16 activations", drawn, route="dequant_mm", a_format="bf16"),
        _public("w4a16", drawn, route="w4a16", a_format="bf16"),
        _quantised("gemm_mx", drawn),
    ]
    for one_launch in (False, True):
        config = TileConfig(block_m=16, block_n=64, block_k=128, split_k=4, one_launch=one_launch)
        bound = [_bound("a16wfp4", a, weight, config) for a, weight in drawn]
        name = f"a16wfp4, split-K in {'one launch' if one_launch else 'two launches'}"
        found.append(Case(name, bound, SETTINGS[:2]))  # bound once: it has no plan
    return found


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _operands(m: int, n: int, k: int, seed: int) -> tuple[Tensor, mxgemm.MXTensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (torch.randn(rows, k, generator=generator, device="cuda") for rows in (m, n))
    a[m // 2, :32] *= 2.0**12  # a row that fp8_fold recomputes
    return a.to(torch.bfloat16), mxgemm.quantize(b)


def _public(name: str, operands: list[tuple[Tensor, mxgemm.MXTensor]], **options: Any) -> Case:
    return Case(name, [partial(mxgemm.gemm, a, weight, **options) for a, weight in operands])


def _quantised(name: str, operands: list[tuple[Tensor, mxgemm.MXTensor]]) -> Case:
    """Quantise and multiply: two launches, the first into fresh memory."""
    return Case(name, [lambda a=a, weight=weight: mxgemm.gemm_mx(mxgemm.quantize(a), weight) for a, weight in operands])  # type: ignore[misc]


def _bound(route: str, a: Tensor, weight: mxgemm.MXTensor, config: TileConfig) -> Call:
    """Bind a route to a configuration, which tables and tuning choose otherwise."""
    (m, k), n = a.shape, weight.shape[0]
    strides = Strides(a=(k, 1), b=(k // 2, 1), b_scales=(k // 32, 1), out=(n, 1))
    problem = Problem(m, n, k, machine_of(a.device), strides=strides)
    refusal = ROUTES[route].can_implement(problem) or ROUTES[route].check_config(problem, config)
    if refusal:
        raise RuntimeError(str(refusal))
    launch = ROUTES[route].bind(problem, config)

    def call() -> Tensor:
        out = torch.empty(m, n, dtype=torch.bfloat16, device=a.device)
        launch(Operands(a, None, weight.data, weight.scales, None, out))
        return out

    return call


if __name__ == "__main__":
    main()
