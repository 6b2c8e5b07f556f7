"""``mxgemm.moe`` against float64, by every route that runs here: routings, formats, activations, expert parallel."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.experts import oracle as experts_oracle
from mxgemm.experts.choice import ROUTES as EXPERTS_ROUTES
from mxgemm.experts.problem import Operands
from mxgemm.experts.steps import LayerOptions, describe
from mxgemm.mx import oracle
from tests.experts.cases import CPU_ROUTES, DEEPSEEK, GPT_OSS, ends, layer, need, stack, values

BY_TRITON = pytest.param("triton", marks=pytest.mark.slow)
ROUTES = [*CPU_ROUTES, BY_TRITON]
LIMITS = {"bf16": 3e-3, "e4m3": 3e-3, "e2m1": 2e-2}
"""Of the norm: where the inner activations lie at a tie, sums in fp32 and in float64 may round them to either side."""


def distance(got: Tensor, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
def test_a_layer(route: str, a_format: str, activation: mxgemm.SwiGLU) -> None:
    need(route)
    one = layer(9, 3, activation=activation, bias=activation is GPT_OSS)
    got = one.run(a_format, route=route, out_dtype=torch.float32)
    assert distance(got, one.exact(a_format)) < LIMITS[a_format]
    assert torch.equal(one.run(a_format, route=route, out_dtype=torch.float32), got), "another run"
    assert torch.equal(one.run(a_format, route=route), got.bfloat16()), "one rounding"


def routings() -> dict[str, Tensor]:
    """Of seven tokens to five experts, two each."""
    drawn = torch.randint(0, 5, (7, 2), generator=torch.Generator().manual_seed(5))
    return {
        "all to one": torch.full((7, 2), 3),
        "a token twice to one": torch.tensor([[1, 1], [1, 4], [4, 4], [0, 0], [2, 1], [1, 2], [3, 3]]),
        "dropped": torch.where(torch.arange(14).view(7, 2) % 3 == 0, -1, drawn),
        "all dropped": torch.full((7, 2), -7),
        "no such expert": torch.where(drawn == 2, 5, drawn).to(torch.int32),
        "far away": torch.tensor([[2**40, 1], *drawn.tolist()[1:]]),
    }


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", routings())
def test_routings(route: str, name: str) -> None:
    need(route)
    one = layer(7, 2)
    one.ids = routings()[name]
    if name == "dropped":
        one.weights[one.ids < 0] = float("nan")  # of a pair that is dropped
    got, want = one.run("bf16", route=route, out_dtype=torch.float32), one.exact("bf16")
    if name == "all dropped":
        assert got.eq(0).all()
    else:
        one.weights.nan_to_num_(0)
        assert distance(got, one.exact("bf16") if name == "dropped" else want) < LIMITS["bf16"]


@pytest.mark.parametrize("route", [CPU_ROUTES[0], BY_TRITON])
@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
def test_a_token_does_not_depend_on_the_batch(route: str, a_format: str) -> None:
    need(route)
    if route == "reference":
        pytest.skip("torch's own product adds in another order for another number of rows")
    one = layer(24, 2)
    whole = one.run(a_format, route=route)
    order = torch.randperm(24)
    x, ids, weights = one.x, one.ids, one.weights
    one.x, one.ids, one.weights = x[order], ids[order], weights[order]
    assert torch.equal(one.run(a_format, route=route), whole[order])
    for token in (0, 11, 23):
        part = slice(token, token + 1)
        one.x, one.ids, one.weights = x[part], ids[part], weights[part]
        assert torch.equal(one.run(a_format, route=route), whole[part])


@pytest.mark.parametrize("route", ROUTES)
def test_experts_of_several_ranks_add_up_to_all(route: str) -> None:
    need(route)
    one = layer(8, 3, experts=6)
    whole = one.run("bf16", route=route, out_dtype=torch.float32)
    chosen = torch.tensor([4, 0, 5])
    ranges, maps = torch.zeros_like(whole), torch.zeros_like(whole)
    for part in (slice(0, 2), slice(2, 6)):
        parts = (one.w13[part], one.w2[part], one.ids, one.weights)
        options = {"activation": GPT_OSS, "a_format": "bf16", "out_dtype": torch.float32, "route": route}
        ranges += mxgemm.moe(
            one.x, *parts, b13=one.b13[part], b2=one.b2[part], first_expert=part.start, **options
        )  # fmt: skip
    for mine in (chosen, torch.tensor([1, 2, 3])):
        table = torch.full((6,), -1, dtype=torch.int32)
        table[mine] = torch.arange(3, dtype=torch.int32)
        w13, w2 = (mxgemm.MXTensor.wrap(w.data[mine], w.scales[mine]) for w in (one.w13, one.w2))
        maps += mxgemm.moe(
            one.x, w13, w2, one.ids, one.weights, b13=one.b13[mine], b2=one.b2[mine], expert_map=table, **options
        )
    for total in (ranges, maps):
        assert (total - whole).norm() / whole.norm() < 1e-6


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
def test_the_first_product_is_exact_and_quantised_to_the_byte(
    route: str, a_format: str, activation: mxgemm.SwiGLU
) -> None:
    """Its activations in fp32 within the elementwise gate of float64; as bytes those of the library's quantiser."""
    need(route)
    rows, hidden, inner = 9, 160, 96
    w13, w2 = stack(3, 2 * inner, hidden, octaves=1), stack(3, 32, inner)
    x = torch.randn(rows, hidden).bfloat16()
    options = LayerOptions(activation, a_format=a_format)
    one, _ = describe(x, w13, w2, None, None, 1, options)
    floats = dataclasses.replace(
        one, out_format="", out_dtype=torch.float32, strides=dataclasses.replace(one.strides, out=(inner, 1))
    )
    quantised = None if a_format == "bf16" else mxgemm.quantize(x, format=a_format)
    a, a_scales = (x, None) if quantised is None else (quantised.data, quantised.scales)
    offsets, index = ends(4, 0, 5), torch.randperm(rows).int()

    def run(problem: object, out: Tensor, scales: Tensor | None) -> None:
        operands = Operands(a, a_scales, w13.data, w13.scales, None, offsets, index, None, out, scales)
        EXPERTS_ROUTES[route].bind(problem)(operands)  # type: ignore[arg-type]

    h = torch.full((rows, inner), torch.nan)
    run(floats, h, None)
    a64, w64 = experts_oracle.rounded(x.double().numpy(), a_format)[index.numpy()], values(w13)
    for expert, part in ((0, slice(0, 4)), (2, slice(4, 9))):
        sums, room = a64[part] @ w64[expert].T, np.abs(a64[part]) @ np.abs(w64[expert]).T
        exact = experts_oracle.swiglu(sums, activation)
        gate, up = (torch.from_numpy(v) for v in (sums, room))
        (g, u), (g_room, u_room) = activation.parts(gate), activation.parts(up)
        limit = activation.limit or np.inf
        slope = 1.1 * g_room * (u.clamp(-limit, limit).abs() + 1) + u_room * g.abs().clamp(max=np.inf)
        allowed = 2.0**-20 * np.abs(exact) + (32 + hidden / 64) * 2.0**-24 * slope.numpy()
        assert (np.abs(h[part].double().numpy() - exact) <= allowed).all()
    if a_format == "bf16":
        out = torch.full((rows, inner), torch.nan, dtype=torch.bfloat16)
        run(one, out, None)
        assert torch.equal(out, h.bfloat16())
    else:
        want = mxgemm.quantize(h, format=a_format)
        out, scales = torch.full_like(want.data, 255), torch.full_like(want.scales, 7)
        run(one, out, scales)
        assert torch.equal(scales, want.scales)
        assert np.array_equal(*(oracle.decode(d.numpy(), scales.numpy(), a_format) for d in (out, want.data)))


