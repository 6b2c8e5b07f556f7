"""A run of tuning that is stopped, killed, out of time, out of disk or damaged, and what the next one makes of it."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mxgemm import files, notices
from mxgemm.files import FileError
from mxgemm.measure import trial, tuned, tuner, unfinished
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.step import ATTEMPTS
from mxgemm.measure.tune import Bench, Task
from mxgemm.measure.tuner import Event, Request
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from tests.command import output
from tests.measure.delayed import Delay, Delayed, call_us

CPU = torch.device("cpu")
TASKS = (Task((3, 32, 64)), Task((5, 32, 64)))
REQUEST = Request(TASKS, ["delayed"], 0.0)
EVERY = [(m, us) for m in (3, 5) for us in (30, 40, 20, 7, 13)]


class Killed(BaseException):
    """What no handler of the library's may take for an error: the end of the process."""


@pytest.fixture(autouse=True)
def delayed(monkeypatch: pytest.MonkeyPatch) -> Delayed:
    monkeypatch.setattr(trial, "call_us", call_us)
    monkeypatch.setattr(notices, "_said", {})
    route = Delayed()
    monkeypatch.setitem(ROUTES, "delayed", route)
    return route


def best(path: Path) -> dict[int, float | None]:
    return {row.m: row.us for row in tables.load(path).rows}


def stop_at(number: int, error: BaseException) -> Callable[[Event], None]:
    seen = list[Event]()

    def tell(event: Event) -> None:
        seen.append(event)
        if len([one for one in seen if one.measured and not one.done]) == number:
            raise error

    return tell


