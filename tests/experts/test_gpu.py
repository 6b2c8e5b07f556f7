"""Layers of experts on a GPU: against float64, one graph for every routing, the same bits whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mxgemm
from mxgemm.device import machine_of
from mxgemm.experts import choice, whole
from mxgemm.experts import layer as experts_layer
from tests.cases import spread
from tests.experts.cases import DEEPSEEK, GPT_OSS, Grouped, Layer, ends, layer, stack
from tests.experts.test_moe import LIMITS, distance, routings

pytestmark = pytest.mark.gpu


def moved(one: Layer) -> Layer:
    """The same operands on the GPU."""
    named = {name: getattr(one, name) for name in ("x", "w13", "w2", "ids", "weights", "b13", "b2")}
    return replace(one, **{name: None if value is None else value.to("cuda") for name, value in named.items()})


ROUTES = ("w4_mma", "w4_wgmma", "triton")


def need(route: str) -> None:
    """Skip what is not for this GPU."""
    refusal = choice.ROUTES[route].missing(machine_of(torch.device("cuda", torch.cuda.current_device())))
    if refusal is not None:
        pytest.skip(str(refusal))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
@pytest.mark.parametrize("tokens", [1, 9, 150])
def test_a_layer(tokens: int, activation: mxgemm.SwiGLU, a_format: str, route: str) -> None:
    need(route)
    one = layer(tokens, 3, 7, 352, 224, activation=activation, bias=activation is GPT_OSS)
    got = moved(one).run(a_format, route=route, out_dtype=torch.float32)
    assert distance(got.cpu(), one.exact(a_format)) < LIMITS[a_format]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
@pytest.mark.parametrize("tokens", [7, 7 * 40], ids=["few", "many"])
def test_one_graph_serves_every_routing(tokens: int, a_format: str, route: str) -> None:
    need(route)
    one = layer(tokens, 2)
    there = moved(one)
    there.run(a_format, route=route)  # a first call compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = there.run(a_format, route=route)
    for ids in routings().values():
        there.ids.copy_(ids.repeat(tokens // 7, 1))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, there.run(a_format, route=route))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_a_token_does_not_depend_on_the_batch(a_format: str, route: str) -> None:
    """Neither on tiles of another height, which groups of another size get."""
    need(route)
    one = moved(layer(600, 2, 4, 1056, 288))
    whole = one.run(a_format, route=route, out_dtype=torch.float32)
    assert torch.equal(one.run(a_format, route=route, out_dtype=torch.float32), whole)
    for count in (1, 20, 150):
        some = replace(one, x=one.x[:count], ids=one.ids[:count], weights=one.weights[:count])
        assert torch.equal(some.run(a_format, route=route, out_dtype=torch.float32), whole[:count]), count


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_rows_in_groups(a_format: str, route: str) -> None:
    need(route)
    w = stack(5, 200, 1056)
    one = Grouped(spread(90, 1056, torch.bfloat16, octaves=3), w, ends(3, 0, 70, 1, 0), a_format)
    one.bias = torch.randn(5, 200)
    gather = torch.randint(0, 90, (90,), dtype=torch.int32)
    gather[[0, 50]] = torch.tensor([-1, 90], dtype=torch.int32)
    for one.gather in (None, gather):
        there = replace(
            one, a=one.a.cuda(), w=one.w.to("cuda"), offsets=one.offsets.cuda(), bias=one.bias.cuda(),
            gather=None if one.gather is None else one.gather.cuda(),
        )  # fmt: skip
        one.check(there.run(route=route, out_dtype=torch.float32).cpu())


@pytest.mark.parametrize("tokens", [1, 3, 20, 40, 300])
@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
@pytest.mark.parametrize("sizes", [(6, 480, 224), (6, 1056, 1184)], ids=["short", "long"])
@pytest.mark.parametrize("route", ["w4_mma", "w4_wgmma"])
def test_prepared_weights_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, route: str, sizes: tuple[int, int, int], activation: mxgemm.SwiGLU, tokens: int
) -> None:
    """By one launch for both products too, of up to 8 rows an expert: the last calls, whose plans are made anew."""
    need(route)
    one = moved(layer(tokens, 2, *sizes, activation=activation, bias=activation is GPT_OSS))
    for a_format in ("e2m1", "bf16"):
        want = one.run(a_format, route=route, out_dtype=torch.float32)
        for least_units in (whole.LEAST_UNITS, 0):
            ready = replace(one, w13=one.w13.prepare(), w2=one.w2.prepare())
            experts_layer._plans.clear()
            monkeypatch.setattr(whole.takes, "__kwdefaults__", {"least_units": least_units})
            for _ in range(5):  # the last ones by one call in C
                assert torch.equal(ready.run(a_format, route=route, out_dtype=torch.float32), want)
