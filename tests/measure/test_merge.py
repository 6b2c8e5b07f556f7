"""Tables of several machines or runs become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mxgemm.measure import tuned
from mxgemm.routing import tables
from mxgemm.routing.tables import Row
from tests.command import output


def row(m: int, us: float, source: str = "run", **more: Any) -> Row:
    return Row(m, 32, 64, more.pop("route", "reference"), source, more.pop("grade", "measured"), us, **more)


def table(path: Path, *rows: Row, title: str = "", arch: str = "cpu", rules: tuple[tables.Rule, ...] = ()) -> Path:
    sources = {one.source: {"title": title or path.stem} for one in (*rows, *rules)}
    tuned.write(path, arch, sources, rows, rules=rules)
    return path


def held(path: Path) -> set[tuple[int, str, float | None, str]]:
    found = tables.load(path)
    return {(one.m, one.route, one.us, found.sources[one.source]["title"]) for one in found.rows}


def test_the_later_row_stays_and_a_measured_one_before_a_predicted_one(tmp_path: Path) -> None:
    first = table(tmp_path / "first.json", row(1, 5.0), row(2, 5.0), row(3, 5.0, grade="predicted"))
    second = table(tmp_path / "second.json", row(1, 7.0), row(2, 4.0, grade="predicted"), row(3, 6.0), row(4, 8.0))
    tuned.merge(tmp_path / "both.json", [first, second])
    assert held(tmp_path / "both.json") == {
        (1, "reference", 7.0, "second"),
        (2, "reference", 5.0, "first"),
        (3, "reference", 6.0, "second"),
        (4, "reference", 8.0, "second"),
    }
    tuned.merge(tmp_path / "both.json", [first])  # into what is there
    assert (1, "reference", 5.0, "first") in held(tmp_path / "both.json")
    assert (4, "reference", 8.0, "second") in held(tmp_path / "both.json")


def test_other_routes_formats_forms_and_machines_stay(tmp_path: Path) -> None:
    others = [
        row(1, 6.0, route="cpu_native"),
        row(1, 7.0, a_format="bf16"),
        row(1, 8.0, derived="fp8_fold"),
        row(1, 9.0, cu_count=132),
    ]
    first, second = table(tmp_path / "a.json", row(1, 5.0)), table(tmp_path / "b.json", *others)
    assert len(tuned.merge(tmp_path / "c.json", [first, second]).rows) == 5


def test_rules_are_kept_once_and_names_of_sources_told_apart(tmp_path: Path) -> None:
    rule = tables.Rule("reference", "run", m_max=4)
    first = table(tmp_path / "a.json", row(1, 5.0), rules=(rule,))
    second = table(tmp_path / "b.json", row(2, 6.0), title="a", rules=(rule,))
    third = table(tmp_path / "c.json", row(3, 7.0))
    merged = tuned.merge(tmp_path / "d.json", [first, second, third])
    assert merged.rules == (rule,)
    assert {name: source["title"] for name, source in merged.sources.items()} == {"run": "a", "run (2)": "c"}


def test_the_command_merges_and_refuses_what_does_not_belong_together(tmp_path: Path) -> None:
    first, second = table(tmp_path / "a.json", row(1, 5.0)), table(tmp_path / "b.json", row(2, 6.0))
    out = tmp_path / "c.json"
    assert "2 tables merged: 2 rows for cpu" in output("tune", "--merge", first, "--merge", second, "-o", out)
    other = table(tmp_path / "d.json", row(3, 6.0), arch="gfx950")
    before = out.read_bytes()
    assert "got a table for gfx950, want one for cpu" in output("tune", "--merge", first, "--merge", other, "-o", out,
                                                                code=1)  # fmt: skip
    (tmp_path / "e.json").write_text("{")
    assert "e.json" in output("tune", "--merge", first, "--merge", tmp_path / "e.json", "-o", out, code=1)
    assert out.read_bytes() == before
    assert "--merge: got it with other options" in output("tune", "--merge", first, "--dry-run", code=2)


def test_a_table_of_another_kind_of_machine_is_not_added_to(tmp_path: Path) -> None:
    first = table(tmp_path / "a.json", row(1, 5.0))
    other = table(tmp_path / "b.json", row(1, 5.0), arch="gfx950")
    with pytest.raises(tables.TableError, match="got a table for gfx950, want one for cpu"):
        tuned.merge(other, [first])
