"""``mxgemm doctor --verify --tune --json``: a file that grows, survives its process, and is read back or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mxgemm.files import FileError
from mxgemm.measure import checkup, report, trial
from mxgemm.measure.doctor import OWN_TABLE, examine
from mxgemm.measure.report import Report, Request
from mxgemm.measure.spread import Spread, spread_of
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config, Launch, Operands
from mxgemm.routes.reference import Reference
from mxgemm.routing import tables
from tests.command import output

CPU = torch.device("cpu")
SHAPES = [(3, 32, 64), (2, 30, 64)]
REQUEST = Request(SHAPES, 0.0, None, True)
QUICK = ["doctor", "--verify", "--tune", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--json"]


class Killed(BaseException):
    """What no handler of the library's may take for an error: the end of the process."""


class Ends(Reference):
    """The reference; on sizes of 30 columns it does something else."""

    name = "ends"

    def __init__(self, how: Callable[[], None]) -> None:
        self.how = how

    def bind(self, problem: Problem, config: Config) -> Launch:
        right = super().bind(problem, config)

        def launch(operands: Operands) -> None:
            if problem.n == 30:
                self.how()
            right(operands)

        return launch


def timed(call: Callable[[], object], device: torch.device, seconds: float) -> Spread:
    call()
    return spread_of([5.0] * 5, "wall")


@pytest.fixture(autouse=True)
def two_routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(trial, "call_us", timed)
    every = dict(ROUTES)
    ROUTES.clear()
    ends = Ends(lambda: None)
    ROUTES.update({"reference": every["reference"], "ends": ends})
    yield ends
    ROUTES.clear()
    ROUTES.update(every)


def go(path: Path | None, request: Request = REQUEST, **more: Any) -> tuple[str, dict[str, Any]]:
    made = Report(request, examine(), CPU, path)
    end = checkup.run(request, made, CPU, **more)
    return end, made.document


def steps(document: dict[str, Any]) -> list[str]:
    return [entry["step"] for part in ("results", "baselines", "tuned") for entry in document[part]]


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    end, document = go(path)
    assert end == "finished"
    found = report.load(path)
    assert found == json.loads(path.read_text()) == document
    assert found["counts"] == {"passed": 2 * (4 + 2), "failed": 0, "refused": 0, "missing": len(SHAPES)}
    assert (len(found["baselines"]), len(found["tuned"])) == (2, 4)
    assert [(best["n"], best["us"]) for best in found["best"]] == [(30, 5.0), (32, 5.0)]
    assert all(best["share"] == 5.0 / best["torch_mm_us"] > 0 for best in found["best"])
    rows = tables.parse(found["table"], "report").rows
    assert {(row.m, row.route, row.grade) for row in rows} == {
        (m, route, "measured") for m in (3, 2) for route in ("reference", "ends")
    }
    assert [session["ended"] for session in found["sessions"]] == ["finished"]


def test_a_run_without_a_file_gives_the_same_report(tmp_path: Path) -> None:
    _, kept = go(tmp_path / "report.json")
    _, loose = go(None)
    assert steps(kept) == steps(loose)


def test_what_is_left_is_done_by_the_next_runs(tmp_path: Path) -> None:
    path, ends = tmp_path / "report.json", []
    while not ends or ends[-1] != "finished":
        end, document = go(path, budget=0.0)
        ends.append(end)
        assert report.load(path)["finished"] == (end == "finished")
    assert ends[:-1] == ["budget"] * (len(ends) - 1)
    _, whole = go(None)
    assert steps(document) == steps(whole), "each once, in order"
    assert len(ends) == len(document["sessions"]) == len(steps(document))


def test_the_time_of_a_run_is_what_it_was_given(tmp_path: Path) -> None:
    now = iter(range(1000))
    end, document = go(tmp_path / "r.json", budget=10.0, clock=lambda: float(next(now)))
    assert end == "budget"
    assert 10 <= document["sessions"][0]["seconds"] <= 12


def test_a_step_in_which_the_process_ends_twice_is_left_out(tmp_path: Path, two_routes: Ends) -> None:
    def end_here() -> None:
        raise Killed

    path, two_routes.how = tmp_path / "report.json", end_here
    deaths = 0
    for _ in range(20):
        try:
            end, document = go(path)
            break
        except Killed:
            deaths += 1
            assert "ends" in json.loads(path.read_text())["running"]["step"]
    assert end == "finished"
    lost = [entry for part in ("results", "tuned") for entry in document[part] if entry["state"] == "failed"]
    assert [entry["reason"] for entry in lost] == ["the process ended while this ran, 2 times"] * 3
    assert {(entry["route"], entry["n"]) for entry in lost} == {("ends", 30)}
    assert deaths == 2 * len(lost)
    assert [session["ended"] for session in document["sessions"]] == ["killed"] * deaths + ["finished"]


def test_operands_that_end_the_process_or_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = MXTensor.prepare

    def prepare(self: MXTensor, *arguments: Any, **more: Any) -> MXTensor:
        if self.shape[0] == 30:
            raise error
        return right(self, *arguments, **more)

    monkeypatch.setattr(MXTensor, "prepare", prepare)
    error: BaseException = RuntimeError("no memory")
    end, document = go(tmp_path / "raises.json")
    assert end == "finished"
    lost = [entry for entry in document["results"] if entry["route"] == checkup.OPERANDS]
    assert [(entry["n"], entry["reason"]) for entry in lost] == [(30, "RuntimeError: no memory")] * 2
    assert {entry["n"] for entry in document["tuned"]} == {32}
    error = Killed()
    for _ in range(20):
        try:
            end, document = go(tmp_path / "ends.json")
            break
        except Killed:
            pass
    assert end == "finished"
    lost = [entry for entry in document["results"] if entry["route"] == checkup.OPERANDS]
    assert {(entry["n"], entry["reason"]) for entry in lost} == {(30, "the process ended while this ran, 2 times")}


