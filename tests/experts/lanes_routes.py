"""The routes for Hopper with their launches on a CPU, lane by lane, under the name "lanes" for the time of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.experts import choice, plan, wgmma, whole
from mxgemm.experts import layer as experts_layer
from mxgemm.experts.mma import MAX_ROUTED, GroupedConfig, config_for
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens
from mxgemm.experts.route import BothProducts, Combine, Launch, Quantise, Sort, Sorted
from mxgemm.experts.w4_mma import GroupedMMA
from mxgemm.experts.w4_wgmma import GroupedWgmma
from mxgemm.experts.wgmma import GroupedWgmmaConfig
from mxgemm.mx.fragments import code_bytes, fragment_bytes, fragment_order
from tests.cuda import lanes_grouped


class ByLanes(GroupedMMA):
    """The route with its launches on a CPU."""

    name = "lanes"

    def __init__(self) -> None:
        self.chosen: Callable[[GroupedProblem], GroupedConfig] = config_for
        self.fragments = False
        self.multiplied = 0
        self.whole: whole.WholeConfig | None = None
        self.workgroups, self.at_once = 2, False

    def missing(self, machine: Machine) -> None:
        """Nothing."""

    def config(self, problem: GroupedProblem) -> GroupedConfig:
        return self.chosen(problem)

    def bind(self, problem: GroupedProblem) -> Launch:
        config = self.config(problem)
        main = self.launcher(problem, config, None, early=False)
        return lambda o: main(o._replace(tiles=listed(o.offsets, problem, config.rows)))

    def launcher(
        self, problem: GroupedProblem, config: GroupedConfig, routing: Routing | None, *, early: bool
    ) -> Launch:
        def launch(o: Operands) -> None:
            p, given = in_fragments(problem, o) if self.fragments else (problem, o)
            self.multiplied += lanes_grouped.multiply(p, config, given, routing)

        return launch

    def bind_whole(
        self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, tokens: Tokens | None
    ) -> BothProducts | None:
        config = self.whole
        if config is None:
            return None
        quantised = tokens if tokens is not None and tokens.a_format != "bf16" else None

        def both(
            a: Tensor, a_scales: Tensor | None, first: Any, second: Any, ids: Tensor, expert_map: Tensor | None
        ) -> Tensor:
            self.multiplied += 1
            (one, first), (two, second) = (
                _in_fragments(p, weight) for p, weight in zip(problems, (first, second), strict=True)
            )
            assert whole.takes((one, two), routing, tokens, least_units=0)
            return lanes_grouped.multiply_whole(
                (one, two), config, routing, quantised, (a, a_scales), (first, second), ids, expert_map,
                workgroups=self.workgroups, at_once=self.at_once,
            )  # fmt: skip

        return both

    def bind_quantise(self, tokens: Tokens, machine: Machine) -> Quantise:
        return partial(lanes_grouped.quantise, tokens)

    def bind_route(self, routing: Routing, rows: int, *, early: bool) -> Sort:
        def sort(ids: Tensor, expert_map: Tensor | None) -> Sorted:
            sorts = max(routing.pairs, routing.experts) > MAX_ROUTED
            places, tiles = lanes_grouped.route(routing, rows, ids, expert_map, sorts=sorts)
            return Sorted(places, tiles, tiles)

        return sort

    def bind_combine(self, routing: Routing) -> Combine:
        return partial(lanes_grouped.combine, routing)


class WgmmaByLanes(GroupedWgmma):
    """The other route, likewise."""

    name = "lanes"

    def __init__(self) -> None:
        self.chosen: Callable[[GroupedProblem], GroupedWgmmaConfig] = wgmma.config_for
        self.fragments = False

    def missing(self, machine: Machine) -> None:
        """Nothing."""

    def config(self, problem: GroupedProblem) -> GroupedWgmmaConfig:
        return self.chosen(problem)

    def bind(self, problem: GroupedProblem) -> Launch:
        config = self.config(problem)
        main = self.launcher(problem, config)
        return lambda o: main(o._replace(tiles=listed(o.offsets, problem, config.columns)))

    def launcher(self, problem: GroupedProblem, config: GroupedWgmmaConfig) -> Launch:
        def launch(o: Operands) -> None:
            p, given = in_fragments(problem, o) if self.fragments else (problem, o)
            lanes_grouped.multiply_wgmma(p, config, given)

        return launch

    def bind_quantise(self, tokens: Tokens, machine: Machine) -> Quantise:
        return partial(lanes_grouped.quantise, tokens)

    def bind_route(self, routing: Routing, rows: int, *, early: bool) -> Sort:
        return ByLanes().bind_route(routing, rows, early=early)

    def bind_combine(self, routing: Routing) -> Combine:
        return partial(lanes_grouped.combine, routing)


def listed(offsets: Tensor, p: GroupedProblem, rows: int) -> Tensor:
    """The tile list of offsets, by its definition."""
    bounds = np.clip(np.maximum.accumulate(np.maximum(offsets.numpy().astype(np.int64), 0)), 0, p.rows).tolist()
    groups = zip((-1, *range(p.experts), -1), (0, *bounds), (*bounds, p.rows), strict=True)
    tiles = [
        (expert, first, min(first + rows, stop))
        for expert, start, stop in groups
        for first in range(start, stop, rows)
        if expert >= 0 or p.zeros
    ]
    return torch.tensor([(len(tiles), 0, 0), *tiles], dtype=torch.int32)


def in_fragments(p: GroupedProblem, o: Operands) -> tuple[GroupedProblem, Operands]:
    """The same product with its weight in fragment order."""
    made = torch.stack([fragment_order(o.w[e], o.w_scales[e], neighbours=False) for e in range(p.experts)])
    at, size = code_bytes(p.n, p.k), fragment_bytes(p.n, p.k)
    strides = replace(p.strides, w=(size, 0, 1), w_scales=(size, 0, 1))
    return replace(p, fragments=True, strides=strides), o._replace(w=made[:, :at], w_scales=made[:, at:])


def _in_fragments(p: GroupedProblem, weight: Any) -> tuple[GroupedProblem, Any]:
    """The same with a weight and its bias alone."""
    w, scales, bias = weight
    p, o = in_fragments(p, Operands(w, w, w, scales, bias, w, None, None, w))
    return p, (o.w, o.w_scales, bias)


def under_its_name(made: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Have a route found for the time of a test, and no plan of it kept."""
    monkeypatch.setitem(choice.ROUTES, "lanes", made)
    for plans in (plan._plans, experts_layer._plans):
        plans.clear()
    yield made
    for plans in (plan._plans, experts_layer._plans):
        plans.clear()
