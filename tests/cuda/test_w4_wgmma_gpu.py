"""Route w4_wgmma on a GPU: drawn cases of bench/w4_wgmma.py, and whole calls."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from bench import w4_kernels, w4_wgmma
from mxgemm.mx.accuracy import judge
from mxgemm.routes import ROUTES

pytestmark = pytest.mark.gpu
ROUTE = ROUTES["w4_wgmma"]


@pytest.fixture(autouse=True)
def hopper() -> None:
    missing = ROUTE.missing(mxgemm.device.machine_of(torch.device("cuda", 0)))
    if missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", range(3))
def test_drawn_cases(seed: int) -> None:
    cases = w4_wgmma.drawn(30, seed, 2e6)
    assert not w4_kernels.check(ROUTE.name, cases, torch.device("cuda", 0), allowed=w4_wgmma.truncated)["failures"]


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("m", [33, 200])
@pytest.mark.parametrize("prepared", [False, True])
def test_calls(m: int, a_format: str, prepared: bool) -> None:
    a = torch.randn(m, 2880, device="cuda", dtype=torch.bfloat16)
    weight = mxgemm.quantize(torch.randn(528, 2880, device="cuda"))
    weight = weight.prepare() if prepared else weight
    out = mxgemm.gemm(a, weight, a_format=a_format, route="w4_wgmma")  # type: ignore[arg-type]
    assert judge(out, a, weight, a_format=a_format).passed
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mxgemm.gemm(a, weight, a_format=a_format, route="w4_wgmma")  # type: ignore[arg-type]
    graph.replay()
    assert torch.equal(captured, out)
