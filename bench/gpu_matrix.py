"""The full product of odd shapes, layouts and formats through every Triton GEMM kernel, on a GPU, against float64.

    python bench/gpu_matrix.py [-o bench/results/gpu_matrix_<device>.json] [--processes 16] [--seconds 500] [--part 1/2]

Every case launches into memory poisoned with NaN, from weights and scales that lie between 0xFF guards, with 0xFF in
the padding of shuffled scales, and passes both gates of docs/numbers.md. The oracle is float64 on the GPU, from
operands that mxgemm.mx.oracle decoded. Cases are dealt out by kernel, formats, layout and K, the largest K first, so
that no process is left with a long task at the end; --part 1/2 and --part 2/2 are halves of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections import Counter
from datetime import datetime, timezone
from functools import cache
from typing import Any

import torch
from torch import Tensor

import mxgemm
from mxgemm.device import machine_of
from mxgemm.measure import output
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import NORM_GATE, OUT_BITS, element_gate
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, Operands
from mxgemm.triton.support import triton_version

M = (1, 2, 8, 16, 31, 33, 64, 257)
N = (16, 32, 48, 258, 2112, 2880)
K = (32, 64, 96, 128, 512, 768, 1664, 2880, 7168)
FORMATS = ("e2m1", "e4m3", "e5m2")
LAYOUTS = tuple(itertools.product(layouts.WEIGHT_LAYOUTS, layouts.SCALE_LAYOUTS))
GROUPS = (
    *(("a16wfp4", a, b) for a in ("e2m1", "e4m3") for b in FORMATS),
    *(("w4a16", "bf16", b) for b in FORMATS),
    *(("gemm_mx", a, b) for a in FORMATS for b in FORMATS),
)
Task = tuple[str, str, str, tuple[str, str], int]


def main() -> None:
    """Run the product over a pool of processes and write the summary; exit status 1 after a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=500.0, help="give up what is left after this long, and say so")
    parser.add_argument("--routes", nargs="+", default=["a16wfp4", "w4a16", "gemm_mx"])
    parser.add_argument("--part", default="1/1", help="i/n: the i-th of n shares of the tasks")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, "mxgemm-gpu-matrix")
    chosen = [group for group in GROUPS if group[0] in arguments.routes]
    part, parts = map(int, arguments.part.split("/"))
    every: list[Task] = [(*group, layout, k) for k in sorted(K, reverse=True) for group in chosen for layout in LAYOUTS]
    tasks = every[part - 1 :: parts]
    finished: list[str] = []
    start = time.monotonic()
    outcomes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    worst: dict[str, float] = {"norm": 0.0}
    context = multiprocessing.get_context("spawn")
    # A thread a process: the processes fill the cores already.
    with context.Pool(arguments.processes, torch.set_num_threads, (1,)) as pool:
        running = pool.imap_unordered(run_task, tasks)
        for done in range(len(tasks)):
            left = arguments.seconds - (time.monotonic() - start)
            try:
                result = running.next(timeout=max(left, 0.01))
            except multiprocessing.TimeoutError:
                outcomes["not run (time)"] = (len(tasks) - done) * len(M) * len(N)
                pool.terminate()
                break
            outcomes.update(result["outcomes"])
            finished.append(result["name"])
            failures += result["failures"]
            for name, value in result["worst"].items():
                worst[name] = max(worst.get(name, 0.0), value)
    version = triton_version()
    device = torch.device("cuda", 0)
    document = {
        "kind": "mxgemm-gpu-matrix",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine_of(device).name,
        "arch": machine_of(device).arch,
        "torch": torch.__version__,
        "triton": ".".join(map(str, version or ())),
        "method": "every case against float64 on the GPU, fp32 output; worst is over all cases",
        "product": {"m": M, "n": N, "k": K, "finished": sorted(finished)},
        "gates": {"norm": NORM_GATE, "element": "32 + K / 64"},
        "worst": worst,
        "outcomes": dict(outcomes),
        "failures": failures[:50],
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps({key: value for key, value in document.items() if key != "product"}, indent=1))
    keep(document)
    raise SystemExit(bool(failures))


def run_task(task: Task) -> dict[str, Any]:
    """Run every M and N of one kernel, pair of formats, layout and K."""
    route, a_format, b_format, layout, k = task
    outcomes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    worst: dict[str, float] = {"norm": 0.0}
    for m, n in itertools.product(M, N):
        bytes_a_row = k // (2 if b_format == "e2m1" else 1)
        if layout[0] == "preshuffled" and layouts.preshuffle_refusal(n, bytes_a_row):
            outcomes["cannot be preshuffled"] += 1
            continue
        norm, element = run_case(route, a_format, b_format, layout, m, n, k)
        passed = norm <= NORM_GATE and element <= element_gate(k)
        outcomes["passed" if passed else "failed"] += 1
        worst["norm"] = max(worst["norm"], norm)
        worst[f"element, K = {k}"] = max(worst.get(f"element, K = {k}", 0.0), element)
        if not passed:
            failures.append({"case": [route, a_format, b_format, *layout, m, n, k], "norm": norm, "element": element})
    name = f"{route} {a_format} x {b_format}, {layout[0]} data, {layout[1]} scales, K = {k}"
    return {"name": name, "outcomes": outcomes, "failures": failures, "worst": worst}


