"""Tuning: what is measured, what is left out, and the table that comes of it."""

from __future__ import annotations

import json
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.files import FileError
from mxgemm.measure import trial, tune, tuned, tuner, unfinished
from mxgemm.measure.search import PATIENCE, ordered
from mxgemm.measure.tune import KNOWN, Task, Timing
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config
from mxgemm.routing import tables
from mxgemm.routing.router import choose
from mxgemm.triton.tile import tile_refusal
from mxgemm_cli import tuning
from tests.command import output
from tests.measure.delayed import Delay, Delayed, call_us

CPU = torch.device("cpu")
SHAPE = (3, 32, 64)
NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
BOTH = ("delayed", "reference")


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> Delayed:
    monkeypatch.setattr(trial, "call_us", call_us)
    route = Delayed()
    monkeypatch.setitem(ROUTES, "delayed", route)
    return route


def go(path: Path, *shapes: tuple[int, int, int], routes: tuple[str, ...] = BOTH) -> list[Timing]:
    request = tuner.Request([Task(shape) for shape in shapes], routes, 0.0)
    found = tuner.run(request, CPU, path)
    assert found.end == "finished"
    unfinished.forget(unfinished.folder_of(path), request.tasks)
    return found.timings


def test_the_fastest_right_configuration_of_each_route_is_kept(delayed: Delayed, tmp_path: Path) -> None:
    timings = go(tmp_path / "t.json", SHAPE, (3, 32, 32))
    measured = {(t.shape, t.route, t.config): (t.us, t.reason) for t in timings}
    assert measured[SHAPE, "delayed", Delay(7)] == (None, "RuntimeError: does not fit")
    assert measured[SHAPE, "delayed", Delay(13)] == (None, "an error beyond its gate")
    assert (SHAPE, "delayed", Delay(-1)) not in measured
    assert len(timings) == len(measured) == 5 + 2
    rows = tables.load(tmp_path / "t.json").rows
    assert {(row.m, row.n, row.k, row.route, row.us, tuple(row.config.items())) for row in rows} == {
        (3, 32, 32, "reference", 99.0, ()),
        (3, 32, 64, "delayed", 20.0, (("us", 20),)),
        (3, 32, 64, "reference", 99.0, ()),
    }
    assert {(row.grade, row.derived, row.a_format) for row in rows} == {("measured", "", "e2m1")}


def test_a_route_that_is_beaten_is_left(delayed: Delayed, tmp_path: Path) -> None:
    delayed.tried = tuple(range(100, 200))
    assert len(go(tmp_path / "t.json", SHAPE, routes=("delayed",))) == 1 + PATIENCE


