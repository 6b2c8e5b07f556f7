"""Operands of grouped products and layers, and their judgement by the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import mxgemm
from mxgemm.experts import oracle as experts_oracle
from mxgemm.mx import oracle
from mxgemm.mx.accuracy import compare
from tests.cases import Case, cpu_route, skip_without_kernels, spread

GPT_OSS = mxgemm.SwiGLU()
DEEPSEEK = mxgemm.SwiGLU.plain()
CPU_ROUTES = tuple(dict.fromkeys((cpu_route(), "reference")))


def need(route: str) -> None:
    """Skip what this machine cannot run."""
    if route == "triton":
        skip_without_kernels("cpu")


def stack(experts: int, n: int, k: int, fmt: str = "e2m1", seed: int = 0, octaves: int = 4) -> mxgemm.MXTensor:
    """A weight of random experts, whose block scales differ."""
    rows = spread(experts * n, k, octaves=octaves, seed=seed).view(experts, n, k)
    return mxgemm.quantize(rows, format=fmt)


def values(weight: mxgemm.MXTensor) -> np.ndarray:
    """What a weight is worth, in float64."""
    return experts_oracle.weights(weight.data.numpy(), weight.scales.numpy(), weight.format.name)


def ends(*counts: int) -> Tensor:
    """Offsets of groups of so many rows."""
    return torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)


@dataclass
class Grouped:
    """A grouped product with its exact result."""

    a: Tensor
    w: mxgemm.MXTensor
    offsets: Tensor
    a_format: str
    gather: Tensor | None = None
    bias: Tensor | None = None

    def run(self, **options: object) -> Tensor:
        return mxgemm.grouped_gemm(
            self.a, self.w, self.offsets, gather=self.gather, a_format=self.a_format, bias=self.bias, **options
        )

    def check(self, out: Tensor) -> None:
        """Both gates, expert by expert; zeros for rows of none, NaN where nothing is gathered."""
        a64 = experts_oracle.rounded(self.a.double().numpy(), self.a_format)
        if self.gather is not None:
            at = self.gather.numpy()
            known = (at >= 0) & (at < len(a64))
            a64 = np.where(known[:, None], a64[np.where(known, at, 0)], np.nan)
        bounds = np.clip(np.maximum.accumulate(np.maximum(self.offsets.numpy(), 0)), 0, len(a64))
        w64 = values(self.w)
        left = np.ones(len(out), dtype=bool)
        for expert, (start, stop) in enumerate(pairwise(bounds)):
            if start == stop:
                continue
            left[start:stop] = False
            bias = None if self.bias is None else self.bias[expert].double().numpy()
            ref = oracle.matmul(a64[start:stop], w64[expert], bias)
            there = ~np.isnan(ref).any(1)
            part = out[start:stop]
            assert part[torch.from_numpy(~there)].isnan().all()
            found = compare(part[torch.from_numpy(there)], ref[there], a64[start:stop][there], w64[expert])
            assert found.passed, (expert, found)
        assert out[torch.from_numpy(left)].eq(0).all()


@dataclass
class Layer:
    """A layer of experts."""

    x: Tensor
    w13: mxgemm.MXTensor
    w2: mxgemm.MXTensor
    ids: Tensor
    weights: Tensor
    activation: mxgemm.SwiGLU
    b13: Tensor | None = None
    b2: Tensor | None = None

    def run(self, a_format: str, **options: object) -> Tensor:
        return mxgemm.moe(
            self.x, self.w13, self.w2, self.ids, self.weights, activation=self.activation, b13=self.b13, b2=self.b2,
            a_format=a_format, **options,
        )  # fmt: skip

    def exact(self, a_format: str) -> np.ndarray:
        x = self.x.double().numpy()
        b13, b2 = (None if bias is None else bias.double().numpy() for bias in (self.b13, self.b2))
        return experts_oracle.layer(
            x, values(self.w13), values(self.w2), self.ids.tolist(), self.weights.double().numpy(), self.activation,
            a_format, b13, b2,
        )  # fmt: skip


def layer(
    tokens: int, top_k: int, experts: int = 5, hidden: int = 96, inner: int = 64, *, bias: bool = True, seed: int = 0,
    activation: mxgemm.SwiGLU = GPT_OSS, out: int | None = None,
) -> Layer:  # fmt: skip
    """A random layer; ids are random, repeated ones among them."""
    made = torch.Generator().manual_seed(seed)
    w13 = stack(experts, 2 * inner, hidden, seed=seed, octaves=1)
    w2 = stack(experts, out or hidden, inner, seed=seed + 1, octaves=1)
    ids = torch.randint(0, experts, (tokens, top_k), generator=made)
    weights = torch.rand(tokens, top_k, generator=made)
    b13 = torch.randn(experts, 2 * inner, generator=made) if bias else None
    b2 = torch.randn(experts, out or hidden, generator=made).bfloat16() if bias else None
    x = (torch.randn(tokens, hidden, generator=made) * 0.3).bfloat16()
    return Layer(x, w13, w2, ids, weights, activation, b13, b2)


def two_experts(case: Case) -> Callable[[], Tensor]:
    """A call for some rows, as many as the data say, by a case's weight, for the others by its negative."""
    m, weight = case.a.shape[0], case.weight.dequantize()
    first = int(case.a.double().abs().sum()) % (m + 1)
    w, offsets = mxgemm.quantize(torch.stack((weight, -weight))), ends(first, m - first)
    return lambda: mxgemm.grouped_gemm(case.a, w, offsets, route="triton")


def layer_of_two_experts(case: Case) -> Callable[[], Tensor]:
    """A call for each row by both of two such experts."""
    m, weight = case.a.shape[0], case.weight.dequantize()
    n, k = weight.shape
    w13, w2 = mxgemm.quantize(torch.stack((weight, -weight))), stack(2, k, n // 2)
    ids, weights = torch.tensor([[0, 1]]).expand(m, 2), torch.tensor([[0.75, 0.25]]).expand(m, 2)
    return lambda: mxgemm.moe(case.a, w13, w2, ids, weights, activation=DEEPSEEK, route="triton")
