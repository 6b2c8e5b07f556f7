"""Grouped products and layers as torch operators, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mxgemm
from tests.cases import spread
from tests.experts.cases import DEEPSEEK, GPT_OSS, ends, layer, stack

OPERATOR_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor")


def test_operators_by_torchs_own_checks() -> None:
    w, a = stack(3, 40, 64), spread(7, 64, torch.bfloat16)
    given = (a, w.data, w.scales, ends(3, 0, 4), torch.arange(7, dtype=torch.int32), torch.randn(3, 40))
    torch.library.opcheck(torch.ops.mxgemm.grouped_gemm.default, given, test_utils=OPERATOR_TESTS)
    one = layer(5, 2)
    given = (one.x, one.w13.data, one.w13.scales, one.w2.data, one.w2.scales, one.ids, one.weights)
    given = (*given, 1.702, 7.0, True, 1.0, one.b13, one.b2)
    torch.library.opcheck(torch.ops.mxgemm.moe.default, given, test_utils=OPERATOR_TESTS)


def test_compiled_and_mapped() -> None:
    one = layer(6, 2)
    want = one.run("e2m1")

    def call(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        one.x, one.ids, one.weights = x, ids, weights
        return one.run("e2m1") * 2

    x, ids, weights = one.x, one.ids, one.weights
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, ids, weights), want * 2)
    halves = [part.view(2, 3, -1) for part in (x, ids, weights)]
    assert torch.equal(torch.vmap(call)(*halves).view(6, -1), want * 2)

    w, offsets = stack(3, 40, 64), ends(3, 0, 4)
    a, out = spread(7, 64, torch.bfloat16), torch.zeros(7, 40, dtype=torch.bfloat16)

    def product(rows: torch.Tensor) -> torch.Tensor:
        return mxgemm.grouped_gemm(rows, w, offsets, out=out).clone()

    assert torch.equal(torch.compile(product, fullgraph=True, backend="aot_eager")(a), product(a))


def test_meta_and_fake_tensors_are_checked_and_run_nothing() -> None:
    w = stack(3, 40, 64)
    meta = mxgemm.MXTensor.wrap(w.data.to("meta"), w.scales.to("meta"))
    a, offsets = torch.empty(7, 64, device="meta"), torch.empty(4, dtype=torch.int32, device="meta")
    assert mxgemm.grouped_gemm(a, meta, offsets).shape == (7, 40)
    one = layer(5, 2)
    for name in ("x", "ids", "weights", "b13", "b2"):
        setattr(one, name, getattr(one, name).to("meta"))
    one.w13, one.w2 = (mxgemm.MXTensor.wrap(w.data.to("meta"), w.scales.to("meta")) for w in (one.w13, one.w2))
    assert one.run("bf16").shape == (5, 96)
    one.ids = one.ids[:, :1]
    with pytest.raises(ValueError, match="topk_weights: got shape"):
        one.run("bf16")


W = stack(3, 40, 64)
A = spread(7, 64, torch.bfloat16)
ENDS = ends(3, 0, 4)
WRONG_PRODUCTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "weight": ({"w": torch.zeros(3, 40, 32)}, TypeError, r"w: got .*, want an MXTensor \(E, N, K\)"),
    "one weight": ({"w": W[0]}, ValueError, r"w: got shape \(40, 64\), want \(E, N, K\)"),
    "K": ({"a": torch.zeros(7, 32)}, ValueError, r"a: got shape \(7, 32\), want \[T, 64\]"),
    "three dimensions": ({"a": torch.zeros(1, 7, 64)}, ValueError, r"a: got shape \(1, 7, 64\), want \[T, 64\]"),
    "integers": ({"a": torch.zeros(7, 64, dtype=torch.int32)}, TypeError, "a: got"),
    "no offsets": ({"offsets": [0, 1, 2, 3]}, TypeError, "offsets: got .*, want an int32 tensor"),
    "long offsets": ({"offsets": ENDS.long()}, TypeError, "offsets: got .*int64.*, want an int32 tensor"),
    "few offsets": ({"offsets": ENDS[:3]}, ValueError, r"offsets: got shape \(3,\), want \(4,\)"),
    "gather": ({"gather": torch.zeros(2, 2, dtype=torch.int32)}, ValueError, "gather: got shape .*, want one dim"),
    "gather of nothing": (
        {"a": torch.zeros(0, 64), "gather": torch.zeros(2, dtype=torch.int32)},
        ValueError,
        "gather: got 2 rows of an empty a",
    ),
    "bias": ({"bias": torch.zeros(40)}, ValueError, r"bias: got shape \(40,\), want \(3, 40\)"),
    "out": ({"out": torch.zeros(7, 40)}, TypeError, "out: got .*, want a torch.bfloat16 tensor"),
    "shape of out": ({"out": torch.zeros(7, 39).bfloat16()}, ValueError, r"out: got shape \(7, 39\), want \(7, 40\)"),
    "dtype": ({"out_dtype": torch.int8}, TypeError, "out_dtype: got torch.int8"),
    "format": ({"a_format": "e5m2"}, ValueError, "a_format: got 'e5m2', want one of"),
    "rule": ({"scale_rounding": "up"}, ValueError, "scale_rounding: got 'up'"),
    "route": (
        {"route": "w4a16"},
        ValueError,
        "route: got 'w4a16', want one of cpu_native, w4_wgmma, w4_mma, triton, reference",
    ),
    "device": ({"offsets": ENDS.to("meta")}, ValueError, "offsets: got device meta, want cpu"),
    "grad": ({"a": A.float().requires_grad_()}, RuntimeError, "a: requires grad"),
}


@pytest.mark.parametrize("name", WRONG_PRODUCTS)
def test_wrong_products(name: str) -> None:
    changed, error, words = WRONG_PRODUCTS[name]
    with pytest.raises(error, match=words):
        mxgemm.grouped_gemm(**{"a": A, "w": W, "offsets": ENDS, **changed})


def test_an_output_that_is_an_input_and_a_route_that_is_not_here() -> None:
    memory = torch.zeros(7, 64).bfloat16()
    with pytest.raises(ValueError, match="out: shares memory with a, want memory of its own"):
        mxgemm.grouped_gemm(memory, W, ENDS, out=memory[:, :40])
    e4m3 = mxgemm.quantize(torch.randn(3, 40, 64), format="e4m3")
    with pytest.raises(mxgemm.RouteUnavailable, match="w.format is e4m3; needs e2m1|compiler"):
        mxgemm.grouped_gemm(A, e4m3, ENDS, route="cpu_native")


WRONG_LAYERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "w2": ({"w2": stack(5, 96, 96)}, ValueError, r"w2: got shape \(5, 96, 96\), want \(5, H, 64\)"),
    "odd": ({"w13": stack(5, 127, 96)}, ValueError, "w13: got shape .*, want an even number of rows"),
    "x": ({"x": torch.zeros(5, 64)}, ValueError, r"x: got K = 64 .*, want 96, as w13"),
    "ids": ({"topk_ids": torch.zeros(5, 2)}, TypeError, "topk_ids: got .*, want an int32 or int64 tensor"),
    "tokens": ({"topk_ids": torch.zeros(4, 2, dtype=torch.int64)}, ValueError, r"topk_ids: got shape \(4, 2\)"),
    "weights": ({"topk_weights": torch.zeros(5, 3)}, ValueError, r"topk_weights: got shape \(5, 3\), want \(5, 2\)"),
    "activation": ({"activation": "silu"}, TypeError, "activation: got .*, want a mxgemm.SwiGLU"),
    "b13": ({"b13": torch.zeros(5, 96)}, ValueError, r"b13: got shape \(5, 96\), want \(5, 128\)"),
    "map": ({"expert_map": torch.zeros(5)}, TypeError, "expert_map: got .*, want an int32 tensor"),
    "both": ({"expert_map": torch.zeros(5).int(), "first_expert": 1}, ValueError, "first_expert: got 1 beside"),
    "first": ({"first_expert": 1.5}, TypeError, "first_expert: got 1.5, want an int"),
    "formats": ({"w2": stack(5, 96, 64, "e4m3")}, ValueError, "w2: got e4m3, want e2m1 as w13"),
}


@pytest.mark.parametrize("name", WRONG_LAYERS)
def test_wrong_layers(name: str) -> None:
    changed, error, words = WRONG_LAYERS[name]
    one = layer(5, 2)
    given = {"x": one.x, "w13": one.w13, "w2": one.w2, "topk_ids": one.ids, "topk_weights": one.weights}
    with pytest.raises(error, match=words):
        mxgemm.moe(**{**given, "activation": GPT_OSS, **changed})


@pytest.mark.parametrize(
    "given, error",
    [({"limit": 0.0}, ValueError), ({"alpha": float("nan")}, ValueError), ({"offset": "1"}, TypeError),
     ({"interleaved": 1}, TypeError)],
)  # fmt: skip
def test_wrong_activations(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"activation\.{next(iter(given))}: got"):
        mxgemm.SwiGLU(**given)
    assert mxgemm.SwiGLU.plain(10.0).limit == 10.0
    assert DEEPSEEK.offset == 0
