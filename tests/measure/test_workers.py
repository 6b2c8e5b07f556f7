"""Several devices share the tasks of a run. Processes are threads here, but for one test."""

from __future__ import annotations

import multiprocessing.dummy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mxgemm import notices
from mxgemm.files import FileError
from mxgemm.measure import trial, tuner, unfinished, workers
from mxgemm.measure.step import ATTEMPTS
from mxgemm.measure.tune import Bench, Task
from mxgemm.measure.tuner import Event, Request
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from tests.command import output
from tests.measure.delayed import Delay, Delayed, call_us

CPU = torch.device("cpu")
TASKS = tuple(Task((m, 32, 64)) for m in range(1, 9))
REQUEST = Request(TASKS, ["delayed"], 0.0)
TWO = [torch.device("cpu", 0), torch.device("cpu", 1)]


class Threads:
    """Processes that are threads; the one whose number is in ``dies`` ends in its first configuration."""

    Queue = staticmethod(multiprocessing.dummy.Queue)

    def __init__(self, dies: tuple[int, ...] = ()) -> None:
        self.dies, self.begun = dies, list[str]()

    def Process(self, *, target: Any, args: Any, daemon: bool) -> Any:
        number, context = len(self.begun), self
        self.begun.append(args[1])

        class Thread(threading.Thread):
            exitcode = None

            def run(self) -> None:
                try:
                    target(*args)
                except SystemExit:
                    self.exitcode = -9

        thread = Thread(daemon=daemon)
        thread.dies = number in context.dies  # type: ignore[attr-defined]
        return thread


@pytest.fixture(autouse=True)
def delayed(monkeypatch: pytest.MonkeyPatch) -> Delayed:
    monkeypatch.setattr(trial, "call_us", call_us)
    monkeypatch.setattr(notices, "_said", {})
    monkeypatch.setattr(workers, "WAIT", 0.01)
    real = Bench.measure

    def measure(self: Bench, candidate: Any, seconds: float) -> Any:
        if getattr(threading.current_thread(), "dies", False) and candidate.config == Delay(40):
            raise SystemExit  # as a fault of the device ends a process
        return real(self, candidate, seconds)

    monkeypatch.setattr(Bench, "measure", measure)
    route = Delayed()
    monkeypatch.setitem(ROUTES, "delayed", route)
    return route


def test_each_task_is_done_once(delayed: Delayed, tmp_path: Path) -> None:
    path, events = tmp_path / "t.json", list[Event]()
    found = workers.run(REQUEST, TWO, path, tell=events.append, context=Threads())
    assert (found.end, found.failures, len(found.timings)) == ("finished", [], 8 * 5)
    assert sorted(delayed.bound) == sorted((m, us) for m in range(1, 9) for us in (30, 40, 20, 7, 13))
    assert {row.m: row.us for row in tables.load(path).rows} == dict.fromkeys(range(1, 9), 20.0)
    assert sorted(event.task for event in events if event.done) == sorted(map(str, TASKS))
    assert any(event.best.startswith("delayed 20") for event in events)


def test_a_process_that_dies_is_followed_by_another(delayed: Delayed, tmp_path: Path) -> None:
    path, context = tmp_path / "t.json", Threads(dies=(0, 1, 2))
    found = workers.run(REQUEST, TWO, path, context=context)
    assert found.end == "finished"
    assert len(context.begun) == 5
    assert {row.m: row.us for row in tables.load(path).rows} == dict.fromkeys(range(1, 9), 20.0)


def test_a_device_that_never_answers_is_given_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuner.run

    def run(request: Request, device: torch.device, *arguments: Any, **more: Any) -> Any:
        if device.index == 1:
            raise SystemExit
        return real(request, device, *arguments, **more)

    monkeypatch.setattr(tuner, "run", run)
    context = Threads()
    found = workers.run(REQUEST, TWO, tmp_path / "t.json", context=context)
    assert (found.end, found.failures, len(context.begun)) == ("finished", [], 2 + ATTEMPTS)
    alone = workers.run(REQUEST, TWO[1:], tmp_path / "u.json", context=Threads())
    assert (alone.end, alone.failures) == ("budget", ["cpu:1: its process ended with status -9"] * (1 + ATTEMPTS))


def test_a_table_that_cannot_be_written_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **more: Any) -> Any:
        raise FileError("t.json: cannot be written; it is in /tmp/x")

    monkeypatch.setattr(tuner, "run", run)
    with pytest.raises(FileError, match="cannot be written; it is in /tmp/x"):
        workers.run(REQUEST, TWO, tmp_path / "t.json", context=Threads())


def test_the_time_is_one_for_all(tmp_path: Path) -> None:
    found = workers.run(REQUEST, TWO, tmp_path / "t.json", budget=0.0, context=Threads())
    assert (found.end, len(found.timings)) == ("budget", 2)  # the first of each
    assert len(list(unfinished.folder_of(tmp_path / "t.json").glob("*.json"))) == 2


@pytest.mark.exhaustive
def test_two_real_processes(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    sizes = [part for m in range(1, 5) for part in ("--shape", f"{m},32,64")]
    devices = ["--device", "cpu", "--device", "cpu:1"]
    text = output("tune", *sizes, *devices, "--seconds", "0", "--route", "reference", "-o", path)
    assert "4 configurations measured" in text
    assert {row.m for row in tables.load(path).rows} == {1, 2, 3, 4}
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
