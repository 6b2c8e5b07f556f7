"""A layer of experts as one launch, on a CPU, lane by lane: the bits of the launches that it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.experts import layer as experts_layer
from mxgemm.experts import whole
from mxgemm.experts.mma import GroupedConfig
from mxgemm.experts.problem import GroupedProblem, Routing, Tokens
from mxgemm.experts.whole import WholeConfig
from tests.experts import test_w4_mma_code as code
from tests.experts.cases import DEEPSEEK, GPT_OSS, Layer, layer
from tests.experts.lanes_routes import ByLanes, under_its_name
from tests.experts.test_moe import LIMITS, distance, routings
from tests.marks import EXHAUSTIVE, first_of


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[ByLanes]:
    """The route, under its name for the time of a test."""
    yield from under_its_name(ByLanes(), monkeypatch)


def both_ways(
    route: ByLanes, one: Layer, a_format: str, config: WholeConfig, workgroups: int, at_once: bool
) -> tuple[Tensor, Tensor]:
    """Results by launches of their own and by one."""
    found = []
    for chosen in (None, config):
        experts_layer._plans.clear()
        route.whole, route.workgroups, route.at_once, route.fragments = chosen, workgroups, at_once, True
        route.chosen = lambda p: GroupedConfig(1, warps_k=config.warps_k)
        found.append(one.run(a_format, route="lanes", out_dtype=torch.float32))
    return found[0], found[1]


@pytest.mark.parametrize(
    ("at_once", "workgroups"), [(True, 3), *(pytest.param(False, n, marks=EXHAUSTIVE) for n in (1, 2))]
)
@pytest.mark.parametrize(("a_format", "activation"), [("e2m1", GPT_OSS), ("bf16", DEEPSEEK)], ids=["e2m1", "bf16"])
def test_the_bits_are_those_of_two_products(
    route: ByLanes, a_format: str, activation: mxgemm.SwiGLU, at_once: bool, workgroups: int
) -> None:
    """Of workgroups that run one after the other too: who waits has no need of those that have not begun."""
    one = layer(9, 2, 5, 288, 160, activation=activation, bias=activation is GPT_OSS)
    want, got = both_ways(route, one, a_format, WholeConfig(8, 3, warps_k=1), workgroups, at_once)
    assert torch.equal(got, want)
    assert distance(got, one.exact(a_format)) < LIMITS[a_format]


def test_a_list_and_places_of_both_products(route: ByLanes) -> None:
    """Of more pairs than a warp lists by their ids, every unit being two shares of a place."""
    one = layer(17, 2, 5, 288, 160, activation=GPT_OSS)
    c = WholeConfig(4, 3, warps_k=1, shares=((0, 0), (0, 9)), split=(True, True), decoding=2)
    want, got = both_ways(route, one, "bf16", c, 2, False)
    assert torch.equal(got, want)


def test_what_the_loop_leaves_is_added(route: ByLanes) -> None:
    """Blocks of A and chunks of the weight that bf16 does not hold: of four warps along K some have no chunk."""
    one = layer(3, 2, 2, 288, 288, activation=GPT_OSS)
    one.x[1, 32:64] *= 2.0**40
    w13 = one.w13.scales.clone()
    w13[:, 7, 5], w13[:, 40, 8] = 150, 60
    one = replace(one, w13=mxgemm.MXTensor.wrap(one.w13.data, w13))
    for a_format in ("e2m1", "bf16"):
        want, got = both_ways(route, one, a_format, WholeConfig(4, 4), 2, False)
        assert want.isfinite().all()
        assert torch.equal(got, want)
    one.x[0, 100] = float("nan")
    _, got = both_ways(route, one, "e2m1", WholeConfig(8, 4), 2, False)
    assert got[0].isnan().all()


@pytest.mark.parametrize("name", first_of(routings(), 3))
def test_routings(route: ByLanes, name: str) -> None:
    """One expert's, more rows than a tile has; experts twice; none."""
    one = layer(7, 2)
    one.ids = routings()[name]
    want, got = both_ways(
        route, one, "bf16", WholeConfig(2, 3, warps_k=1, shares=((1, 0), (1, 1)), buffers=1), 2, False
    )
    assert torch.equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", first_of([True, False]))
