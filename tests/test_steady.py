"""The plans that a weight keeps: the same answers and the same refusals at the second call as at the first."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import plan, steady
from mxgemm.mx.tensor import MXTensor

N, K = 64, 64


def weight(n: int = N, k: int = K) -> MXTensor:
    return mxgemm.quantize(torch.randn(n, k))


def activations(m: int = 3) -> Tensor:
    return torch.randn(m, K, dtype=torch.bfloat16)


def expected(a: Tensor, w: MXTensor, **options: Any) -> Tensor:
    return mxgemm.gemm(a, w.data, w.scales, **options)


def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    taken: list[int] = []
    multiply = plan.multiply

    def counted(*arguments: Any) -> Tensor:
        taken.append(1)
        return multiply(*arguments)

    monkeypatch.setattr(sys.modules[mxgemm.gemm.__module__], "multiply", counted)
    return taken


def test_a_second_call_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = long_ways(monkeypatch)
    a, w, bias, out = activations(), weight(), torch.randn(N), torch.empty(3, N, dtype=torch.bfloat16)
    for options in ({}, {"bias": bias}, {"out": out}, {"a_format": "e4m3", "out_dtype": torch.float32}):
        first = mxgemm.gemm(a, w, **options).clone()
        before = len(taken)
        second = mxgemm.gemm(a, w, **options)
        assert len(taken) == before
        assert torch.equal(first, second)
        assert torch.equal(first, expected(a, w, **options))


def test_results_share_no_memory() -> None:
    a, w = activations(), weight()
    results = [mxgemm.gemm(a, w) for _ in range(3)]
    assert len({y.data_ptr() for y in results}) == 3


def test_every_option_is_in_the_key() -> None:
    a, w = activations(), weight()
    for options in (
        *({"a_format": name} for name in ("e2m1", "e4m3", "bf16")),
        *({"scale_rounding": name} for name in ("even", "floor", "ceil", "rceil")),
        *({"out_dtype": dtype} for dtype in (torch.bfloat16, torch.float16, torch.float32)),
        {"bias": torch.randn(N)},
        {"bias": torch.randn(N, dtype=torch.bfloat16)},
    ):
        for _ in range(2):
            assert torch.equal(mxgemm.gemm(a, w, **options), expected(a, w, **options)), options


def test_activations_of_another_kind() -> None:
    w, wide = weight(), torch.randn(8, 2 * K + 1)
    for a in (
        torch.randn(3, K),
        torch.randn(3, K, dtype=torch.float16),
        torch.randn(2, 3, K),
        torch.randn(K),
        wide[:, :K],
        wide[:, 1 : K + 1],
        wide[:, : 2 * K : 2],
        torch.randn(K, 3).t(),
        torch._neg_view(torch.randn(3, K)),
    ):
        for _ in range(2):
            assert torch.equal(mxgemm.gemm(a, w), expected(a.resolve_neg(), w)), (a.shape, a.stride())


def write(w: MXTensor, other: MXTensor) -> None:
    w.data.copy_(other.data)
    w.scales.copy_(other.scales)


def assign(w: MXTensor, other: MXTensor) -> None:
    w.data.data, w.scales.data = other.data, other.scales


def share(w: MXTensor, other: MXTensor) -> None:
    w.data.set_(other.data)
    w.scales.set_(other.scales)


@pytest.mark.parametrize("change", [write, assign, share])
def test_a_weight_changed_in_place_is_seen(change: Callable[[MXTensor, MXTensor], None]) -> None:
    a, w, other = activations(), weight(), weight()
    mxgemm.gemm(a, w)
    change(w, other)
    for _ in range(2):
        assert torch.equal(mxgemm.gemm(a, w), expected(a, other))


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.data.resize_(N // 2, K // 2),
        lambda w: w.data.t_(),
        lambda w: setattr(w.data, "data", w.data.data[: N // 2]),
        lambda w: setattr(w.scales, "data", w.scales.data[:, :1]),
        lambda w: w.data.untyped_storage().resize_(0),
    ],
)
def test_a_weight_that_is_none_any_more_is_refused(change: Callable[[MXTensor], object]) -> None:
    a, w = activations(), weight()
    mxgemm.gemm(a, w)
    change(w)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            mxgemm.gemm(a, w)


def test_a_square_weight_transposed_in_place() -> None:
    a, w = torch.randn(2, 2 * N), mxgemm.quantize(torch.randn(N, 2 * N))  # N rows of N bytes
    mxgemm.gemm(a, w)
    w.data.t_()
    for _ in range(2):
        assert torch.equal(mxgemm.gemm(a, w), mxgemm.gemm(a, w.data.contiguous(), w.scales))


def test_an_output_over_an_operand_is_refused_again() -> None:
    memory = torch.zeros(1 << 14, dtype=torch.uint8)
    w = weight()
    w = MXTensor.wrap(memory[: N * K // 2].view(N, K // 2).copy_(w.data), w.scales)
    a = activations()
    apart = memory[8192 : 8192 + 3 * N * 2].view(torch.bfloat16).view(3, N)
    over = memory[1024 : 1024 + 3 * N * 2].view(torch.bfloat16).view(3, N)
    for _ in range(2):
        mxgemm.gemm(a, w, out=apart)
        with pytest.raises(ValueError, match="out: shares memory with b"):
            mxgemm.gemm(a, w, out=over)
    square = torch.randn(3, N, dtype=torch.bfloat16)
    for _ in range(2):
        mxgemm.gemm(square, w, out=torch.empty_like(square))
        with pytest.raises(ValueError, match="out: shares memory with a"):
            mxgemm.gemm(square, w, out=square)
    bias = torch.zeros(4 * N, dtype=torch.bfloat16)
    for _ in range(2):
        mxgemm.gemm(square, w, bias=bias[:N], out=torch.empty_like(square))
        with pytest.raises(ValueError, match="out: shares memory with bias"):
            mxgemm.gemm(square, w, bias=bias[:N], out=bias[: 3 * N].view(3, N))


def test_views_that_interleave_are_taken_again() -> None:
    w, memory = weight(), torch.randn(3, 2 * K, dtype=torch.bfloat16)
    a, out = memory[:, ::2], memory[:, 1::2]
    want = expected(a, w)
    for _ in range(3):
        assert torch.equal(mxgemm.gemm(a, w, out=out), want)


def test_an_output_counts_the_write() -> None:
    a, w, out = activations(), weight(), torch.empty(3, N, dtype=torch.bfloat16)
    mxgemm.gemm(a, w, out=out)
    before = out._version
    mxgemm.gemm(a, w, out=out)
    assert out._version > before


def test_gradients_are_refused_after_a_call_without() -> None:
    a, w, bias = activations(), weight(), torch.randn(N, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            mxgemm.gemm(a, w, bias=bias)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="bias: requires grad"):
            mxgemm.gemm(a, w, bias=bias)


def test_a_prepared_weight_that_is_stale_is_refused_again() -> None:
    a, w = activations(), weight()
    prepared = w.prepare(arch="gfx950")
    assert prepared.prepared is not None
    assert prepared.prepared.stamp is not None
    want = expected(a, w)
    for _ in range(2):
        assert torch.equal(mxgemm.gemm(a, prepared), want)
    w.data.copy_(weight().data)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="changed after prepare"):
            mxgemm.gemm(a, prepared)


@pytest.mark.parametrize("route", [7, "no such route", ["a", "list"]])
def test_a_wrong_option_is_refused_again(route: object) -> None:
    a, w = activations(), weight()
    mxgemm.gemm(a, w)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            mxgemm.gemm(a, w, route=route)  # type: ignore[arg-type]


def test_forgotten_plans_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    a, w = activations(), weight()
    mxgemm.gemm(a, w)
    taken = long_ways(monkeypatch)
    plan.clear_plans()
    mxgemm.gemm(a, w)
    mxgemm.gemm(a, w)
    assert len(taken) == 1


def test_copies_and_files_hold_no_plans() -> None:
    a, w = activations(), weight()
    mxgemm.gemm(a, w)
    for other in (copy.copy(w), copy.deepcopy(w), pickle.loads(pickle.dumps(w)), w.clone(), w.prepare()):
        assert other.known is None
        assert torch.equal(mxgemm.gemm(a, other), mxgemm.gemm(a, w))


def test_no_more_plans_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "MAX_PLANS", 4)
    w = weight()
    for m in range(1, 12):
        mxgemm.gemm(activations(m), w)
        assert isinstance(w.known, steady.Known)
        assert len(w.known.plans) <= 4


def test_inference_tensors() -> None:
    a = activations()
    with torch.inference_mode():
        w = weight()
        first = mxgemm.gemm(a, w)
        assert mxgemm.gemm(a, w).is_inference()
        w.data.zero_()
        assert not mxgemm.gemm(a, w).any()
        assert first.any()
    assert not mxgemm.gemm(a, w).is_inference()


def test_calls_of_a_steady_call() -> None:
    """What runs in Python between a caller and the launch, counted."""
    a, w = activations(), weight()
    mxgemm.gemm(a, w)
    assert isinstance(w.known, steady.Known)
    for found in w.known.plans.values():
        found.plan, found.settled = dataclasses.replace(found.plan, launch=lambda operands: None), True
    ours, others = [], []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
            (ours if name.startswith("mxgemm.") else others).append(name)

    sys.setprofile(note)
    try:
        mxgemm.gemm(a, w)
    finally:
        sys.setprofile(None)
    ours.remove("mxgemm.steady.call")
    assert len(ours) <= 12, ours
    assert len(others) <= 6, others  # torch.compiler.is_compiling, twice; the stub; a namedtuple
