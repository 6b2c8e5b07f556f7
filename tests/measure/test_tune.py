"""Tuning: what is measured, what is left out, and the table that comes of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.files import FileError
from mxgemm.measure import trial, tune
from mxgemm.measure.spread import Spread, spread_of
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config, Launch, Operands, Route
from mxgemm.routes.reference import Reference
from mxgemm.routing import tables
from mxgemm.routing.router import choose
from mxgemm.triton.tile import tile_refusal
from tests.command import output

CPU = torch.device("cpu")
SHAPE = (3, 32, 64)
NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Delay(Config):
    us: int = 30


class Delayed(Reference):
    """The reference, with configurations that are fast, slow, illegal, broken and wrong."""

    name = "delayed"
    config_type = Delay

    def can_implement(self, problem: Problem) -> Refusal | None:
        return Refusal("k", problem.k, "64") if problem.k != 64 else None

    def candidates(self, problem: Problem) -> Sequence[Delay]:
        return [Delay(us) for us in (40, 20, 30, -1, 7, 13)]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        assert isinstance(config, Delay)
        return Refusal("us", config.us, "a positive delay") if config.us < 0 else None

    def bind(self, problem: Problem, config: Config) -> Launch:
        assert isinstance(config, Delay)
        right = super().bind(problem, Config())

        def launch(operands: Operands) -> None:
            if config.us == 7:
                raise RuntimeError("does not fit")
            right(operands)
            launch.us = config.us  # type: ignore[attr-defined]
            if config.us == 13:
                operands.out[-1, -1] += 1

        return launch


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> Route:
    def call_us(call: Callable[[], object], device: torch.device, seconds: float) -> Spread:
        call()
        launch = call.__closure__[0].cell_contents  # type: ignore[attr-defined]  # the launcher that is timed
        return spread_of([float(getattr(launch, "us", 99))] * 5, "wall")

    monkeypatch.setattr(trial, "call_us", call_us)
    route = Delayed()
    monkeypatch.setitem(ROUTES, "delayed", route)
    return route


def test_the_fastest_right_configuration_of_each_route_is_kept(delayed: Route) -> None:
    timings = list(tune.tune([SHAPE, (3, 32, 32)], device=CPU, routes=["delayed", "reference"]))
    measured = {(t.shape, t.route, t.config): (t.us, t.reason) for t in timings}
    assert measured[SHAPE, "delayed", Delay(7)] == (None, "RuntimeError: does not fit")
    assert measured[SHAPE, "delayed", Delay(13)] == (None, "an error beyond its gate")
    assert (SHAPE, "delayed", Delay(-1)) not in measured
    assert len(timings) == len(measured) == 5 + 2
    rows = tune.rows(timings, CPU, "e2m1", "me")
    assert [(row.m, row.n, row.k, row.route, row.us, row.config) for row in rows] == [
        (3, 32, 32, "reference", 99.0, {}),
        (3, 32, 64, "delayed", 20.0, {"us": 20}),
        (3, 32, 64, "reference", 99.0, {}),
    ]
    assert {row.grade for row in rows} == {"measured"}


def test_the_router_takes_what_was_tuned(delayed: Route, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mine.json"
    name, source = tune.source_of(CPU, True, NOW)
    timings = list(tune.tune([SHAPE], device=CPU, routes=["delayed", "reference"]))
    tune.write(path, "cpu", name, source, tune.rows(timings, CPU, "e2m1", name))
    for part in ("mxgemm tune on CPU", "2026-01-02", f"torch {torch.__version__}", f"mxgemm {mxgemm.__version__}"):
        assert part in source["title"]
    choice = choose(Problem(*SHAPE, KNOWN_MACHINES["cpu"]), tables=[path])
    assert (choice.route, choice.config) == (delayed, Delay(20))
    assert choice.reason == "measured row for exactly this size"
    assert choice.source == source["title"]


def test_a_table_grows(delayed: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    path = tmp_path / "mine.json"

    def add(shape: tuple[int, int, int], name: str, route: str) -> None:
        timings = list(tune.tune([shape], device=CPU, routes=[route]))
        tune.write(path, "cpu", name, {"title": name}, tune.rows(timings, CPU, "e2m1", name))

    add(SHAPE, "first", "reference")
    add((5, 32, 64), "second", "reference")
    add(SHAPE, "third", "delayed")
    table = tables.load(path)
    assert {(row.m, row.route, row.source) for row in table.rows} == {
        (3, "delayed", "third"),
        (5, "reference", "second"),
    }
    assert set(table.sources) == {"second", "third"}
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]
    with pytest.raises(ValueError, match="got a table for cpu, want one for gfx950"):
        tune.write(path, "gfx950", "x", {}, [])
    path.write_text("{")
    with pytest.raises(FileError, match="not JSON"):
        tune.write(path, "cpu", "x", {}, [])


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
    monkeypatch.setattr(tune, "tune", lambda *_, **__: pytest.fail("measured for a table that it cannot add to"))
    refused = output(*arguments, "--route", "reference", code=1)
    assert "got a table for gfx950, want one for cpu" in refused
    monkeypatch.undo()
    path.unlink()
    assert "--route: got 'quantum'" in output(*arguments, "--route", "quantum", code=2)