@pytest.mark.parametrize("number", [1, 3, 5, 7, 10])
@pytest.mark.parametrize("error", [Killed(), KeyboardInterrupt()], ids=["killed", "interrupted"])
def test_a_run_that_is_stopped_leaves_a_table_and_goes_on(
    number: int, error: BaseException, delayed: Delayed, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(type(error)):
        tuner.run(REQUEST, CPU, path, tell=stop_at(number, error))
    assert delayed.bound == EVERY[:number]
    right = [(m, us) for m, us in EVERY[:number] if us not in (7, 13)]
    assert best(path) == {m: min(us for n, us in right if n == m) for m in {m for m, _ in right}}
    found = tuner.run(REQUEST, CPU, path)
    again = delayed.bound[number:]
    assert again == EVERY[number - isinstance(error, Killed) :]  # of what was killed the last one is not in the file
    assert (found.end, len(found.timings), best(path)) == ("finished", 10, {3: 20.0, 5: 20.0})


def test_the_end_of_the_time_comes_between_two_configurations(delayed: Delayed, tmp_path: Path) -> None:
    path, now = tmp_path / "t.json", iter(range(100))
    ends = [tuner.run(REQUEST, CPU, path, budget=3.0, clock=lambda: float(next(now))).end for _ in range(4)]
    assert ends == ["budget", "budget", "budget", "finished"]
    assert delayed.bound == EVERY
    assert best(path) == {3: 20.0, 5: 20.0}
    assert tuner.gathered(REQUEST, CPU, path).end == "finished"
    assert tuner.run(REQUEST, CPU, path, budget=0.0).end == "finished"
    assert delayed.bound == EVERY


def test_a_configuration_that_ends_the_process_is_left_out_the_second_time(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "t.json", Bench.measure

    def measure(self: Bench, candidate: object, seconds: float) -> object:
        if candidate.config == Delay(20):  # type: ignore[attr-defined]
            raise Killed
        return real(self, candidate, seconds)  # type: ignore[arg-type]

    monkeypatch.setattr(Bench, "measure", measure)
    for _ in range(2 * ATTEMPTS):
        with pytest.raises(Killed):
            tuner.run(REQUEST, CPU, path)
    found = tuner.run(REQUEST, CPU, path)
    assert found.end == "finished"
    assert {timing.reason for timing in found.timings if timing.config == Delay(20)} == {
        f"the process ended while this ran, {ATTEMPTS} times"
    }
    assert best(path) == {3: 30.0, 5: 30.0}


def test_what_another_process_works_at_is_left_to_it(delayed: Delayed, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    folder = unfinished.folder_of(path)
    with unfinished.claimed(folder, TASKS[0], REQUEST.about(CPU)) as mine:
        assert mine is not None
        assert len(tuner.run(REQUEST, CPU, path).timings) == 5
        assert best(path) == {5: 20.0}
        assert tuner.gathered(REQUEST, CPU, path).end == "budget"
    assert {m for m, _ in delayed.bound} == {5}
    tuner.run(REQUEST, CPU, path)
    assert best(path) == {3: 20.0, 5: 20.0}


@pytest.mark.parametrize("damage", ["cut", "other", "route", "request"])
def test_a_damaged_file_of_an_unfinished_run_is_begun_anew_and_said_once(
    damage: str, delayed: Delayed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.json"
    tuner.run(REQUEST, CPU, path, budget=0.0)
    (kept,) = unfinished.folder_of(path).iterdir()
    document = json.loads(kept.read_text())
    if damage == "cut":
        kept.write_text(kept.read_text()[:-40])
    elif damage == "other":
        kept.write_text(json.dumps(document | {"timings": [{"route": 3}]}))
    elif damage == "route":
        kept.write_text(kept.read_text().replace('"delayed"', '"quantum"'))
    else:
        kept.write_text(json.dumps(document | {"about": {"environment": {}}}))
    with caplog.at_level(logging.WARNING, "mxgemm"):
        tuner.gathered(REQUEST, CPU, path)
        assert tuner.run(REQUEST, CPU, path).end == "finished"
    assert caplog.text.count("begun anew") == 1
    assert delayed.bound == [EVERY[0], *EVERY]


def test_a_full_disk_ends_no_run_and_loses_nothing(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, elsewhere = tmp_path / "t.json", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device.*it is in"):
        tuner.run(REQUEST, CPU, path)
    (kept,) = elsewhere.iterdir()
    assert best(kept) == {3: 20.0, 5: 20.0}
    assert not path.exists()


def test_what_did_not_get_into_the_table_gets_there_without_being_measured_again(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(tuned, "add", lambda *_, **__: (_ for _ in ()).throw(FileError("no room")))
        with pytest.raises(FileError, match="no room"):
            tuner.run(REQUEST, CPU, path)
    assert tuner.gathered(REQUEST, CPU, path).end == "budget"
    assert tuner.run(REQUEST, CPU, path).end == "finished"
    assert delayed.bound == EVERY
    assert best(path) == {3: 20.0, 5: 20.0}


def test_a_disk_that_is_full_for_a_while_costs_nothing(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, real, refused = tmp_path / "t.json", tuned.add, list[int]()

    def add(*arguments: object, **more: object) -> None:
        if not refused:
            refused.append(1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(tuned, "add", add)
    tuner.run(REQUEST, CPU, path)
    assert best(path) == {3: 20.0, 5: 20.0}
    assert caplog.text.count("the run goes on") == 1


def test_operands_that_cannot_be_made_are_said_and_the_others_come(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeated(self: Oracle, m: int, most_rows: int) -> Oracle:
        if m == 3:
            raise MemoryError("not so much")
        return real(self, m, most_rows)

    real = Oracle.repeated
    monkeypatch.setattr(Oracle, "repeated", repeated)
    found = tuner.run(REQUEST, CPU, tmp_path / "t.json")
    assert (found.end, found.failures) == ("finished", ["3,32,64 e2m1: MemoryError: not so much"])
    assert best(tmp_path / "t.json") == {5: 20.0}


def test_a_damaged_table_is_refused_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"kind": "mxgemm-routing-table", "version": 1')
    arguments = ["tune", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--route", "reference", "-o", path]
    assert "--force replaces it" in output(*arguments, code=1)
    output(*arguments, "--force")
    assert len(tables.load(path).rows) == 1


@pytest.mark.slow
def test_a_process_is_killed_and_the_same_command_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    sizes = [part for m in range(1, 7) for part in ("--shape", f"{m},32,64")]
    command = [sys.executable, "-m", "mxgemm", "tune", *sizes, "--device", "cpu", "--seconds", "0.3", "-o", str(path)]
    command += ["--route", "reference"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[2/6]"):
            process.kill()
    process.wait()
    done = len(tables.load(path).rows)
    assert 1 <= done < 6  # a table is written when little of the time goes there
    (unfinished.folder_of(path) / ".mxgemm-0123456789abcdef.partial").write_text("{")
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "goes on where it stopped" in again.stdout
    assert len(tables.load(path).rows) == 6
    assert again.stderr.count("] ") == 6 - done, again.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
    assert files.read_json(path)["kind"] == tables.KIND
