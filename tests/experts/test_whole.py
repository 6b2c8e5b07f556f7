"""A layer of experts as one launch, on a CPU, lane by lane: the bits of the launches that it stands for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.experts import layer as experts_layer
from mxgemm.experts.mma import GroupedConfig
from mxgemm.experts.whole import WholeConfig
from tests.experts.cases import DEEPSEEK, GPT_OSS, Layer, layer
from tests.experts.lanes_routes import ByLanes, under_its_name
from tests.experts.test_moe import LIMITS, distance


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[ByLanes]:
    """The route, under its name for the time of a test."""
    yield from under_its_name(ByLanes(), monkeypatch)


def both_ways(
    route: ByLanes, one: Layer, a_format: str, config: WholeConfig, workgroups: int, at_once: bool
) -> tuple[Tensor, Tensor]:
    """Results by launches of their own and by one."""
    found = []
    for whole in (None, config):
        experts_layer._plans.clear()
        route.whole, route.workgroups, route.at_once, route.fragments = whole, workgroups, at_once, True
        route.chosen = lambda p: GroupedConfig(1, warps_k=config.warps_k)
        found.append(one.run(a_format, route="lanes", out_dtype=torch.float32))
    return found[0], found[1]


@pytest.mark.parametrize(("workgroups", "at_once"), [(1, False), (2, False), (3, True)], ids=["one", "two", "together"])
@pytest.mark.parametrize(("a_format", "activation"), [("e2m1", GPT_OSS), ("bf16", DEEPSEEK)], ids=["e2m1", "bf16"])
def test_the_bits_are_those_of_two_products(
    route: ByLanes, a_format: str, activation: mxgemm.SwiGLU, workgroups: int, at_once: bool
) -> None:
    """Of workgroups that run one after the other too: who waits has no need of those that have not begun."""
    one = layer(9, 2, 5, 288, 160, activation=activation, bias=activation is GPT_OSS)
    want, got = both_ways(route, one, a_format, WholeConfig(3, warps_k=1), workgroups, at_once)
    assert torch.equal(got, want)
    assert distance(got, one.exact(a_format)) < LIMITS[a_format]
