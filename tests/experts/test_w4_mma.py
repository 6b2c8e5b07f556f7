"""The grouped kernel for Hopper on a CPU, lane by lane: whole calls by a route that runs its text there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.experts import layer as experts_layer
from mxgemm.experts import mma
from mxgemm.experts.mma import FEW_PAIRS, MAX_ROUTED, GroupedConfig, config_for
from mxgemm.experts.problem import Routing, Tokens
from mxgemm.mx.fragments import code_bytes, scale_bytes
from tests.cases import spread
from tests.cuda import lanes_grouped
from tests.experts.cases import DEEPSEEK, GPT_OSS, Grouped, Layer, ends, layer, stack
from tests.experts.lanes_routes import ByLanes, under_its_name
from tests.experts.test_moe import LIMITS, distance, routings


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[ByLanes]:
    """The route, under its name for the time of a test."""
    yield from under_its_name(ByLanes(), monkeypatch)


def check(one: Layer, a_format: str) -> Tensor:
    """Run a layer and judge it."""
    got = one.run(a_format, route="lanes", out_dtype=torch.float32)
    assert distance(got, one.exact(a_format)) < LIMITS[a_format]
    return got


@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
def test_a_layer(route: ByLanes, activation: mxgemm.SwiGLU) -> None:
    """By ids and by a sort, with the weight in both orders: the same bits, and the oracle's values."""
    one = layer(9, 2, activation=activation, bias=activation is GPT_OSS)
    whole = check(one, "e2m1")
    for few, fragments in ((FEW_PAIRS, True), (0, False)):
        experts_layer._plans.clear()
        route.few, route.fragments = few, fragments
        assert torch.equal(check(one, "e2m1"), whole)
    assert route.multiplied


@pytest.mark.slow
@pytest.mark.parametrize("a_format", ["e4m3", "bf16"])
@pytest.mark.parametrize("activation", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "deepseek"])
def test_other_formats(route: ByLanes, a_format: str, activation: mxgemm.SwiGLU) -> None:
    check(layer(9, 3, activation=activation, bias=activation is DEEPSEEK), a_format)
    one = layer(3, 2, hidden=160, inner=96, activation=activation)
    for dtype in (torch.float16, torch.float32):
        check(replace(one, x=one.x.to(dtype)), a_format)


CONFIGS = [
    GroupedConfig(1, 4, 1, 2, resident=1),
    GroupedConfig(2, 4, 1, 1),
    GroupedConfig(4, 2, 2, 1),
    GroupedConfig(2, 2, 2, 3),
]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_configurations_agree_to_the_bit(route: ByLanes, config: GroupedConfig) -> None:
    """A row's sums have one order: K = 288 has a tail, and groups are of more rows than a tile."""
    one = layer(40, 2, 3, hidden=288, inner=288)
    found = []
    for chosen in (config_for, lambda p: config):
        experts_layer._plans.clear()
        route.chosen = chosen
        found.append(check(one, "e2m1"))
    assert torch.equal(*found)