def test_a_device_that_answers_no_longer_ends_the_run(
    tmp_path: Path, two_routes: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    two_routes.how = fail
    monkeypatch.setattr(checkup, "answers", lambda device: False)
    path, ends = tmp_path / "report.json", []
    while not ends or ends[-1] != "finished":
        end, document = go(path)
        ends.append(end)
    failed = [entry for part in ("results", "tuned") for entry in document[part] if entry["state"] == "failed"]
    assert len(failed) == 3
    assert ends == ["device"] * 3 + ["finished"], "a new process for each"
    monkeypatch.undo()
    assert checkup.answers(CPU)
    assert not checkup.answers(torch.device("meta"))


def test_an_interrupt_leaves_the_report(tmp_path: Path, two_routes: Ends) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    path, two_routes.how = tmp_path / "report.json", interrupt
    with pytest.raises(KeyboardInterrupt):
        go(path)
    found = report.load(path)
    assert (found["sessions"][0]["ended"], found["running"]) == ("interrupted", None)
    assert found["counts"]["passed"] > 4
    two_routes.how = lambda: None
    assert go(path)[0] == "finished"


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another kind": (lambda d: d | {"kind": "mxgemm-bench"}, "is not JSON with"),
    "an earlier release": (lambda d: d | {"version": 1}, "version: got 1, want 2"),
    "another machine": (lambda d: d | {"environment": d["environment"] | {"arch": "gfx950"}}, "arch 'gfx950'"),
    "another torch": (lambda d: d | {"environment": d["environment"] | {"torch": "2.0"}}, "a report with torch '2.0'"),
    "other sizes": (lambda d: d | {"request": d["request"] | {"shapes": [[1, 32, 64]]}}, r"shapes \[\[1, 32, 64\]\]"),
    "another request": (lambda d: d | {"request": d["request"] | {"tune": False}}, "tune False, want True"),
    "other tables": (lambda d: d | {"found": d["found"] | {"aiter": "0.1.7"}}, "aiter '0.1.7'"),
    "a field less": (lambda d: {name: value for name, value in d.items() if name != "results"}, "missing fields"),
    "a time below 0": (lambda d: d["tuned"][0].update(us=-1.0) or d, r"tuned\[0\].us: got -1.0"),
    "an unknown state": (lambda d: d["results"][0].update(state="fine") or d, r"results\[0\].state: got 'fine'"),
    "an unknown route": (lambda d: d["tuned"][0].update(route="magic") or d, r"tuned\[0\].route: got 'magic'"),
    "no configuration": (lambda d: d["tuned"][0].update(config={"x": 1}) or d, r"tuned\[0\].config: got field 'x'"),
    "a broken table": (lambda d: d["table"].update(version=7) or d, "table: version: got 7"),
    "no object": (lambda d: [d], "is not JSON with"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_or_foreign_report_is_refused_by_name(what: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    go(path, budget=0.0)
    go(path, budget=1e9)
    damage, words = DAMAGE[what]
    text = json.dumps(damage(json.loads(path.read_text())))
    path.write_text(text)
    with pytest.raises(FileError, match=words) as refusal:
        go(path)
    assert str(path) in str(refusal.value)
    assert "--force" in str(refusal.value)
    assert path.read_text() == text
    Report(REQUEST, examine(), CPU, path, force=True).begin()


def test_half_a_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    go(path)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(FileError, match="not JSON"):
        report.load(path)
    with pytest.raises(FileError, match=r"report.json: not JSON .*--force"):
        go(path)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert "unfinished: the time is over" in output(*QUICK, str(path), "--budget", "0")
    assert not report.load(path)["finished"]
    said = output(*QUICK, str(path))
    assert "goes on where it stopped" in said
    assert "8 passed, 0 failed" in said
    before = path.read_text()
    assert "nothing is left to do" in output(*QUICK, str(path), "--budget", "0")
    assert path.read_text() == before
    read = output("doctor", "--read", str(path))
    assert said[said.index("M,N,K") :].startswith(read[read.index("M,N,K") :])
    assert torch.__version__ in read
    assert "want it alone, or with --table" in output("doctor", "--read", str(path), "--verify", code=2)
    assert "want --verify too" in output("doctor", "--tune", code=2)
    table = tmp_path / "mine.json"
    assert f"MXGEMM_TABLES={table}" in output("doctor", "--read", str(path), "--table", str(table))
    assert {row.route for row in tables.load(table).rows} == {"reference", "ends"}
    assert "want --read too" in output("doctor", "--table", str(table), code=2)
    path.write_text("{}")
    assert "report.json" in output("doctor", "--read", str(path), code=1)


def test_a_report_goes_on_whatever_was_tuned_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    go(path, budget=0.0)
    monkeypatch.setattr("mxgemm.measure.doctor._own_table", lambda arch: "cpu.json (3 rows)")
    end, document = go(path)
    assert end == "finished"
    assert document["found"][OWN_TABLE] == "none" or document["found"][OWN_TABLE].startswith("left out")
