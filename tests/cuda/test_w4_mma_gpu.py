"""Route w4_mma on a GPU: drawn cases of bench/w4_mma.py, and whole calls."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

import mxgemm
from bench import mma_cases
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.mx.accuracy import judge
from mxgemm.routes import ROUTES

pytestmark = pytest.mark.gpu
ROUTE = ROUTES["w4_mma"]


@pytest.fixture(autouse=True)
def hopper() -> None:
    missing = ROUTE.missing(mxgemm.device.machine_of(torch.device("cuda", 0)))
    if missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", range(4))
def test_drawn_cases(seed: int) -> None:
    device = torch.device("cuda", 0)
    for i, case in enumerate(mma_cases.drawn(30, seed)):
        for data in mma_cases.DATA:
            made = mma_cases.make(replace(case, data=data), i, device)
            ROUTE.bind(made.problem, case.config)(made.operands)
            found = mma_cases.judged(case, made)
            assert not found, f"{replace(case, data=data)}: {found}"


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("m", [1, 32])
@pytest.mark.parametrize("prepared", [False, True])
def test_calls(m: int, a_format: str, prepared: bool) -> None:
    a = torch.randn(m, 2880, device="cuda", dtype=torch.bfloat16)
    weight = mxgemm.quantize(torch.randn(528, 2880, device="cuda"))
    weight = weight.prepare() if prepared else weight
    out = mxgemm.gemm(a, weight, a_format=a_format, route="w4_mma")  # type: ignore[arg-type]
    assert judge(out, a, weight, a_format=a_format).passed
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mxgemm.gemm(a, weight, a_format=a_format, route="w4_mma")  # type: ignore[arg-type]
    graph.replay()
    assert torch.equal(captured, out)


@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
@pytest.mark.parametrize("m", [5, 32, 33])
def test_a_weight_of_which_the_fragment_order_is_left(m: int, a_format: str) -> None:
    a = torch.randn(m, 1280, device="cuda", dtype=torch.bfloat16)
    weight = mxgemm.quantize(torch.randn(544, 1280, device="cuda"))
    alone = weight.prepare(keep=False)
    assert alone.nbytes == weight.nbytes
    out = mxgemm.gemm(a, alone, a_format=a_format)  # type: ignore[arg-type]
    assert judge(out, a, weight, a_format=a_format).passed
    assert torch.equal(alone.row_major().data, weight.data)


def test_two_launches_a_call_from_several_threads() -> None:
    """Each call rounds A into scratch of its own; results differ if one reads another's."""
    device = torch.device("cuda", 0)
    config = MmaConfig(2, 1, 8, 1, a_before=True, a_codes=True, overlap=True)
    made = [mma_cases.make(mma_cases.Case(16, 528, 2880, config, derived="bf16"), seed, device) for seed in range(8)]
    launch = ROUTE.bind(made[0].problem, config)
    right: list[int] = []

    def several(i: int) -> None:
        operands = made[i].operands
        with torch.cuda.device(device):
            for _ in range(50):
                launch(operands)
        torch.cuda.synchronize()
        if not mma_cases.judged(mma_cases.Case(16, 528, 2880, config, derived="bf16"), made[i]):
            right.append(i)

    threads = [threading.Thread(target=several, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(right) == list(range(len(made)))
