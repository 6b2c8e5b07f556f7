"""cublasLt's products of e4m3, with a base a row and without: how many kinds it names, and how long each takes.

    PYTHONPATH=. python bench/vendor_products.py [--m 64 128 256] [--seconds 0.01] [-o vendor_products.json]

Device microseconds by graph replay over rotating weights (mxgemm.measure.timing), heated, sums in fp32, results in
bf16, beside torch.mm in bf16. ``plain`` are products without bases, in the library's own order. Exit status 1 if two of
a size differ by more than their sums may, or if terms of one sign lose more than the units' last bits.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from bench.w4_fp8 import WEIGHTS
from bench.w4_kernels import HEATER
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import GRAPH_METHOD, graph_us
from mxgemm.native.program import Place, ProductStep, fixed
from mxgemm.native.vendor import VendorProduct, library, run
from mxgemm.routes.fp8_fold import PLACES
from mxgemm.workspace import raw_stream

KIND: Final = "mxgemm-vendor-products"
E4M3: Final = torch.float8_e4m3fn
MOST_ERROR: Final = 3e-3
"""Between two products of a size, in the norm."""
ONE_SIGN: Final = 128, 256, 8192
"""A size whose terms are all 1.5 times 1.25; sums in the units' 14 bits alone lose per cents there."""


def main() -> int:
    """Measure; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--seconds", type=float, default=0.01, help="of one measurement")
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    device = torch.device("cuda", 0)
    rows, wrong = [], not sums_are_exact(device)
    for m, (n, k) in itertools.product(arguments.m, WEIGHTS):
        row, error = measured(m, n, k, device, arguments.seconds)
        wrong |= not error < MOST_ERROR
        print(row, f"differ by {error:.1e}", flush=True)
        rows.append(row)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    environment = {**describe_environment(device), "cublaslt": library().version}
    keep({"kind": KIND, "date": date, "environment": environment, "method": GRAPH_METHOD, "rows": rows})
    return int(wrong)


def products(m: int, n: int, k: int, out_dtype: torch.dtype, device: torch.device) -> list[ProductStep]:
    """Return the library's products without bases, each kind once."""
    found: list[ProductStep] = []
    for place in range(PLACES):
        step = described(VendorProduct(m, n, k, E4M3, out_dtype, None, bases=False, place=place), device)
        if found and step.algorithm == found[-1].algorithm:  # of fewer, the last again
            break
        found.append(step)
    return found


def described(product: VendorProduct, device: torch.device, weight_base: int = 0) -> ProductStep:
    """Return a product whose addresses come with each call."""
    at = fixed(0)
    base: Place | None = at if weight_base else None
    return product.step(device, at, weight_base, at, base, None, at, at)


def sums_are_exact(device: torch.device) -> bool:
    """Say whether no product without bases loses more of terms of one sign than a sum of 128 in the units does."""
    m, n, k = ONE_SIGN
    a, b = (torch.full((rows, k), value, device=device).to(E4M3) for rows, value in ((m, 1.5), (n, 1.25)))
    out = torch.empty(m, n, device=device)
    losses = []
    for step in products(m, n, k, torch.float32, device):
        memory = torch.empty(max(step.memory_bytes, 1), dtype=torch.uint8, device=device)
        addresses = b.data_ptr(), a.data_ptr(), 0, 0, out.data_ptr(), memory.data_ptr()
        run(step, *addresses, raw_stream(device))
        losses.append(float((out / (k * 1.875) - 1).abs().max()))
    print("terms of one sign lose", *losses)
    return max(losses) < 128 * 2.0**-13


def measured(m: int, n: int, k: int, device: torch.device, seconds: float) -> tuple[dict[str, Any], float]:
    """Return a size's times, and by how much its products differ in the norm."""
    heater = torch.randn(HEATER, HEATER, device=device, dtype=torch.bfloat16)

    def heated(calls: Sequence[Callable[[], object]]) -> float:
        for _ in range(8):
            torch.mm(heater, heater)
        return round(graph_us(calls, Effort(seconds=seconds)).us, 2)

    cache = cache_bytes(device)
    a, out = torch.randn(m, k, device=device), torch.empty(m, n, device=device, dtype=torch.bfloat16)
    wide = [torch.randn(n, k, device=device).bfloat16() for _ in range(copies_needed(2 * n * k, cache))]
    torch_us = heated([partial(torch.mm, a.bfloat16(), b.t(), out=out) for b in wide])
    first = wide[0].to(E4M3)
    del wide
    right = [first.clone() for _ in range(copies_needed(n * k, cache))]
    left, base, weight_base = a.to(E4M3), torch.ones(m, device=device), torch.ones(n, device=device)
    memory_of: dict[int, Tensor] = {}

    def calls(step: ProductStep) -> list[Callable[[], object]]:
        memory = memory_of.setdefault(
            step.memory_bytes, torch.empty(max(step.memory_bytes, 1), dtype=torch.uint8, device=device)
        )

        def call(weight: Tensor) -> None:
            with_base = 0 if step.b_scale is None else base.data_ptr()
            addresses = weight.data_ptr(), left.data_ptr(), with_base, 0, out.data_ptr(), memory.data_ptr()
            run(step, *addresses, raw_stream(device))

        return [partial(call, weight) for weight in right]

    scaled = described(VendorProduct(m, n, k, E4M3, torch.bfloat16, None), device, weight_base.data_ptr())
    want, error, times = None, 0.0, list[float]()
    for step in (scaled, *products(m, n, k, torch.bfloat16, device)):
        each = calls(step)
        each[0]()
        want = out.double() if want is None else want
        error = max(error, float((out.double() - want).norm() / want.norm()))
        times.append(heated(each))
    return {"m": m, "n": n, "k": k, "torch_us": torch_us, "bases_us": times[0], "plain_us": times[1:]}, error


if __name__ == "__main__":
    sys.exit(main())
