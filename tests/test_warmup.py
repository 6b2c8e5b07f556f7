"""warmup: a first call afterwards plans and compiles nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import plan
from mxgemm.warmup import SIZES, Warmed


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    made: list[tuple[int, ...]] = []
    bind = plan._make_plan

    def counted(*arguments: Any) -> plan.Plan:
        found = bind(*arguments)
        made.append(found.out_shape)
        return found

    plan.clear_plans()
    monkeypatch.setattr(plan, "_make_plan", counted)
    return made


def test_a_weight(planned: list[tuple[int, ...]]) -> None:
    w = mxgemm.quantize(torch.randn(96, 64))
    done = mxgemm.warmup(w, m=[1, 2, 33], a_format="e4m3", bias_dtype=torch.float32)
    assert [(call.m, call.n, call.k) for call in done] == [(1, 96, 64), (2, 96, 64), (33, 96, 64)]
    assert all(call.seconds > 0 for call in done)
    assert planned == [(1, 96), (2, 96), (33, 96)]
    other = mxgemm.quantize(torch.randn(96, 64))
    for weight in (w, other):
        for m in (1, 2, 33):
            mxgemm.gemm(torch.randn(m, 64, dtype=torch.bfloat16), weight, a_format="e4m3", bias=torch.randn(96))
    assert len(planned) == 3


def test_weights_of_one_kind_are_warmed_once(planned: list[tuple[int, ...]]) -> None:
    weights = [mxgemm.quantize(torch.randn(n, 64)) for n in (32, 32, 64)]
    assert [(call.m, call.n) for call in mxgemm.warmup(weights, m=(4,))] == [(4, 32), (4, 64)]
    assert len(planned) == 2


def test_sizes(planned: list[tuple[int, ...]]) -> None:
    told: list[tuple[int, int, Warmed]] = []
    done = mxgemm.warmup([(3, 64, 32), (5, 64, 32), (3, 64, 32)], progress=lambda *call: told.append(call))
    assert [(call.m, call.n, call.k) for call in done] == [(3, 64, 32), (5, 64, 32)]
    assert told == [(1, 2, done[0]), (2, 2, done[1])]
    w = mxgemm.quantize(torch.randn(64, 32)).prepare()
    mxgemm.gemm(torch.randn(3, 32, dtype=torch.bfloat16), w)
    assert len(planned) == 2


def test_the_sizes_by_default() -> None:
    done = mxgemm.warmup(mxgemm.quantize(torch.randn(32, 32)))
    assert [call.m for call in done] == list(SIZES)
    assert {2**i for i in range(14)} < set(SIZES)


@pytest.mark.parametrize(
    "weights, options, error, says",
    [
        (7, {}, TypeError, ""),
        ([torch.zeros(3)], {}, TypeError, r"weights\[0\]"),
        ([(1, 2)], {}, TypeError, r"weights\[0\]"),
        ([(1, 64, 2.5)], {}, TypeError, r"weights\[0\]"),
        ([(1, -64, 32)], {}, ValueError, r"weights\[0\]"),
        ([(1, 64, 33)], {}, ValueError, "33"),
        ([(1, 64, 32)], {"a_dtype": torch.int8}, TypeError, "a_dtype"),
        ([(1, 64, 32)], {"bias_dtype": torch.int8}, TypeError, "bias_dtype"),
        ([(1, 64, 32)], {"a_format": "fp7"}, ValueError, "a_format"),
        ([(1, 64, 32)], {"progress": 3}, TypeError, "progress"),
        ([(1, 64, 32)], {"m": [1.5]}, TypeError, "m: "),
    ],
)
def test_what_is_wrong_is_named(weights: Any, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        mxgemm.warmup(weights, **options)


def test_a_weight_of_other_dimensions_is_refused() -> None:
    w = mxgemm.quantize(torch.randn(2, 2, 32, 32))
    with pytest.raises(ValueError, match=r"weights\[0\]: got shape"):
        mxgemm.warmup(w)


@pytest.mark.gpu
def test_a_graph_after_a_warmup() -> None:
    w = mxgemm.quantize(torch.randn(7168, 2048, device="cuda")).prepare()
    mxgemm.warmup(w, m=[64])
    a = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        mxgemm.warmup(w, m=[64])
    with torch.cuda.graph(graph):
        y = mxgemm.gemm(a, w)
    a.copy_(torch.randn_like(a))
    for _ in range(10_000):
        mxgemm.gemm(a[:3], w)
    graph.replay()
    assert torch.equal(y, mxgemm.gemm(a, w))
