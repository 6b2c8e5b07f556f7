"""What is built before it is measured: the first configurations of every route, in processes, within the time."""

from __future__ import annotations

import multiprocessing
import os
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path

import pytest
import torch

from mxgemm.cli import tune as cli_tune
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.measure import building, trial, tuner, unfinished
from mxgemm.measure.forms import FORMS, Form, form_of_kind, problem_in_form
from mxgemm.measure.held import Held
from mxgemm.measure.search import ordered
from mxgemm.measure.tune import Bench, Known, Task, candidates
from mxgemm.mx.tensor import MXTensor
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
    assert building.build_one(TASKS[0], CPU, ["delayed", "reference"], 2)[:2] == (3, [])
    assert delayed.bound == [(3, us) for us in first]
    monkeypatch.setattr(delayed, "bind", broken)
    bound, failures, _, _ = building.build_one(TASKS[0], CPU, ["delayed"], 1)
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


def waited_for(ahead: building.Ahead, task: Task) -> None:
    """Wait until some other task of it is done, which is when it is waited for."""
    while not any(future.done() for future in ahead._at_work.values()):
        time.sleep(0.01)
    assert task in ahead._at_work


def test_processes_build_ahead_of_what_is_measured_and_say_what_they_found(delayed: Delayed) -> None:
    with closing(building.Ahead(TASKS, CPU, ["delayed"], 1, 1, context=FORK)) as ahead:
        waited_for(ahead, TASKS[1])
        problem = problem_of(*TASKS[1].shape, CPU, prepared=True)
        assert ahead(TASKS[1]) == (problem, candidates(problem, ["delayed"]))
        assert ahead(TASKS[1]) is None  # it is asked once
        assert ahead(Task((9, 32, 64))) is None


