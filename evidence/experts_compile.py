"""A launch of grouped products compiled for a GPU that is not here, for jobs of evidence/cross_compile.py.

{"experts": "gate" | "down" | "plain" | "list" | "sort" | "sum", "arch": "gfx950", "a": "e2m1", "tokens": 64,
"top_k": 4, "count": 8, "hidden": 2880, "inner": 2880, "bias": true, "gated": "gpt-oss" | "plain", "mapped": 0}

"gate" and "down" are the products of a layer, "plain" is ``grouped_gemm``'s, with one row of A a row of the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from evidence.scaled_compile import figures_of
from mxgemm.device import KNOWN_MACHINES
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.problem import GroupedProblem, Routing
from mxgemm.experts.steps import LayerOptions, describe
from mxgemm.experts.triton_gemm import list_call, product_call, sort_call, sum_call, tile_for
from mxgemm.mx.tensor import MXTensor
from mxgemm.triton.compile import compile_call
from mxgemm.triton.launch import KernelCall

ACTIVATIONS = {"gpt-oss": SwiGLU(), "plain": SwiGLU.plain()}


def problems_of(job: dict[str, Any]) -> tuple[GroupedProblem, GroupedProblem]:
    """Describe the products of a layer with fresh operands."""
    count, hidden, inner = job["count"], job["hidden"], job["inner"]

    def weight(n: int, k: int) -> MXTensor:
        data = torch.empty((count, n, k // 2), dtype=torch.uint8, device="meta")
        return MXTensor.wrap(data, torch.empty((count, n, k // 32), dtype=torch.uint8, device="meta"))

    def bias(n: int) -> torch.Tensor | None:
        return torch.empty((count, n), dtype=torch.bfloat16, device="meta") if job.get("bias") else None

    options = LayerOptions(ACTIVATIONS[job.get("gated", "gpt-oss")], a_format=job["a"])
    x = torch.empty((job["tokens"], hidden), dtype=torch.bfloat16, device="meta")
    w13, w2 = weight(2 * inner, hidden), weight(hidden, inner)
    machine = KNOWN_MACHINES[job["arch"]]
    one, two = describe(x, w13, w2, bias(2 * inner), bias(hidden), job["top_k"], options, machine)
    return one, two


def experts_call(job: dict[str, Any]) -> KernelCall:
    """Describe the launch of a job."""
    one, two = problems_of(job)
    kind = job["experts"]
    if kind == "gate":
        return product_call(one, tile_for(one))
    if kind == "down":
        return product_call(two, tile_for(two))
    plain = replace(two, writes_index=False, zeros=True, out_dtype=torch.bfloat16)
    if kind == "plain":
        return product_call(plain, tile_for(plain))
    if kind == "list":
        return list_call(plain, tile_for(plain))
    routing = Routing(
        job["tokens"], job["top_k"], job["count"], 0, job.get("mapped", 0), torch.int64, job["hidden"], torch.float32,
        torch.bfloat16, one.machine, (job["hidden"], 1),
    )  # fmt: skip
    return sort_call(routing, tile_for(one).block_m) if kind == "sort" else sum_call(routing)


def describe_experts(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Compile, and return what :func:`evidence.scaled_compile.figures_of` finds."""
    call = experts_call(job)
    return [figures_of(call, compile_call(call, job["arch"]), job["arch"])]