def run_case(
    route: str, a_format: str, b_format: str, layout: tuple[str, str], m: int, n: int, k: int
) -> tuple[float, float]:
    """Launch one case; return the norm error, relative to what rounding alone may cost, and the element constant."""
    weight, b64 = operand(n, k, b_format, 1)
    data = layouts.preshuffle_weight(weight.data) if layout[0] == "preshuffled" else weight.data
    scales = _poisoned(weight.scales) if layout[1] == "shuffled" else weight.scales
    data, scales = _guarded(data), _guarded(scales)
    a, a64, a_scales = _activations(m, k, route, a_format)
    memory = torch.full((m * n + 128,), torch.nan, dtype=torch.float32, device="cuda")
    out = memory[64:-64].view(m, n)
    strides = Strides(
        a=(a.stride(0), a.stride(1)),
        b=(data.stride(0), data.stride(1)),
        b_scales=(scales.stride(0), scales.stride(1)),
        out=(n, 1),
        a_scales=(0, 0) if a_scales is None else (a_scales.stride(0), a_scales.stride(1)),
    )
    problem = Problem.of(
        m, n, k, machine_of(a.device), a_format=a_format, a_quantized=a_scales is not None, a_dtype=a.dtype,
        b_format=b_format, weight_layout=layout[0], scale_layout=layout[1], out_dtype=out.dtype, strides=strides,
    )  # fmt: skip
    chosen = ROUTES[route]
    chosen.bind(problem, chosen.configs(problem)[0])(Operands(a, a_scales, data, scales, None, out))
    if not memory[:64].isnan().all() or not memory[-64:].isnan().all():
        return float("inf"), float("inf")
    return _errors(out, a64, b64)


@cache
def operand(rows: int, k: int, fmt: str, seed: int) -> tuple[MXTensor, Tensor]:
    """Return a quantised operand with scales that differ, and its exact values in float64, both on the GPU."""
    generator = torch.Generator().manual_seed(seed * 7919 + rows * 31 + k)
    powers = torch.randint(-6, 7, (rows, k // 32), generator=generator).float()
    x = torch.randn(rows, k, generator=generator) * torch.exp2(powers).repeat_interleave(32, dim=1)
    quantized = mxgemm.quantize(x, format=fmt)  # type: ignore[arg-type]
    exact = oracle.decode(quantized.data.numpy(), quantized.scales.numpy(), fmt)
    return quantized.to("cuda"), torch.from_numpy(exact).cuda()


@cache
def _activations(m: int, k: int, route: str, a_format: str) -> tuple[Tensor, Tensor, Tensor | None]:
    if route == "gemm_mx":
        quantized, exact = operand(m, k, a_format, 2)
        return _guarded(quantized.data), exact, _guarded(quantized.scales)
    generator = torch.Generator().manual_seed(m * 17 + k)
    powers = torch.randint(-6, 7, (m, k // 32), generator=generator).float()
    a = (torch.randn(m, k, generator=generator) * torch.exp2(powers).repeat_interleave(32, dim=1)).bfloat16()
    if a_format == "bf16":
        return a.cuda(), a.double().cuda(), None
    exact64 = oracle.decode(*oracle.encode(a.float().numpy(), a_format, "even"), a_format)
    return a.cuda(), torch.from_numpy(exact64).cuda(), None


def _errors(out: Tensor, a64: Tensor, b64: Tensor) -> tuple[float, float]:
    ref = a64 @ b64.T
    got = out.double()
    if not torch.isfinite(got).all():
        return float("inf"), float("inf")
    error = (got - ref).abs()
    allowed_norm = max(NORM_GATE, 1.01 * float((ref.to(out.dtype).double() - ref).norm() / ref.norm()))
    norm = float(error.norm() / ref.norm()) / allowed_norm * NORM_GATE
    excess = error - 2.0 ** -OUT_BITS[out.dtype] * ref.abs()
    needed = torch.where(excess <= 0, 0.0, excess / (2.0**-24 * (a64.abs() @ b64.abs().T)))
    return norm, float(needed.max())


def _guarded(tensor: Tensor) -> Tensor:
    memory = torch.full((tensor.numel() + 1024,), 255, dtype=torch.uint8, device="cuda")
    return memory[512 : 512 + tensor.numel()].view(tensor.shape).copy_(tensor)


def _poisoned(scales: Tensor) -> Tensor:
    real = layouts.shuffle_scales(torch.ones_like(scales)) == 1
    shuffled = layouts.shuffle_scales(scales)
    return torch.where(real, shuffled, torch.full_like(shuffled, 255))


if __name__ == "__main__":
    main()