@pytest.mark.parametrize("route", ROUTES)
def test_no_finite_number_of_a_nan(route: str) -> None:
    need(route)
    one = layer(4, 2)
    one.x[1, 40] = float("inf")
    for a_format in ("e2m1", "bf16"):
        out = one.run(a_format, route=route)
        assert out[1].isnan().all()
        assert not out[[0, 2, 3]].isnan().any()


def test_leading_dimensions_strides_and_out() -> None:
    one = layer(12, 2)
    want = one.run("e2m1")
    one.x, one.ids, one.weights = one.x.view(3, 4, -1), one.ids.view(3, 4, 2), one.weights.view(3, 4, 2)
    assert torch.equal(one.run("e2m1"), want.view(3, 4, -1))
    room = torch.zeros(4, 3, 96, dtype=torch.bfloat16)
    assert one.run("e2m1", out=room.transpose(0, 1)).shape == (3, 4, 96)
    assert torch.equal(room.transpose(0, 1), want.view(3, 4, -1))
    one.x, one.ids, one.weights = one.x[0, 0], one.ids[0, 0], one.weights[0, 0]
    assert torch.equal(one.run("e2m1"), want[0])
    none = layer(0, 2)
    assert none.run("e2m1").shape == (0, 96)


def test_threads_change_nothing() -> None:
    one = layer(40, 2, hidden=2048, inner=512)
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(one.run("e2m1"))
    finally:
        torch.set_num_threads(before)
    if CPU_ROUTES[0] == "cpu_native":
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
