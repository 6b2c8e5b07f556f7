"""explain_experts: which route calls take on machines that are not here, and what the others say; warmup of stacks."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from mxgemm.device import Machine
from mxgemm.experts import choice, plan
from mxgemm.experts.mma import SLOTS
from mxgemm.mx.formats import BLOCK
from mxgemm.nn import MXExperts
from tests.experts.cases import DEEPSEEK, layer, stack

META = torch.device("meta")


def described(experts: int, n: int, k: int) -> mxgemm.MXTensor:
    """A stack without memory."""
    shapes = (experts, n, k // 2), (experts, n, k // BLOCK)
    return mxgemm.MXTensor.wrap(*(torch.empty(shape, dtype=torch.uint8, device=META) for shape in shapes))


W13, W2 = described(32, 5760, 2880), described(32, 2880, 2880)


def missing(self: object, machine: Machine) -> mxgemm.Refusal | None:
    """What routes for Hopper lack elsewhere."""
    return None if machine.arch == "sm_90" else mxgemm.Refusal("arch", machine.arch, "sm_90", "machine")


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every route is installed."""
    for route in choice.ROUTES.values():
        if route.name in ("w4_mma", "w4_wgmma"):
            monkeypatch.setattr(type(route), "missing", missing)
        if route.name == "triton":
            monkeypatch.setattr(type(route), "missing", lambda self, machine: None)


@pytest.mark.parametrize(("tokens", "route"), [(1, "w4_mma"), (64, "w4_mma"), (127, "w4_mma"), (128, "w4_wgmma")])
def test_a_layer_on_hopper(tokens: int, route: str) -> None:
    found = mxgemm.explain_experts(tokens, W13, W2, top_k=4, device="sm_90", bias=True)
    assert found.route == route
    assert [problem.rows for problem in found.problems] == [4 * tokens] * 2
    assert found.weights == ("as it lies", "as it lies")
    assert "slots=0" in found.configs[0] or route == "w4_wgmma"
    assert f"  route     {route}" in str(found)
    assert ("at least 16 rows" in found.reason) is (route == "w4_wgmma")


def test_others() -> None:
    assert mxgemm.explain_experts(64, W13, device="gfx950").route == "triton"
    assert mxgemm.explain_experts(64, W13, W2, top_k=4, device="cpu").route == "cpu_native"
    named = mxgemm.explain_experts(64, W13, W2, top_k=4, device="sm_90", route="triton")
    assert (named.route, named.reason) == ("triton", "it is named")
    assert "w4_mma" in named.also_possible
    refused = mxgemm.explain_experts(4, described(2, 64, 32768), device="sm_90")
    assert refused.route == "triton"
    assert any(one.route == "w4_mma" and one.refusal.field == "k" for one in refused.refusals)
    with pytest.raises(mxgemm.RouteUnavailable):
        mxgemm.explain_experts(4, W13, device="gfx950", route="w4_mma")


def test_what_prepare_made_counts() -> None:
    one = layer(3, 2, 3, 1056, 1056, activation=DEEPSEEK)
    made = MXExperts(one.w13, one.w2, activation=DEEPSEEK, b13=one.b13, b2=one.b2, a_format="e2m1")
    assert made.explain(3, 2).route == "cpu_native"
    assert made.explain(3, 2, device="sm_90").weights == ("as it lies", "as it lies")
    made.prepare("sm_90")
    found = made.explain(3, 2, device="sm_90")
    assert found.weights == ("prepared (fragment order)",) * 2
    assert all(f"slots={SLOTS}" in config for config in found.configs)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((0, W13), {}, ValueError),
        ((1.5, W13), {}, TypeError),
        ((1, W13, W2[:3]), {}, ValueError),
        ((1, W13), {"top_k": 0}, ValueError),
        ((1, W13), {"a_format": "fp4"}, ValueError),
        ((1, W13), {"route": "none"}, ValueError),
        ((1, W13), {"device": "nowhere"}, ValueError),
        ((1, torch.empty(3)), {}, TypeError),
    ],
    ids=["rows", "whole rows", "w2", "top_k", "a_format", "route", "device", "w"],
)
def test_what_is_wrong_is_named(arguments: tuple[object, ...], options: dict[str, object], error: type) -> None:
    with pytest.raises(error, match="rows|w2|w:|top_k|a_format|route|nowhere"):
        mxgemm.explain_experts(*arguments, **options)  # type: ignore[arg-type]


def test_a_stack_is_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    w = stack(3, 40, 64)
    done = mxgemm.warmup([w, mxgemm.quantize(torch.randn(32, 64))], m=[2, 7], bias_dtype=torch.float32)
    sizes = [(one.m, one.n, one.k, one.experts) for one in done]
    assert sizes == [(2, 40, 64, 3), (7, 40, 64, 3), (2, 32, 64, 0), (7, 32, 64, 0)]
    monkeypatch.setattr(plan, "_make_plan", lambda *given: pytest.fail("planned again"))
    a, offsets = torch.randn(7, 64, dtype=torch.bfloat16), torch.tensor([0, 7, 7, 7], dtype=torch.int32)
    mxgemm.grouped_gemm(a, w, offsets, bias=torch.randn(3, 40))
