"""bench/mma_table.py without a GPU: what it plans, and a run in which kernels are run lane by lane."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from bench import mma_again, mma_table
from mxgemm.cuda.w4_mma import MmaConfig, mma_refusal
from mxgemm.measure.spread import Spread
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands
from tests.cuda import lanes

TINY = ((48, 256),)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Problem, MmaConfig]]:
    """A few problems, launches on the CPU, and a clock that ticks once a call; returns what was launched."""
    launched: list[tuple[Problem, MmaConfig]] = []

    def bind(problem: Problem, config: MmaConfig) -> Callable[[Operands], None]:
        def launch(operands: Operands) -> None:
            launched.append((problem, config))
            lanes.run(problem, config, operands)

        return launch

    def timed(calls: list[Callable[[], object]], effort: object) -> Spread:
        calls[0]()
        return Spread(1.0 + len(launched), 0.0, 0.0, 1, "graph")

    monkeypatch.setattr(mma_table, "SMALL", TINY)
    monkeypatch.setattr(mma_table, "WEIGHTS", ())
    monkeypatch.setattr(
        mma_table, "PASSES", (("e2m1", "prepared", (1, 9), 1), ("bf16", "raw", (9,), 1), ("e4m3", "prepared", (1,), 1))
    )
    monkeypatch.setattr(mma_table, "MOST_BUILT", 5)
    monkeypatch.setattr(mma_table, "HEATER", 8)
    monkeypatch.setattr(mma_table, "graph_us", timed)
    monkeypatch.setattr(ROUTES["w4_mma"], "bind", bind)
    mma_table.ranking.cache_clear()
    return launched


def instances(work: list[mma_table.Work]) -> set[mma_table.Instance]:
    return {
        instance
        for one in work
        for config in one.configs
        for instance in mma_table.instances_of(mma_table.timed_problem(one.shape, one.a_format, one.form), config)
    }


def test_what_is_planned_is_legal_and_most_important_first(
    tiny: list[tuple[Problem, MmaConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mma_table, "WEIGHTS", ((10240, 8192), (5120, 2880)))
    work = mma_table.planned(4)
    order = list(dict.fromkeys((one.a_format, one.form) for one in work))
    assert order == [("e2m1", "prepared"), ("bf16", "raw"), ("e4m3", "prepared")]
    assert len({(one.shape, one.a_format, one.form) for one in work}) == len(work)
    for one in work:
        problem = mma_table.timed_problem(one.shape, one.a_format, one.form)
        assert one.configs
        assert len(set(one.configs)) == len(one.configs) <= 5
        assert all(mma_refusal(problem, config) is None for config in one.configs)


def test_what_is_measured_again_is_the_best_of_earlier_runs() -> None:
    times = {MmaConfig(3, 1, 4, 1): 5.0, MmaConfig(2, 1, 4, 1): 4.0, MmaConfig(1, 1, 4, 1): 6.0}
    shape = {"n": 48, "k": 256, "a_format": "e2m1", "form": "prepared", "torch_us": 10.0}
    rows = [{**shape, "m": 9, "us": us, "config": config.to_mapping()} for config, us in times.items()]
    rows.append({**shape, "m": 16, "us": 3.0, "config": MmaConfig(4, 1, 2, 1).to_mapping()})
    rows.append({**shape, "m": 9, "wrong": "norm", "config": MmaConfig(1, 1, 2, 1).to_mapping()})
    first, second = mma_again.planned([{"rows": rows}], 2)
    assert first == mma_table.Work(
        (9, 48, 256), "e2m1", "prepared", (MmaConfig(2, 1, 4, 1), MmaConfig(3, 1, 4, 1), MmaConfig(4, 1, 2, 1))
    )
    assert second.configs == (MmaConfig(4, 1, 2, 1),)


def test_what_a_routing_table_chooses_is_measured_again_before_what_runs_found(
    tiny: list[tuple[Problem, MmaConfig]],
) -> None:
    (n, k), chosen = TINY[0], MmaConfig(3, 1, 2, 1, overlap=True)
    row = {"m": 9, "n": n, "k": k, "route": "w4_mma", "us": 7.0, "config": chosen.to_mapping()}
    rows = [
        {**row, "derived": "bf16"},
        {**row, "derived": "fp8_fold"},  # the same kernel
        {**row, "derived": "bf16", "n": n + 16},
        {**row, "derived": "bf16", "route": "fp8_fold", "config": {}},
    ]
    run = {"m": 9, "n": n, "k": k, "a_format": "e2m1", "form": "prepared", "torch_us": 10.0, "us": 1.0}
    documents = [{"rows": [{**run, "config": MmaConfig(1, 1, 2, 1).to_mapping()}]}, {"rows": rows}]
    (work,) = mma_again.planned(documents, 1)
    assert work == mma_table.Work((9, n, k), "e2m1", "prepared", (chosen,))


@pytest.mark.slow
def test_a_run_judges_and_times_each(tiny: list[tuple[Problem, MmaConfig]]) -> None:
    work = mma_table.planned(2)
    clock = mma_table.Clock(600.0, time.monotonic())
    rows = list(mma_table.measured(work, instances(work), clock, torch.device("cpu")))
    assert not [row for row in rows if "wrong" in row]
    seen = {(row["m"], row["a_format"], row["form"]) for row in rows if row["again"]}
    assert seen == {(1, "e2m1", "prepared"), (9, "e2m1", "prepared"), (9, "bf16", "raw"), (1, "e4m3", "prepared")}
    assert all(row["us"] > 0 and row["torch_us"] > 0 and MmaConfig(**row["config"]) for row in rows)


def test_wrong_results_are_said_and_not_timed(
    tiny: list[tuple[Problem, MmaConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = mma_table.planned(1)[:1]
    monkeypatch.setattr(ROUTES["w4_mma"], "bind", lambda problem, config: lambda operands: operands.out.fill_(0.5))
    clock = mma_table.Clock(600.0, time.monotonic())
    (row,) = mma_table.measured(work, instances(work), clock, torch.device("cpu"))
    assert row["wrong"].startswith("norm")
    assert "us" not in row


def test_the_budget_ends_it_and_what_was_not_built_is_left_out(
    tiny: list[tuple[Problem, MmaConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    work = mma_table.planned(1)
    assert list(mma_table.measured(work, set(), mma_table.Clock(600.0, time.monotonic()), torch.device("cpu"))) == []
    assert not tiny
    assert list(mma_table.measured(work, set(), mma_table.Clock(1.0, time.monotonic()), torch.device("cpu"))) == []
    assert f"no time for {len(work)} of {len(work)} problems" in capsys.readouterr().out