def test_experts_of_other_ranks(route: ByLanes, mapped: bool) -> None:
    one = layer(14, 2, 4, activation=DEEPSEEK)
    one.ids = torch.randint(-1, 9, (14, 2), dtype=torch.int32)
    one.ids[3] = -1  # a token of no expert
    table = torch.tensor([-1, 3, 0, -1, 2, 1, -1, 9, -1], dtype=torch.int32)
    options = {"expert_map": table} if mapped else {"first_expert": 3}
    found = []
    for chosen in (None, WholeConfig(8, 3, warps_k=1)):
        experts_layer._plans.clear()
        route.whole, route.fragments = chosen, True
        route.chosen = lambda p: GroupedConfig(1, warps_k=1)
        found.append(one.run("e4m3", route="lanes", out_dtype=torch.float32, **options))
    assert torch.equal(*found)


def problem(a_format: str, gated: bool, tokens: int, **changes: object) -> GroupedProblem:
    """A product of gpt-oss-20b's experts, of weights in fragment order."""
    return replace(
        code.problem(a_format, gated=gated, tokens=tokens, fragments=True, divisor=4 if gated else 1), **changes
    )


def routing_of(tokens: int) -> Routing:
    """Its pairs."""
    return Routing(tokens, 4, 32, 0, 0, torch.int64, 2880, torch.float32, torch.bfloat16, code.HOPPER, (2880, 1))


@pytest.mark.parametrize(
    ("a_format", "tokens", "slots"), [("bf16", 1, 5), pytest.param("e2m1", 16, 3, marks=pytest.mark.slow)]
)
def test_nothing_is_spilled(tmp_path: Path, a_format: str, tokens: int, slots: int) -> None:
    """And so much of a weight is on its way."""
    problems = problem(a_format, True, tokens), problem(a_format, False, tokens)
    c = whole.config_for(problems)
    assert c is not None
    assert c.slots == slots
    assert whole.shared_bytes(problems, c) <= whole.MAX_SHARED_BYTES
    found = code.compiled(whole.SOURCE, whole.defines(problems, c), tmp_path)
    assert found.registers * c.threads <= 65536
    token = Tokens(tokens, 2880, torch.bfloat16, (2880, 1), a_format, "even", True)
    quantised = None if a_format == "bf16" else token
    found = code.compiled(whole.BEGIN_SOURCE, whole.begin_defines(quantised, c, routing_of(tokens)), tmp_path)
    assert found.registers <= 32


def test_long_rows_leave_room_for_fewer() -> None:
    """DeepSeek's 7168: by tiles of four rows."""
    changes = {"experts": 256, "strides": replace(code.problem("bf16").strides, a=(7168, 1))}
    one, two = problem("bf16", True, 64, k=7168, **changes), problem("bf16", False, 64, n=7168, **changes)
    c = whole.config_for((one, two))
    assert c is not None
    assert (c.rows, c.slots) == (4, 2)
    assert whole.shared_bytes((one, two), c) <= whole.MAX_SHARED_BYTES


def test_few_rows_of_many_experts_have_low_tiles() -> None:
    """Of gpt-oss's 32 experts and of its 128, with 64 pairs."""
    for experts, rows in ((32, 8), (128, 4)):
        found = whole.config_for(
            (problem("bf16", True, 16, experts=experts), problem("bf16", False, 16, experts=experts))
        )
        assert found is not None
        assert found.rows == rows


def test_shares_are_fine_where_units_are_few() -> None:
    """And of one or two tokens the second product's are a place each."""
    for tokens, shares, split in (
        (1, whole.FINEST_SHARES, True),
        (2, whole.FINEST_SHARES, True),
        (4, whole.FINE_SHARES, False),
        (16, whole.SHARES, False),
    ):
        found = whole.config_for((problem("bf16", True, tokens), problem("bf16", False, tokens)))
        assert found is not None
        assert (found.shares, found.split) == (shares, (False, split))


def test_what_is_launches_of_their_own() -> None:
    """Weights as they lie, many rows of an expert, few units, tokens that have to be converted."""
    one, two = problem("bf16", True, 16), problem("bf16", False, 16)
    tokens = Tokens(16, 2880, torch.bfloat16, (2880, 1), "bf16", "even", True)
    assert whole.takes((one, two), routing_of(16), tokens)
    assert not whole.takes((replace(one, fragments=False), two), routing_of(16), tokens)
    assert not whole.takes((one, two), routing_of(16), replace(tokens, dtype=torch.float32))
    assert not whole.takes((one, two), routing_of(16), replace(tokens, strides=(2881, 1)))
    few = problem("bf16", True, 1), problem("bf16", False, 1)
    assert not whole.takes(few, routing_of(1), tokens)
    assert whole.takes(few, routing_of(1), tokens, least_units=0)
    assert not whole.takes((problem("bf16", True, 65), problem("bf16", False, 65)), routing_of(65), tokens)
