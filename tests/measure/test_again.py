"""Rows that are measured anew: their sizes alone, and what became of their times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxgemm.cpu import variants
from mxgemm.measure import again, trial, tuned
from mxgemm.measure.tune import Task
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.routing.tables import Row
from tests.command import output
from tests.measure.delayed import Delayed, call_us


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> Delayed:
    monkeypatch.setattr(trial, "call_us", call_us)
    monkeypatch.setenv("COLUMNS", "200")
    route = Delayed()
    monkeypatch.setitem(ROUTES, "delayed", route)
    return route


def row(m: int, source: str, us: float | None, route: str = "delayed", **more: Any) -> Row:
    return Row(m, 32, 64, route, source, "measured", us, **{"derived": "", "cpu": variants.kind() or None, **more})


def table(path: Path, *rows: Row, arch: str = "cpu") -> Path:
    tuned.write(path, arch, {one.source: {"title": one.source} for one in rows}, rows)
    return path


def test_the_rows_of_a_source_are_measured_and_their_times_compared(delayed: Delayed, tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.json",
        *(row(3, "june, fast", 10.0), row(5, "june, fast", 40.0), row(9, "july", 7.0)),
        *(row(3, "july", 198.0, "reference"), row(11, "july", 5.0, "reference")),
    )
    said = output("tune", "--again", "fast", "--device", "cpu", "-o", path)
    assert "delayed: 2 rows that the table had take 1.250 of their times in the median, 0.50 to 2.00" in said
    assert "20.0 us  10.0 us" in said
    found = {(one.m, one.route): one.us for one in tables.load(path).rows}
    kept = {(9, "delayed"): 7.0, (3, "reference"): 198.0, (11, "reference"): 5.0}
    assert found == {(3, "delayed"): 20.0, (5, "delayed"): 20.0, **kept}
    assert {m for m, _ in delayed.bound} == {3, 5}


def test_times_for_any_cpu_are_compared_and_stay(delayed: Delayed, tmp_path: Path) -> None:
    """A table of before rows named a kind of CPU."""
    if not variants.kind():
        pytest.skip("no kind of CPU is known here")
    path = table(tmp_path / "t.json", row(3, "june", 10.0, cpu=None))
    said = output("tune", "--again", "june", "--device", "cpu", "-o", path)
    assert "delayed: 1 rows that the table had take 2.000 of their times" in said
    assert {(one.cpu, one.us) for one in tables.load(path).rows} == {(None, 10.0), (variants.kind(), 20.0)}


def test_without_a_route_those_of_the_rows_are_measured(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.json",
        *(row(8, "a", 1.0, "w4_mma"), row(4, "a", 1.0, "w4_mma", a_format="bf16")),
        *(row(4, "a", None, "w4_mma", derived="fp8_fold"), row(64, "a", 1.0, "fp8_fold", derived="fp8_fold")),
        *(row(16, "a", 1.0, "w4_mma", derived="fp8_fold_compact"), row(2, "b", 1.0, "dequant_mm")),
        *(row(32, "a", 1.0, "fp8_fold", derived="fp8_fold_compact"), row(2, "a", 1.0, "of_tomorrow")),
        arch="sm_90",
    )
    found = again.again(tables.load(path), "a")
    sizes = [((4, 32, 64), "e2m1", "fast"), ((64, 32, 64), "e2m1", "fast"), ((32, 32, 64), "e2m1", "compact")]
    sizes += [((4, 32, 64), "bf16", "raw"), ((8, 32, 64), "e2m1", "raw")]
    sizes += [((16, 32, 64), "e2m1", "raw")]  # w4_mma reads a compact weight's bytes
    assert found.tasks == [Task(*one) for one in sizes]  # type: ignore[arg-type]
    assert found.routes == [name for name in ROUTES if name in ("w4_mma", "fp8_fold")]
    assert again.again(tables.load(path), "", ["dequant_mm"]) == ([Task((2, 32, 64), "e2m1", "raw")], ["dequant_mm"])
    with pytest.raises(ValueError, match="no row whose source's name holds 'c'"):
        again.again(tables.load(path), "c")


def test_what_the_command_refuses(tmp_path: Path) -> None:
    path = table(tmp_path / "t.json", row(3, "june", 10.0, "reference"))
    assert "--again: got it with sizes" in output("tune", "--again", "june", "--shape", "3,32,64", code=2)
    assert "--dry-run: got it with --output" in output("tune", "--dry-run", "-o", path, code=2)
    said = output("tune", "--again", "june", "--dry-run", "--device", "cpu", "-o", path)
    assert "3,32,64" in said
    assert "holds 'july'" in output("tune", "--again", "july", "--device", "cpu", "-o", path, code=2)
    assert json.loads(path.read_text())["rows"]


def test_the_shipped_rows_are_taken_where_the_table_is_yet_to_be_written(tmp_path: Path) -> None:
    named = ("--dry-run", "--device", "sm_90", "-o", tmp_path / "new.json")
    assert "57344,8192" in output("tune", "--again", "hopper", "--route", "fp8_fold", *named)
    assert "there is no table for sm_120" in output(
        "tune", "--again", "", "--dry-run", "--device", "sm_120", "-o", tmp_path / "new.json", code=2
    )