def test_the_router_takes_what_was_tuned(delayed: Delayed, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mine.json"
    go(path, SHAPE)
    choice = choose(Problem(*SHAPE, KNOWN_MACHINES["cpu"]), tables=[path])
    assert (choice.route, choice.config, choice.table) == (delayed, Delay(20), str(path))
    assert choice.reason.startswith("measured row for exactly this size")
    assert f"  table     {path}" in str(mxgemm.explain(*SHAPE, device="cpu", tables=[path]))
    name, source = tuned.source_of(CPU, "fast", NOW)
    assert name == "tune 2026-01-02T00:00:00+00:00"
    for part in ("mxgemm tune on CPU", "2026-01-02", f"torch {torch.__version__}", f"mxgemm {mxgemm.__version__}"):
        assert part in source["title"]


def test_a_table_grows_and_keeps_other_routes_of_a_size(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    path = tmp_path / "mine.json"
    go(path, SHAPE, (5, 32, 64), routes=("reference",))
    go(path, SHAPE, routes=("delayed",))
    delayed.tried = (25,)
    monkeypatch.setattr(Delayed, "configs", lambda self, problem: [])
    go(path, SHAPE, routes=("delayed",))
    rows = {(row.m, row.route, row.us) for row in tables.load(path).rows}
    assert rows == {(3, "delayed", 25.0), (3, "reference", 99.0), (5, "reference", 99.0)}
    delayed.tried = (13,)  # right no longer: what the table says of it goes, and of nothing else
    go(path, SHAPE, (5, 32, 64), routes=("delayed",))
    assert {(row.m, row.route) for row in tables.load(path).rows} == {(3, "reference"), (5, "reference")}
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]
    with pytest.raises(ValueError, match="got a table for cpu, want one for gfx950"):
        tuned.write(path, "gfx950", {}, [])
    path.write_text("{")
    with pytest.raises(FileError, match="not JSON"):
        tuned.write(path, "cpu", {}, [])


def test_configurations_of_nearby_rows_are_candidates(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this release, the nearest first; one that is illegal or of another release is none."""
    path = tmp_path / "mine.json"
    same = {"n": 32, "k": 64, "route": "delayed", "grade": "measured", "us": 5.0, "source": "t"}
    near = [(3, {"us": 17}), (4, {"us": 18}), (6, {"us": 19}), (12, {"us": 21})]
    rows = [{**same, "m": m, "config": config} for m, config in [*near, (2, {"us": -4}), (1, {"speed": 9})]]
    document = {"kind": tables.KIND, "version": 1, "arch": "cpu", "sources": {"t": {}}, "rows": rows}
    path.write_text(json.dumps(document))
    monkeypatch.setattr(tune, "of_user", lambda arch: tables.from_user(arch, [path]))
    found = tune.candidates(Problem(*SHAPE, KNOWN_MACHINES["cpu"]), ["delayed"])
    known = [one.config.us for one in found if one.known]  # type: ignore[attr-defined]
    assert known[:2] == [17, 18]
    assert len(known) <= KNOWN
    assert -4 not in {one.config.us for one in found}  # type: ignore[attr-defined]


def test_what_is_best_for_another_format_of_a_is_tried(
    delayed: Delayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    same = {"n": 32, "k": 64, "route": "delayed", "grade": "measured", "us": 5.0, "source": "t"}
    of = [(3, "e2m1", 17), (3, "bf16", 18), (3, "bf16", 17), (6, "e2m1", 19), (3, "e4m3", 20)]
    rows = [{**same, "m": m, "a_format": a_format, "config": {"us": us}} for m, a_format, us in of]
    document = {"kind": tables.KIND, "version": 1, "arch": "cpu", "sources": {"t": {}}, "rows": rows}
    path.write_text(json.dumps(document))
    monkeypatch.setattr(tune, "of_user", lambda arch: tables.from_user(arch, [path]))
    found = tune.candidates(Problem(*SHAPE, KNOWN_MACHINES["cpu"]), ["delayed"])
    assert [one.config.us for one in found if one.known] == [17, 20, 18]  # type: ignore[attr-defined]
    assert ordered(found)[1:3] == found[1:3]


def test_formats_and_forms_have_rows_of_their_own(delayed: Delayed, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for form, a_format in (("fast", "e2m1"), ("raw", "bf16"), ("raw", "e2m1")):
        tuner.run(tuner.Request([Task(SHAPE, a_format, form)], ["reference"], 0.0), CPU, path)  # type: ignore[arg-type]
    table = tables.load(path)
    assert sorted(row.a_format for row in table.rows) == ["bf16", "e2m1"]  # a CPU has one form of a weight
    assert all("not prepared" in table.sources[row.source]["covers"] for row in table.rows)


def test_triton_candidates_are_legal_and_many() -> None:
    problem = Problem(16, 2112, 7168, KNOWN_MACHINES["gfx950"])
    candidates = ROUTES["a16wfp4"].candidates(problem)
    legal = [c for c in candidates if tile_refusal(problem, c) is None]  # type: ignore[arg-type]
    assert len(set(candidates)) == len(candidates) > 30
    assert len(legal) > 30
    # 7168 is 28 blocks of 256: of eight splits the last would have no work.
    assert {c.split_k for c in legal if c.block_k == 256} == {1, 2, 4}  # type: ignore[attr-defined]
    assert {c.split_k for c in legal if c.block_k == 128} == {1, 2, 4, 8}  # type: ignore[attr-defined]
    assert {c.block_m for c in legal} == {16}  # type: ignore[attr-defined]
    assert ROUTES["reference"].candidates(problem) == [Config()]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.json"
    arguments = ["tune", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0.01", "--output", str(path)]
    assert f"MXGEMM_TABLES={path}" in output(*arguments, "--route", "reference")
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["m"], row["n"], row["k"], row["route"], row["grade"]) == (3, 32, 64, "reference", "measured")
    assert row["us"] > 0
    assert "nothing was measured" in output(*arguments, "--route", "fp8_fold", code=1)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"arch": "gfx950"}))
    monkeypatch.setattr(tuner, "run", lambda *_, **__: pytest.fail("measured for a table that it cannot add to"))
    refused = output(*arguments, "--route", "reference", code=1)
    assert "got a table for gfx950, want one for cpu" in refused
    monkeypatch.undo()
    path.unlink()
    assert "--route: got 'quantum'" in output(*arguments, "--route", "quantum", code=2)
    assert tuning.PATIENCE == PATIENCE


def test_a_dry_run_measures_nothing_and_needs_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "run", lambda *_, **__: pytest.fail("measured"))
    monkeypatch.setenv("COLUMNS", "200")
    text = output("tune", "--dry-run", "--device", "sm_100", "--shape", "16,4096,4096", "--a-format", "bf16")
    assert "nothing was measured; estimates for NVIDIA B200" in text
    assert "reference" in text
    assert "16,4096,4096" in text
    assert "--dry-run: got it with --output" in output("tune", "--dry-run", "-o", tmp_path / "t.json", code=2)
