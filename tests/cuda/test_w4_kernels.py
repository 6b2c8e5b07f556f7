"""bench/w4_kernels.py without a GPU: kernels are run lane by lane."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bench import w4_fp8, w4_kernels, w4_mma, w4_wgmma
from bench.mma_cases import DATA, Case
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands
from tests.cuda import lanes

CPU = torch.device("cpu")
CASES = [Case(2, 16, 128, MmaConfig(1, 1, 1, 1)), Case(3, 33, 64, MmaConfig(1, 1, 1, 1), derived="bf16")]


def bound(after: Callable[[torch.Tensor], object]) -> Callable[[Problem, MmaConfig], Callable[[Operands], None]]:
    """Return a stand-in for a route's bind(), of which launches run lane by lane, and something is done to results."""

    def bind(problem: Problem, config: MmaConfig) -> Callable[[Operands], None]:
        def launch(operands: Operands) -> None:
            lanes.run(problem, config, operands)
            after(operands.out)

        return launch

    return bind


def test_right_results_on_all_kinds_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROUTES["w4_mma"], "bind", bound(lambda out: None))
    found = w4_kernels.check("w4_mma", CASES, CPU)
    assert (found["done"], found["failures"]) == (len(CASES) * len(DATA), [])


def test_wrong_results_are_named_unless_they_are_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ROUTES["w4_mma"], "bind", bound(lambda out: out.mul_(1.02)))
    even = w4_kernels.PLAIN._replace(data=("even",))
    (failure, _) = w4_kernels.check("w4_mma", CASES, CPU, kit=even)["failures"]
    assert "norm" in failure["found"]
    assert "FAILED m=2" in capsys.readouterr().out

    def allowed_one(text: str, case: Case) -> bool:
        return case.m == 2 or "norm" not in text

    allowed = w4_kernels.check("w4_mma", CASES, CPU, allowed=allowed_one, kit=even)
    assert [("m=3" in one["case"], "norm" in one["found"]) for one in allowed["failures"]] == [(True, True)]


def test_runs_that_differ_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = iter((1.0, -1.0))
    monkeypatch.setattr(ROUTES["w4_mma"], "bind", bound(lambda out: out.mul_(next(signs))))
    assert w4_kernels.run_one("w4_mma", CASES[0], 0, CPU) == ["another run gave other bits"]


@pytest.mark.parametrize("script", [w4_mma, w4_wgmma, w4_fp8], ids=["w4_mma", "w4_wgmma", "w4_fp8"])
def test_what_is_timed_is_legal_and_the_choice_is_among_it(script: object) -> None:
    plan = script.planned((16 if script is w4_mma else 33, 2880, 512), "e2m1", "prepared", 6)  # type: ignore[attr-defined]
    assert plan.guess in plan.configs
    assert len(set(plan.configs)) == len(plan.configs) >= 6
    route = ROUTES[script.ROUTE]  # type: ignore[attr-defined]
    assert all(route.check_config(plan.problem, config) is None for config in plan.configs)