def test_what_nobody_waits_for_is_not_built(delayed: Delayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is many seconds of a compiler, of which the one that is at work is finished."""
    begun = FORK.Event()

    def slow(problem: object, config: object) -> None:
        begun.set()
        time.sleep(0.5)

    monkeypatch.setattr(delayed, "bind", slow)
    monkeypatch.setattr(delayed, "tried", tuple(range(100, 120)))
    ahead = building.Ahead(TASKS, CPU, ["delayed"], 20, 1, context=FORK)
    assert begun.wait(20)
    future, start = ahead._at_work[TASKS[0]], time.monotonic()
    ahead.close()
    assert time.monotonic() - start < 5
    assert future.result().bound < 5


def test_who_measures_does_not_wait_for_processes_that_are_beginning(delayed: Delayed) -> None:
    class Never:
        def done(self) -> bool:
            return False

    with closing(building.Ahead(TASKS, CPU, ["delayed"], 1, 1, context=FORK)) as ahead:
        done = ahead._at_work
        ahead._at_work = dict.fromkeys(done, Never())  # type: ignore[arg-type]
        assert ahead(TASKS[0]) is None
        ahead._at_work = dict(done)
        waited_for(ahead, TASKS[0])
        assert ahead(TASKS[2]) is not None


def test_where_a_process_dies_kernels_are_built_when_they_are_measured(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delayed, "bind", lambda problem, config: os._exit(9))
    with closing(building.Ahead(TASKS, CPU, ["delayed"], 1, 1, context=FORK)) as ahead:
        waited_for(ahead, TASKS[0])
        assert [ahead(task) for task in TASKS] == [None] * 3
    assert caplog.text.count("kernels are built no longer before they are measured: BrokenProcessPool") == 1


def test_a_dead_process_is_said_and_the_rest_is_left(delayed: Delayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "bind", lambda problem, config: os._exit(9))
    found = building.build(TASKS, CPU, ["delayed"], 1, 1, context=FORK)
    assert (found.bound, found.left, len(found.failures)) == (0, 3, 1)
    assert "terminated abruptly" in found.failures[0]


def test_a_task_takes_the_candidates_that_are_known_of_its_problem(delayed: Delayed) -> None:
    (task, other), cpu = TASKS[:2], torch.device("cpu")
    found = {one: Bench(one, cpu, ["delayed"]) for one in (task, other)}
    known = found[task].problem, found[task].candidates[1:2]
    assert Bench(task, cpu, ["delayed"], known=lambda task: known).candidates == known[1]
    assert Bench(other, cpu, ["delayed"], known=lambda task: known).candidates == found[other].candidates


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n, k", [(96, 256), (48, 96)])
@pytest.mark.parametrize("arch", ["sm_90", "gfx950", "gfx942", "cpu"])
def test_a_problem_is_described_as_its_operands_are(
    arch: str, n: int, k: int, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, real = KNOWN_MACHINES[arch], MXTensor.prepare
    monkeypatch.setattr(MXTensor, "prepare", lambda self, **options: real(self, arch, **options))
    monkeypatch.setattr(trial, "machine_of", lambda device: machine)
    made = Held(torch.device("cpu")).trial(5, n, k, "bf16", form).problem
    assert made == problem_in_form(5, n, k, machine, "bf16", form)
    if arch == "sm_90":
        kinds = {"fast": "fp8_fold", "bf16": "bf16", "compact": "fp8_fold_compact", "raw": ""}
        assert made.derived == kinds[form]
        assert form_of_kind(made.derived) == form


def test_the_command_measures_forms_one_after_the_other() -> None:
    named = ("tune", "--dry-run", "--device", "sm_90", "--shape", "128,2880,512", "--form", "fast", "--form", "compact")
    text = output(*named, "--route", "fp8_fold")
    assert text.count("fp8_fold") == 2
    assert "--form: got it with --both or --raw" in output(*named, "--raw", code=2)
    assert "--form: got it with --both or --raw" in output(*named, "--both", code=2)


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
    nothing = Refusal("compiler", "missing", "a compiler", "installation")  # with one some launches are not Triton's
    monkeypatch.setattr("mxgemm.hip.build.compiler_missing", lambda arch: nothing)
    monkeypatch.setattr(building, "serves_launches", lambda arch: False)
    building.build_one(Task((64, 2880, 512)), machine, ["fp8_fold"], 1)
    assert made == []
    monkeypatch.setattr(building, "serves_launches", lambda arch: arch == "sm_90")
    assert building.build_one(Task((64, 2880, 512)), machine, ["fp8_fold"], 1)[:2] == (1, [])
    assert made == [
        *(("quantize_fold_kernel", "sm_90"), ("wide_rows_folded_kernel", "sm_90")),
        ("quantize_kernel", "sm_90"),  # the weight's
    ]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_command_builds_ahead_for_a_gpu_and_before_for_a_cpu(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[str]()

    class Recorded:
        def __init__(self, tasks: object, machine: object, routes: object, each: int, jobs: int) -> None:
            done.append(f"ahead {tasks == [TASKS[1]]} {each} {jobs}")

        def __call__(self, task: Task) -> None:
            done.append("asked")

        def close(self) -> None:
            done.append("closed")

    def run(*arguments: object, known: Known, **more: object) -> str:
        known(TASKS[0])
        done.append("measured")
        return "found"

    monkeypatch.setattr(building, "Ahead", Recorded)
    monkeypatch.setattr(cli_tune, "_build", lambda *arguments: done.append("built"))
    monkeypatch.setattr(tuner, "left_of", lambda *arguments: [TASKS[1]])
    monkeypatch.setattr(tuner, "run", run)
    options = Namespace(jobs=3, patience=2, budget=None, force=False)
    request = tuner.Request(TASKS, ["delayed"])
    assert cli_tune._measure(options, request, [torch.device(device)], tmp_path / "t.json", CPU) == "found"  # type: ignore[comparison-overlap]
    assert done == (["built", "measured"] if device == "cpu" else ["ahead True 5 3", "asked", "measured", "closed"])


def test_tasks_that_are_done_are_not_built_again(delayed: Delayed, tmp_path: Path) -> None:
    path, cpu = tmp_path / "t.json", torch.device("cpu")
    request = tuner.Request(TASKS, ["delayed"], 0.0)
    assert tuner.left_of(request, cpu, path) == list(TASKS)
    folder = unfinished.folder_of(path)
    with unfinished.claimed(folder, TASKS[1], request.about(cpu)) as kept:
        assert kept is not None
        kept.leave(finished=True)
    assert tuner.left_of(request, cpu, path) == [TASKS[0], TASKS[2]]
    assert tuner.left_of(tuner.Request(TASKS, ["reference"], 0.0), cpu, path) == list(TASKS)


def test_another_host_with_such_a_gpu_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, same in (("cuda", True), ("cpu", False)):
        about = []
        for host in ("one", "another"):
            monkeypatch.setattr(
                tuner, "describe_environment", lambda device, host=host: {"torch": "2", "platform": host}
            )
            about.append(tuner.Request(TASKS).about(torch.device(device)))
        assert (about[0] == about[1]) is same
