"""Predict kernels that are not here to be run: compile, execute strictly in the emulator, and do ``predict``'s sums.

    of_hip(FusedRun(case, config))            # the fused HIP kernel
    of_triton(case, folder)                   # launches that compile_cases wrote there

To look at many configurations a problem may be executed on fewer columns and rows; the figures are then of a workgroup
in the large one all the same, since workgroups differ only in where their operands lie.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evidence.cross_compile import problem_of
from evidence.gfx950_cases import Case, execute
from evidence.hip_cases import FusedRun, problem_of_case
from evidence.mx_cases import MXRun
from evidence.predict import Figures, figures_of, predict, total
from gfx950emu.api import load
from gfx950emu.profile import Profile
from mxgemm.hip import fused, mx
from mxgemm.hip.mx import MXConfig
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.quant_gemm_mx import quantizing_call
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.triton.tile_config import TileConfig


@dataclass(frozen=True)
class Prediction:
    """Microseconds of a call.

    Attributes:
        us: all together.
        parts: by cause; "l1" and "hbm" are what "memory" is the larger of.
        figures: of each launch.
    """

    us: float
    parts: dict[str, float]
    figures: tuple[Figures, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it for a results file."""
        parts = {name: us for name, us in self.parts.items() if us}
        return {"predicted_us": self.us, "parts": parts, "executed": [asdict(f) for f in self.figures]}


def of_hip(run: FusedRun, problem: Problem | None = None) -> Prediction:
    """Predict the fused kernel for the run's problem, or for a larger one of the same K.

    Raises:
        RuntimeError: the result is wrong.
    """
    profile, c = Profile(), run.config
    out, stats = run.launch(strict=True, observer=profile)
    passed, detail = run.judge(out)
    if not passed:
        raise RuntimeError(f"{c}: {detail}")
    program, workgroups = load(run.code), fused.blocks(run.problem, c) * c.split_k
    figures = figures_of(stats, profile, program, fused.KERNEL, workgroups, c.waves)
    whole = problem or run.problem
    figures = replace(figures, workgroups=fused.blocks(whole, c) * c.split_k)
    parts = predict([figures], whole, fused.workspace(whole, c)[0])
    return Prediction(total(parts), parts, (figures,))


def mx_figures(run: MXRun) -> Figures:
    """Return the figures of the kernel for many rows.

    Raises:
        RuntimeError: the result is wrong.
    """
    profile = Profile()
    out, stats = run.launch(strict=True, observer=profile)
    passed, detail = run.judge(out)
    if not passed:
        raise RuntimeError(f"{run.config}: {detail}")
    workgroups, waves = mx.blocks(run.problem, run.config), mx.THREADS // 64
    return figures_of(stats, profile, load(run.code), mx.KERNEL, workgroups, waves)


def mx_chain(quantise: Figures, multiply: Figures, problem: Problem, config: MXConfig) -> Prediction:
    """Predict a call of ``hip_mx``, whose A is floats, from figures of its two launches at the same K."""
    rows = math.prod(quantizing_call(problem).grid)
    found = replace(quantise, workgroups=rows), replace(multiply, workgroups=mx.blocks(problem, config))
    parts = predict(found, problem)
    return Prediction(total(parts), parts, found)


def few_blocks(m: int, n: int, k: int, c: fused.FusedConfig) -> Prediction:
    """Predict a problem by executing one block of C on each XCD."""
    case = Case("fused", "hip_fused", min(m, c.block_m), fused.XCDS * c.block_n, k)
    return of_hip(FusedRun(case, c), problem_of_case(replace(case, m=m, n=n)))


def of_triton(case: Case, folder: Path) -> Prediction:
    """Predict the launches of a compiled case.

    Raises:
        RuntimeError: the result is wrong.
    """
    figures, config = executed(case, folder)
    return for_size(case, figures, config)


def executed(case: Case, folder: Path) -> tuple[list[Figures], TileConfig]:
    """Return the figures of a compiled case's launches, and its tile.

    Raises:
        RuntimeError: the result is wrong.
    """
    outcome = execute(case, folder, strict=True, observers=Profile)
    if not outcome.passed:
        raise RuntimeError(f"{case.name}: {outcome.detail}")
    launches = json.loads((folder / f"{case.name}.json").read_text(encoding="utf-8"))["launches"]
    figures = []
    for launch, stats, profile in zip(launches, outcome.launches, outcome.observers, strict=True):
        assert isinstance(profile, Profile)
        program = load((folder / launch["code"]).read_bytes())
        waves, workgroups = launch["block"][0] // 64, math.prod(launch["grid"])
        figures.append(figures_of(stats, profile, program, launch["kernel"], workgroups, waves))
    return figures, TileConfig.from_mapping(outcome.config)


def for_size(case: Case, figures: Sequence[Figures], config: TileConfig) -> Prediction:
    """Predict a case whose workgroups do what ``figures`` say, of the same K and tile."""
    problem = problem_of(case.m, case.n, case.k, "gfx950", **case.job()["problem"])
    route = ROUTES[case.route]
    assert isinstance(route, TritonGemm)
    calls = route.calls(problem, config)
    found = tuple(replace(f, workgroups=math.prod(call.grid)) for f, call in zip(figures, calls, strict=True))
    partial_bytes = 4 * config.split_k * case.m * case.n if config.split_k > 1 else 0
    parts = predict(found, problem, partial_bytes)
    return Prediction(total(parts), parts, found)