STREAM = GroupedConfig(1, tiles=1, warps_n=4, resident=2, slots=2, warps_k=1)
STREAMED = [
    ("e2m1", FEW_PAIRS, DEEPSEEK, STREAM, 264),
    ("bf16", 0, GPT_OSS, STREAM, 3),
    pytest.param("e2m1", 0, GPT_OSS, replace(STREAM, tiles=2, warps_n=2, slots=1), 3, marks=pytest.mark.slow),
    pytest.param("e4m3", FEW_PAIRS, DEEPSEEK, replace(STREAM, slots=3), 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("a_format", "few", "activation", "config", "workgroups"), STREAMED)
def test_chunks_through_shared_memory_change_no_bit(
    route: ByLanes, monkeypatch: pytest.MonkeyPatch, a_format: str, few: int, activation: mxgemm.SwiGLU,
    config: GroupedConfig, workgroups: int,
) -> None:  # fmt: skip
    """By one warp along K, so that K is short; by workgroups for every tile, and by a few that take many tiles each."""
    one = layer(3, 2, 2, 288, 288, activation=activation)
    one.x[1, 32:64] *= 2.0**40  # a block that is left
    w13 = one.w13.scales.clone()
    w13[:, 7, 5], w13[:, 40, 8] = 150, 60  # whole chunks that are
    one = replace(one, w13=mxgemm.MXTensor.wrap(one.w13.data, w13))
    route.fragments, route.few, counted = True, few, mma.programs
    monkeypatch.setattr(
        mma, "programs", lambda p, c, by_ids: min(counted(p, c, by_ids), workgroups if c.slots else 1000)
    )
    found = []
    for chosen in (GroupedConfig(1, warps_k=1), config):
        experts_layer._plans.clear()
        route.chosen = lambda p, c=chosen: c
        found.append(one.run(a_format, route="lanes", out_dtype=torch.float32))
    assert found[0].isfinite().all()
    assert torch.equal(*found)


@pytest.mark.parametrize("a_format", ["e2m1", pytest.param("e4m3", marks=pytest.mark.slow)])
def test_rounding_in_the_product_changes_no_bit(route: ByLanes, a_format: str) -> None:
    """Whatever the blocks are: zeros, scales that decoding is right for and others, NaN."""
    one = layer(2, 2, 3, 160)
    one.x[0, 32:64] *= 2.0**40
    one.x[0, 64:96] *= 2.0**-60
    one.x[1, :32] = 0
    one.x[1, 64:96] *= 2.0**-126
    route.fragments, route.chosen = True, lambda p: replace(STREAM, slots=1)
    found = []
    for rounding in (0, 2):
        experts_layer._plans.clear()
        route.rounding = rounding
        found.append(one.run(a_format, route="lanes", out_dtype=torch.float32))
    assert found[0].isfinite().all()
    assert torch.equal(*found)
    one.x[0, 100] = float("nan")
    assert one.run(a_format, route="lanes")[0].isnan().all()


@pytest.mark.parametrize("name", routings())
def test_routings(route: ByLanes, name: str) -> None:
    one = layer(7, 2)
    one.ids = routings()[name]
    if name == "dropped":
        one.weights[one.ids < 0] = float("nan")  # of a pair that is dropped
    got = one.run("bf16", route="lanes", out_dtype=torch.float32)
    if name == "all dropped":
        assert got.eq(0).all()
    else:
        one.weights.nan_to_num_(0)
        assert distance(got, one.exact("bf16")) < LIMITS["bf16"]


def test_experts_of_a_map_and_of_a_range(route: ByLanes) -> None:
    one = layer(6, 2)
    whole, parts = one.run("e2m1", route="lanes", out_dtype=torch.float32), []
    options: list[dict[str, Any]] = [
        {"expert_map": torch.tensor([0, 1, -1, -1, -1], dtype=torch.int32)},
        {"first_expert": 2},
    ]
    for part, given in zip((slice(0, 2), slice(2, 5)), options, strict=True):
        some = replace(one, w13=one.w13[part], w2=one.w2[part], b13=one.b13[part], b2=one.b2[part])
        parts.append(some.run("e2m1", route="lanes", out_dtype=torch.float32, **given))
    torch.testing.assert_close(parts[0] + parts[1], whole)


@pytest.mark.parametrize("a_format", ["e2m1", pytest.param("e4m3", marks=pytest.mark.slow)])
def test_a_row_with_extreme_blocks_changes_no_bit_of_the_others(route: ByLanes, a_format: str) -> None:
    """Blocks of A that bf16 does not hold are added apart, and those beside them in a tile are not."""
    w = stack(2, 48, 160)
    a = spread(11, 160, torch.bfloat16, octaves=3)
    plain = Grouped(a, w, ends(7, 4), a_format)
    before = plain.run(route="lanes", out_dtype=torch.float32)
    plain.check(before)
    wild = a.clone()
    wild[2, 32:64] *= 2.0**80
    wild[4, 100] = float("nan")
    wild[5, :32] *= 2.0**-90
    wild[8] = 0
    one = replace(plain, a=wild)
    after = one.run(route="lanes", out_dtype=torch.float32)
    one.check(after)
    others = [0, 1, 3, 6, 7, 9, 10]
    assert torch.equal(after[others], before[others])


def test_extreme_scales_of_a_weight(route: ByLanes) -> None:
    """The whole range of E8M0, NaN among it."""
    w = stack(3, 40, 160, octaves=4)
    scales = w.scales.clone()
    scales[0, 3] = torch.tensor([0, 60, 127, 200, 230], dtype=torch.uint8)
    scales[1, 7, 2] = 255
    wild = mxgemm.MXTensor.wrap(w.data, scales)
    one = Grouped(spread(9, 160, torch.bfloat16, octaves=1), wild, ends(4, 3, 2), "e2m1")
    out = one.run(route="lanes", out_dtype=torch.float32)
    assert out[4:7, 7].isnan().all()
    assert out[:4].isfinite().all()
    left = np.ones(40, dtype=bool)
    left[7] = False
    kept = torch.from_numpy(left)
    same = mxgemm.MXTensor.wrap(w.data[:, kept], scales[:, kept])
    replace(one, w=same).check(out[:, kept])


@pytest.mark.parametrize("offsets", [(4, 6, 5, 9, 9, 12), (-3, 2, 2**31 - 1, 5, 0, -(2**31))])
def test_offsets_that_leave_the_rows_are_cut_off(route: ByLanes, offsets: tuple[int, ...]) -> None:
    one = Grouped(spread(25, 160, torch.bfloat16, octaves=3), stack(5, 40, 160), ends(3, 0, 19, 1, 0), "e2m1")
    one.check(one.run(route="lanes"))
    one.offsets = torch.tensor(offsets, dtype=torch.int32)
    one.bias = torch.randn(5, 40).half()
    one.check(one.run(route="lanes"))


def test_gathered_rows_repeated_and_absent_ones(route: ByLanes) -> None:
    one = Grouped(spread(25, 160, torch.bfloat16, octaves=3), stack(5, 40, 160), ends(3, 0, 19, 1, 0), "bf16")
    one.gather = torch.randint(0, 25, (27,), dtype=torch.int32)
    one.gather[[0, 5, 26]] = torch.tensor([-1, 25, 2**30], dtype=torch.int32)
    out = one.run(route="lanes")
    one.check(out)
    assert out[[0, 5]].isnan().all()
    assert out[26].eq(0).all(), "a row of no expert, whatever it gathers"


@pytest.mark.parametrize(
    ("pairs", "experts", "rows", "mapped"), [(300, 7, 8, False), (2100, 32, 16, True), (40, 1024, 64, False)]
)
def test_the_sort_of_many_pairs(pairs: int, experts: int, rows: int, mapped: bool) -> None:
    """By definition, and as the launch for few pairs where that takes them."""
    made = torch.Generator().manual_seed(pairs)
    ids = torch.randint(-1, experts + 2, (pairs, 1), generator=made)
    ids[pairs // 2 :] = torch.where(torch.rand(pairs - pairs // 2, 1, generator=made) < 0.3, 3, ids[pairs // 2 :])
    table = torch.randint(-1, experts, (experts + 1,), generator=made, dtype=torch.int32) if mapped else None
    routing = Routing(
        pairs, 1, experts, 0, 0 if table is None else len(table), ids.dtype, 64, torch.float32, torch.float32,
        KNOWN_MACHINES["sm_90"], (64, 1),
    )  # fmt: skip
    places, tiles = lanes_grouped.route(routing, rows, ids, table, sorts=True)
    flat = ids.flatten()
    known = (flat >= 0) & (flat < (experts if table is None else len(table)))
    expert = torch.where(known, flat if table is None else table.long()[flat.clamp(0, len(table) - 1)], -1)
    order = torch.argsort(expert, stable=True)
    order = order[expert[order] >= 0]
    assert torch.equal(places[: len(order)].long(), order)
    assert places[len(order) :].eq(-1).all()
    listed, start = [], 0
    for e, count in enumerate(torch.bincount(expert[expert >= 0], minlength=experts).tolist()):
        listed += [[e, at, min(at + rows, start + count)] for at in range(start, start + count, rows)]
        start += count
    assert tiles[0, 0] == len(listed)
    assert tiles[1 : 1 + len(listed)].tolist() == listed
    if max(pairs, experts) <= MAX_ROUTED:
        few = lanes_grouped.route(routing, rows, ids, table)
        assert torch.equal(few[0], places)
        assert torch.equal(few[1], tiles)


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3"])
@pytest.mark.parametrize("rule", ["even", "floor", "ceil", "rceil"])
def test_tokens_are_quantised_as_everywhere(a_format: str, rule: str) -> None:
    x = spread(5, 160, torch.bfloat16, octaves=9)
    x[1, 3], x[2, 40] = float("inf"), float("nan")
    x[3, 32:64] = 0
    x[4, :32] *= 2.0**-126
    tokens = Tokens(5, 160, x.dtype, x.stride(), a_format, rule, True)
    want = mxgemm.quantize(x, format=a_format, scale_rounding=rule)  # type: ignore[arg-type]
    data, scales = lanes_grouped.quantise(tokens, x)
    assert torch.equal(scales, want.scales)
    got = mxgemm.MXTensor.wrap(data, scales, format=a_format)  # type: ignore[arg-type]
    torch.testing.assert_close(got.dequantize(), want.dequantize(), rtol=0, atol=0, equal_nan=True)


def test_a_prepared_layer(route: ByLanes) -> None:
    """``prepare()`` of a stack: the same bits, of bytes that may not be changed afterwards."""
    one = layer(3, 2)
    want = one.run("e2m1", route="lanes")
    ready = replace(one, w13=one.w13.prepare("sm_90"), w2=one.w2.prepare("sm_90"))
    codes, scales = ready.w13.prepared.tensors
    assert (codes.shape, scales.shape) == ((5, code_bytes(128, 96)), (5, scale_bytes(128, 96)))
    seen = []
    launcher = route.launcher
    route.launcher = lambda p, *given, **more: seen.append(p.fragments) or launcher(p, *given, **more)
    assert torch.equal(ready.run("e2m1", route="lanes"), want)
    assert torch.equal(replace(ready, w2=one.w2).run("e2m1", route="lanes"), want)
    assert seen == [True, True, True, False]
    assert distance(ready.run("e2m1", route="reference").float(), one.exact("e2m1")) < LIMITS["e2m1"]
    ready.w2.data[0, 0, 0] ^= 1
    with pytest.raises(RuntimeError, match="w2: its bytes were changed after prepare"):
        ready.run("e2m1", route="lanes")
