"""The grouped kernels for Hopper and many rows on a CPU, lane by lane: whole calls by a route that runs their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import mxgemm
from mxgemm.experts import layer as experts_layer
from mxgemm.experts import wgmma
from mxgemm.experts.w4_wgmma import GroupedWgmma
from mxgemm.experts.wgmma import GroupedWgmmaConfig
from tests.cases import spread
from tests.experts.cases import DEEPSEEK, GPT_OSS, Grouped, ends, layer, stack
from tests.experts.lanes_routes import WgmmaByLanes, under_its_name
from tests.experts.test_moe import LIMITS, distance
from tests.experts.test_w4_mma_code import problem


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[WgmmaByLanes]:
    """The route, under its name for the time of a test."""
    yield from under_its_name(WgmmaByLanes(), monkeypatch)


@pytest.mark.parametrize(
    ("a_format", "activation", "fragments"),
    [
        ("e2m1", GPT_OSS, True),
        pytest.param("e2m1", DEEPSEEK, False, marks=pytest.mark.slow),
        pytest.param("e4m3", DEEPSEEK, True, marks=pytest.mark.slow),
        pytest.param("bf16", GPT_OSS, False, marks=pytest.mark.slow),
        pytest.param("bf16", DEEPSEEK, True, marks=pytest.mark.slow),
    ],
)
def test_a_layer(route: WgmmaByLanes, a_format: str, activation: mxgemm.SwiGLU, fragments: bool) -> None:
    route.fragments = fragments
    one = layer(9, 2, activation=activation, bias=activation is GPT_OSS)
    got = one.run(a_format, route="lanes", out_dtype=torch.float32)
    assert distance(got, one.exact(a_format)) < LIMITS[a_format]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [GroupedWgmmaConfig(128, 1, 2), GroupedWgmmaConfig(64, 2, 2, 3, 1), GroupedWgmmaConfig(64, 1, 3)], ids=str
)
def test_configurations_agree_to_the_bit(route: WgmmaByLanes, config: GroupedWgmmaConfig) -> None:
    """Tiles of other heights, K with a tail, more chunks than stages."""
    one = layer(80, 2, 2, hidden=672, inner=96)
    found = []
    for chosen in (wgmma.config_for, lambda p: config):
        experts_layer._plans.clear()
        route.chosen = chosen
        found.append(one.run("e2m1", route="lanes", out_dtype=torch.float32))
        assert distance(found[-1], one.exact("e2m1")) < LIMITS["e2m1"]
    assert torch.equal(*found)


def test_rows_in_groups(route: WgmmaByLanes) -> None:
    """Gathered, absent and of none; a bias; a NaN of A stays in its row."""
    a = spread(25, 160, torch.bfloat16, octaves=3)
    a[3, 40] = float("nan")
    one = Grouped(a, stack(5, 40, 160), ends(3, 0, 19, 1, 0), "e2m1", bias=torch.randn(5, 40))
    one.check(one.run(route="lanes"))
    one.gather = torch.randint(0, 25, (27,), dtype=torch.int32)
    one.gather[[0, 5, 26]] = torch.tensor([-1, 25, 2**30], dtype=torch.int32)
    one.check(one.run(route="lanes"))


def test_extreme_scales(route: WgmmaByLanes) -> None:
    """The whole range of E8M0 of a weight, and blocks of A far apart."""
    w = stack(2, 40, 160)
    scales = w.scales.clone()
    scales[0, 3] = torch.tensor([1, 60, 127, 131, 200], dtype=torch.uint8)
    a = spread(9, 160, torch.bfloat16, octaves=1)
    a[2, 32:64] *= 2.0**80
    one = Grouped(a, mxgemm.MXTensor.wrap(w.data, scales), ends(5, 4), "e2m1")
    one.check(one.run(route="lanes", out_dtype=torch.float32))
    scales[1, 7, 2] = 255
    out = replace(one, w=mxgemm.MXTensor.wrap(w.data, scales)).run(route="lanes", out_dtype=torch.float32)
    assert out[5:, 7].isnan().all()
    assert out[:5].isfinite().all()


def test_configurations_that_are_not_legal() -> None:
    assert wgmma.config_refusal(GroupedWgmmaConfig()) is None
    for config in (GroupedWgmmaConfig(128, 2), GroupedWgmmaConfig(96), GroupedWgmmaConfig(64, 1, 5)):
        assert wgmma.config_refusal(config) is not None
    assert wgmma.config_refusal(GroupedWgmmaConfig(128, stages=9)) is not None


def test_it_is_chosen_for_many_rows_an_expert() -> None:
    for rows, chosen in ((4, False), (511, False), (512, True)):
        assert GroupedWgmma().suits(replace(problem(), rows=rows)) is chosen
