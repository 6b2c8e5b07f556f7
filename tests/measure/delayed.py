"""A route that is right, with configurations that are fast, slow, illegal, broken and wrong, and a clock for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mxgemm.errors import Refusal
from mxgemm.measure.spread import Spread, spread_of
from mxgemm.problem import Problem
from mxgemm.routes import Config, Launch, Operands
from mxgemm.routes.reference import Reference


@dataclass(frozen=True, slots=True)
class Delay(Config):
    us: int = 30


class Delayed(Reference):
    """Of K = 64 alone. Seven cannot run, thirteen is wrong; what takes its time is made up."""

    name = "delayed"
    config_type = Delay
    tried: tuple[int, ...] = (40, 20, 30, -1, 7, 13)

    def __init__(self) -> None:
        self.bound: list[tuple[int, int]] = []

    def can_implement(self, problem: Problem) -> Refusal | None:
        return Refusal("k", problem.k, "64") if problem.k != 64 else None

    def configs(self, problem: Problem) -> Sequence[Delay]:
        return [Delay()]

    def candidates(self, problem: Problem) -> Sequence[Delay]:
        return [Delay(us) for us in self.tried]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        assert isinstance(config, Delay)
        return Refusal("us", config.us, "a positive delay") if config.us < 0 else None

    def bind(self, problem: Problem, config: Config) -> Launch:
        assert isinstance(config, Delay)
        self.bound.append((problem.m, config.us))
        right = super().bind(problem, Config())

        def launch(operands: Operands) -> None:
            if config.us == 7:
                raise RuntimeError("does not fit")
            right(operands)
            launch.us = config.us  # type: ignore[attr-defined]
            if config.us == 13:
                operands.out[-1, -1] += 1

        return launch


def call_us(call: Callable[[], object], device: torch.device, seconds: float) -> Spread:
    """Time a call by what its launcher says; any other takes 99 us."""
    call()
    launch = call.__closure__[0].cell_contents  # type: ignore[attr-defined]  # the launcher that is timed
    return spread_of([float(getattr(launch, "us", 99))] * 5, "wall")
