"""The grouped kernel for Hopper on a CPU, lane by lane: whole calls by a route that runs its text there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import mxgemm
from mxgemm.cuda.grouped_mma import MAX_PAIRS, GroupedConfig, config_for
from mxgemm.device import Machine
from mxgemm.experts import choice, plan
from mxgemm.experts.problem import GroupedProblem, Operands, Routing
from mxgemm.experts.reference import Reference
from mxgemm.experts.route import Combine, LayerLaunches, Launch, Sort
from mxgemm.experts.w4_mma import LISTED_ROWS, GroupedMMA, ids_alone
from tests.cases import spread
from tests.cuda import lanes_grouped
from tests.experts.cases import DEEPSEEK, GPT_OSS, Grouped, Layer, ends, layer, stack
from tests.experts.test_moe import LIMITS, distance, routings


class ByLanes(GroupedMMA):
    """The route with its launches on a CPU, and torch's around them."""

    name = "lanes"

    def __init__(self, few: int = MAX_PAIRS, config: Callable[[GroupedProblem], GroupedConfig] = config_for) -> None:
        self.few, self.config, self.multiplied = few, config, 0

    def missing(self, machine: Machine) -> None:
        """Nothing."""

    def bind(self, problem: GroupedProblem) -> Launch:
        return self.launcher(problem, self.config(problem), None, early=False)

    def launcher(
        self, problem: GroupedProblem, config: GroupedConfig, routing: Routing | None, *, early: bool
    ) -> Launch:
        def launch(o: Operands) -> None:
            self.multiplied += lanes_grouped.run(problem, config, o, routing)

        return launch

    def bind_layer(self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing) -> LayerLaunches:
        by = routing if routing.pairs <= self.few else None
        products = tuple(self.launcher(p, self.config(p), by, early=True) for p in problems)
        sort = ids_alone if by else self.bind_sort(routing, LISTED_ROWS)
        return LayerLaunches(sort, (products[0], products[1]), self.bind_combine(routing))

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        return Reference().bind_sort(routing, 0)

    def bind_combine(self, routing: Routing) -> Combine:
        return Reference().bind_combine(routing)
