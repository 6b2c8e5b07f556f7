"""Layers of experts on a GPU: against float64, one graph for every routing, the same bits whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mxgemm
from tests.experts.cases import DEEPSEEK, GPT_OSS, Layer, layer
from tests.experts.test_moe import LIMITS, distance, routings

pytestmark = pytest.mark.gpu


def moved(one: Layer) -> Layer:
    """The same operands on the GPU."""
    named = {name: getattr(one, name) for name in ("x", "w13", "w2", "ids", "weights", "b13", "b2")}
    return replace(one, **{name: None if value is None else value.to("cuda") for name, value in named.items()})


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
@pytest.mark.parametrize("tokens", [1, 9, 150])
def test_a_layer(tokens: int, activation: mxgemm.SwiGLU, a_format: str) -> None:
    one = layer(tokens, 3, 7, 352, 224, activation=activation, bias=activation is GPT_OSS)
    got = moved(one).run(a_format, route="triton", out_dtype=torch.float32)
    assert distance(got.cpu(), one.exact(a_format)) < LIMITS[a_format]


def test_one_graph_serves_every_routing() -> None:
    one = layer(7, 2)
    there = moved(one)
    there.run("e2m1")  # a first call compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = there.run("e2m1")
    for ids in routings().values():
        there.ids.copy_(ids)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, there.run("e2m1"))


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_a_token_does_not_depend_on_the_batch(a_format: str) -> None:
    """Neither on tiles of another height, which groups of another size get."""
    one = moved(layer(600, 2, 4, 1056, 288))
    whole = one.run(a_format, out_dtype=torch.float32)
    assert torch.equal(one.run(a_format, out_dtype=torch.float32), whole)
    for count in (1, 20, 150):
        some = replace(one, x=one.x[:count], ids=one.ids[:count], weights=one.weights[:count])
        assert torch.equal(some.run(a_format, out_dtype=torch.float32), whole[:count]), count
