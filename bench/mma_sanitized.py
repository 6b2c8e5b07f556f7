"""Small cases of w4_mma, one of each kind of instance, for a sanitizer to watch on a GPU; each is judged too.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=. compute-sanitizer --tool memcheck python bench/mma_sanitized.py
    PYTHONPATH=. compute-sanitizer --tool racecheck python bench/mma_sanitized.py --racechecked

Operands are made on the CPU and results judged there, so that next to nothing else runs on the GPU; without torch's
pool of memory each of them is an allocation of its own, whose bounds the sanitizer knows. Racecheck loses the barrier
of a whole workgroup where some of its warps have met at others (docs/lab-notes.md); with ``--racechecked`` kernels have
a second one of another kind there. Exit status 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

import mxgemm
from bench.mma_cases import Case, described, judged, make
from bench.w4_kernels import build_all
from bench.w4_mma import instances
from mxgemm.cuda import w4_mma
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.native.build import built
from mxgemm.routes import ROUTES

SLOTS = MmaConfig(3, 1, 2, 1, overlap=True, a_slots=2)
BEFORE = MmaConfig(2, 1, 2, 1, overlap=True, a_before=True)
CLUSTER = MmaConfig(2, 2, 2, 1, overlap=True, a_slots=1, splits=2)
CONFIGS: tuple[tuple[int, str, MmaConfig], ...] = (
    *((m, a_format, MmaConfig(2, 1, 2, 2, overlap=True)) for m, a_format in ((1, "e2m1"), (11, "e4m3"), (16, "bf16"))),
    *((11, a_format, BEFORE) for a_format in ("e2m1", "e4m3", "bf16")),
    (32, "e2m1", replace(BEFORE, a_codes=True)),
    *((11, a_format, SLOTS) for a_format in ("e2m1", "e4m3", "bf16")),
    (16, "e2m1", replace(SLOTS, tiles=5, a_slots=1)),
    *((16, a_format, replace(SLOTS, warps_k=9, a_slots=1, in_turn=True)) for a_format in ("e2m1", "bf16")),
    *((16, a_format, replace(SLOTS, warps_k=5, depth=2)) for a_format in ("e2m1", "bf16")),
    (11, "bf16", replace(SLOTS, warps_k=5, depth=2, in_turn=True)),
    (16, "e2m1", replace(SLOTS, warps_n=2, warps_m=2, tiles=1)),
    *((32, a_format, replace(SLOTS, warps_n=3, tiles=2)) for a_format in ("e2m1", "bf16")),
    *((11, a_format, CLUSTER) for a_format in ("e2m1", "bf16")),
    (32, "e2m1", replace(CLUSTER, warps_n=3, a_slots=3)),
    (4, "bf16", replace(CLUSTER, tiles=1, warps_n=1, a_slots=0, splits=4)),
    (32, "e4m3", replace(BEFORE, splits=3)),
)
N, K = 112, 1120


def cases() -> Iterator[Case]:
    """Yield every configuration on both forms of the weight, with scales for the kernel's second loop among them."""
    for m, a_format, config in CONFIGS:
        case = Case(m, N, K, config, a_format, bias=torch.float32, data="spread")
        yield case
        yield replace(case, derived="bf16", config=replace(config, prefetch=True), data="nan")


def moved(x: Tensor | None, device: torch.device) -> Tensor | None:
    """Copy a view to a device, with what it reaches over and no more."""
    if x is None or not x.numel():
        return None if x is None else x.to(device)
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return x.as_strided((reach,), (1,)).to(device).as_strided(x.shape, x.stride())


def run(case: Case, device: torch.device) -> list[str]:
    """Launch a case once and judge it on the CPU."""
    made = make(case, 0, torch.device("cpu"))
    given = made.operands
    parts = (given.a, given.b, given.b_scales, given.bias, given.out)
    a, b, b_scales, bias, out = (moved(x, device) for x in parts)
    assert a is not None
    assert b is not None
    assert b_scales is not None
    assert out is not None
    derived = tuple(part.to(device) for part in given.derived)
    launch = ROUTES["w4_mma"].bind(made.problem, case.config)
    launch(given._replace(a=a, b=b, b_scales=b_scales, bias=bias, out=out, derived=derived))
    given.out.copy_(out)
    return judged(case, made)


def whole_calls(device: torch.device) -> list[str]:
    """Call as a model does, until calls run in C, and once more by the operator."""
    a, w = torch.randn(16, 1152), torch.randn(96, 1152)
    weight = mxgemm.quantize(w).to(device).prepare()
    given = a.to(device, torch.bfloat16)
    results = [mxgemm.gemm(given, weight, route="w4_mma").cpu() for _ in range(12)]
    return [] if all(torch.equal(one, results[0]) for one in results) else ["calls differ"]


def main() -> None:
    """Run all, print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-only", action="store_true", help="fill the caches, which needs no GPU")
    parser.add_argument("--racechecked", action="store_true", help="with a barrier that racecheck does not lose")
    parser.add_argument("--names", action="store_true", help="print each case before it runs")
    arguments = parser.parse_args()
    only = arguments.build_only
    if arguments.racechecked:
        setattr(w4_mma, "defines", lambda p, c, given=w4_mma.defines: {**given(p, c), "RACECHECKED": 1})  # noqa: B010
    build_all(one for case in cases() for one in instances(described(case), case.config))
    if only:
        built()
        return
    device, wrong = torch.device("cuda", 0), 0
    for case in cases():
        if arguments.names:
            print(f"CASE {case}", flush=True)
        found = run(case, device)
        wrong += bool(found)
        if found:
            print(f"WRONG {case}: {'; '.join(found)}", flush=True)
    calls = whole_calls(device)
    print(f"{len(list(cases()))} cases, {wrong} wrong; whole calls: {'; '.join(calls) or 'right'}", flush=True)
    sys.exit(bool(wrong or calls))


if __name__ == "__main__":
    main()
