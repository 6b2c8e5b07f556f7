"""Route w4_fp8 on a GPU: drawn cases of bench/w4_fp8.py, and whole calls."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from bench import fp8_cases, w4_kernels
from bench.w4_fp8 import KIT
from mxgemm.mx.accuracy import judge
from mxgemm.routes import ROUTES

pytestmark = pytest.mark.gpu
ROUTE = ROUTES["w4_fp8"]


@pytest.fixture(autouse=True)
def hopper() -> None:
    missing = ROUTE.missing(mxgemm.device.machine_of(torch.device("cuda", 0)))
    if missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", range(3))
def test_drawn_cases(seed: int) -> None:
    cases = fp8_cases.drawn(30, seed, 2e6)
    assert not w4_kernels.check(ROUTE.name, cases, torch.device("cuda", 0), kit=KIT)["failures"]


@pytest.mark.parametrize("m", [33, 200])
@pytest.mark.parametrize("memory", ["fast", "compact"])
def test_calls(m: int, memory: str) -> None:
    a = torch.rand(m, 2880, device="cuda", dtype=torch.bfloat16)  # terms of one sign
    a[m // 2, 100] = 1e6  # a chunk that does not fold
    weight = mxgemm.quantize(torch.rand(528, 2880, device="cuda")).prepare(memory=memory)  # type: ignore[arg-type]
    out = mxgemm.gemm(a, weight, route="w4_fp8")
    assert judge(out, a, weight, accumulate_bits=ROUTE.accumulate_bits).passed
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mxgemm.gemm(a, weight, route="w4_fp8")
    graph.replay()
    assert torch.equal(captured, out)
