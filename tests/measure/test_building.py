"""What is built before it is measured: the first configurations of every route, in processes, within the time."""

from __future__ import annotations

import multiprocessing

import pytest

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import building
from mxgemm.measure.search import ordered
from mxgemm.measure.tune import Task, candidates
from mxgemm.routes import ROUTES
from mxgemm.routing.explain import problem_of
from tests.command import output
from tests.measure.delayed import Delayed

CPU = KNOWN_MACHINES["cpu"]
FORK = multiprocessing.get_context("fork")  # children see the route that the test has added
TASKS = (Task((3, 32, 64)), Task((5, 32, 64)), Task((7, 32, 64)))


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> Delayed:
    route = Delayed()
    monkeypatch.setitem(ROUTES, "delayed", route)
    return route


def test_the_first_configurations_of_a_route_are_bound_and_failures_said(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(problem: object, config: object) -> object:
        raise RuntimeError("the compiler says no")

    problem = problem_of(3, 32, 64, CPU, prepared=True)
    first = [one.config.us for one in ordered(candidates(problem, ["delayed"]))][:2]  # type: ignore[attr-defined]
    assert building.build_one(TASKS[0], CPU, ["delayed", "reference"], 2) == (3, [])
    assert delayed.bound == [(3, us) for us in first]
    monkeypatch.setattr(delayed, "bind", broken)
    bound, failures = building.build_one(TASKS[0], CPU, ["delayed"], 1)
    assert bound == 0
    assert len(failures) == 1
    assert failures[0].startswith("3,32,64 e2m1 delayed: ")
    assert failures[0].endswith("RuntimeError: the compiler says no")


def test_processes_share_the_tasks_and_the_time_ends_it(delayed: Delayed) -> None:
    told = list[Task]()
    found = building.build(TASKS, CPU, ["delayed"], 2, 2, tell=told.append, context=FORK)
    assert (found.bound, found.left, found.failures) == (6, 0, [])
    assert sorted(told, key=str) == sorted(TASKS, key=str)
    many = [Task((m, 32, 64)) for m in range(1, 60)]
    short = building.build(many, CPU, ["delayed"], 1, 1, budget=0.0, context=FORK)
    assert short.left > 0
    assert short.bound + short.left == len(many)


def test_the_command_builds_and_measures_nothing() -> None:
    text = output(
        "tune", "--build-only", "--device", "cpu", "--shape", "3,32,64", "--route", "reference", "--jobs", "1"
    )
    assert "1 configurations bound for" in text
    refused = output("tune", "--build-only", "--dry-run", code=2)
    assert "--build-only: got it with --output, --dry-run, --merge or --anew" in refused


def test_rows_are_those_of_the_weights_of_a_set() -> None:
    text = output("tune", "--dry-run", "--device", "sm_90", "--set", "gpt-oss", "--rows", "48", "--route", "dequant_mm")
    assert text.count("48,") == 4
    both = output(
        *("tune", "--dry-run", "--device", "sm_90", "--shape", "16,2880,2880", "--shape", "48,2880,2880", "--both"),
        *("--route", "dequant_mm"),
    )
    assert both.count("16,2880,2880") == 2
    assert "--rows: got it without --model or --set" in output("tune", "--rows", "3", "--dry-run", code=2)


def test_what_triton_compiles_at_a_first_launch_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    made = list[tuple[str, str]]()
    monkeypatch.setattr(building, "interpreting", lambda: False)
    monkeypatch.setattr(building, "triton_missing", lambda machine: None)
    monkeypatch.setattr(building, "compile_call", lambda call, arch: made.append((call.kernel.__name__, arch)))
    machine = KNOWN_MACHINES["sm_90"]
    monkeypatch.setattr(building, "serves_launches", lambda arch: False)
    building.build_one(Task((64, 2880, 512)), machine, ["fp8_fold"], 1)
    assert made == []
    monkeypatch.setattr(building, "serves_launches", lambda arch: arch == "sm_90")
    assert building.build_one(Task((64, 2880, 512)), machine, ["fp8_fold"], 1) == (1, [])
    assert made == [
        *(("quantize_fold_kernel", "sm_90"), ("wide_rows_folded_kernel", "sm_90")),
        ("quantize_kernel", "sm_90"),  # the weight's
    ]
