"""Rows that contradict others go: the fewest, by a rule that does not depend on order; all else stays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mxgemm.cpu import variants
from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import settled, trial, tuned
from mxgemm.measure.settled import contradictions, settle
from mxgemm.routes import ROUTES
from mxgemm.routing import router, tables
from mxgemm.routing.explain import problem_of
from mxgemm.routing.tables import Row, Table
from tests.command import output
from tests.measure.delayed import Delay, Delayed

SM_90, CPU = KNOWN_MACHINES["sm_90"], KNOWN_MACHINES["cpu"]
FAST, SLOW = "fp8_fold", "dequant_mm"


def row(m: int, us: float | None, route: str, derived: str | None = "fp8_fold", **more: Any) -> Row:
    return Row(m, 4096, 2048, route, more.pop("source", "run"), "measured", us, derived=derived, **more)


def table(path: Path, rows: Sequence[Row], arch: str = "sm_90") -> Table:
    sources = {"run": {"title": "run"}, "kernel": {"title": "kernel", "scope": "kernel"}}
    tuned.write(path, arch, {name: sources[name] for name in {one.source for one in rows}}, rows)
    return tables.load(path)


def gone(found: Sequence[settled.Dropped]) -> list[tuple[int, str]]:
    return sorted((one.row.m, one.row.route) for one in found)


def alternating(*shares: float) -> list[Row]:
    """fp8_fold's time grows with M; dequant_mm's is such a share of it."""
    ms = [64 << step for step in range(len(shares))]
    return [row(m, 10.0 * m, FAST) for m in ms] + [row(m, 10.0 * m * s, SLOW) for m, s in zip(ms, shares, strict=True)]


def test_a_choice_that_flickers_loses_the_rows_that_cost_least(tmp_path: Path) -> None:
    rows = alternating(0.5, 2.0, 0.99, 2.0, 0.5, 0.5)  # dequant_mm, fp8_fold, dequant_mm for 1 %, fp8_fold, dequant_mm
    (found,) = contradictions(table(tmp_path / "t.json", rows), SM_90)
    assert gone([found]) == [(256, SLOW)]
    assert str(found) == "256,4096,2048 e2m1 dequant_mm: the fastest route would change 4 times along M"
    three = alternating(0.5, 2.0, 0.99, 2.0, 2.0, 2.0)
    assert contradictions(table(tmp_path / "u.json", three), SM_90) == []


def test_the_order_of_rows_is_nothing_to_it(tmp_path: Path) -> None:
    rows = alternating(0.5, 2.0, 0.9, 1.5, 0.8, 1.2, 0.7, 1.9)
    found = contradictions(table(tmp_path / "t.json", rows), SM_90)
    assert found
    for seed in range(4):
        random.Random(seed).shuffle(rows)
        assert contradictions(table(tmp_path / f"{seed}.json", rows), SM_90) == found


def test_what_is_left_changes_seldom_whatever_there_was(tmp_path: Path) -> None:
    for seed in range(12):
        draw = random.Random(seed)
        names = FAST, SLOW, "w4_mma", "w4_wgmma"
        rows = [
            row(1 << step, draw.uniform(1, 2) * 2**step, name)
            for step in range(13)
            for name in names
            if name != "w4_mma" or step <= 5
        ]
        path = tmp_path / f"{seed}.json"
        before = table(path, rows)
        found = settle(path, SM_90)
        assert 0 < len(found) < len(rows) / 2
        assert len(tables.load(path).rows) == len(before.rows) - len(found)
        assert contradictions(tables.load(path), SM_90) == []


def test_forms_formats_and_machines_are_compared_by_themselves(tmp_path: Path) -> None:
    flickering = alternating(0.5, 2.0, 0.99, 2.0, 0.5, 0.5)
    rows = [
        one if one.route == FAST else row(one.m, one.us, SLOW, "bf16")
        for one in flickering
    ]  # fmt: skip
    assert contradictions(table(tmp_path / "t.json", rows), SM_90) == []
    assert contradictions(table(tmp_path / "u.json", flickering), SM_90, {(4096, 4096)}) == []
    assert len(contradictions(table(tmp_path / "u.json", []), SM_90, {(4096, 2048)})) == 1


def test_rows_for_any_form_count_and_stay_as_do_those_of_kernels_and_without_a_time(tmp_path: Path) -> None:
    rows = alternating(0.5, 2.0, 0.99, 2.0, 0.5, 0.5)
    of_any = [one if one.route == FAST else row(one.m, one.us, SLOW, None) for one in rows]
    found = contradictions(table(tmp_path / "t.json", of_any), SM_90)
    assert {one.row.route for one in found} == {FAST}
    kernels = [row(one.m, one.us, one.route, source="kernel") for one in rows]
    assert contradictions(table(tmp_path / "u.json", kernels), SM_90) == []
    assert contradictions(table(tmp_path / "v.json", [row(one.m, None, one.route) for one in rows]), SM_90) == []


def test_a_row_that_is_beaten_where_it_is_warmed_goes(tmp_path: Path) -> None:
    """At M = 32 w4_wgmma is taken, so that a warm-up never compiles what w4_mma's row for 32 says for M = 25."""
    few, many = {"tiles": 1, "warps_k": 8, "depth": 1}, {"tiles": 2, "warps_k": 8, "depth": 1}
    wgmma = [row(m, 9.0, "w4_wgmma") for m in (32, 64)]
    rows = [row(16, 5.0, "w4_mma", config=few), row(32, 10.0, "w4_mma", config=many), *wgmma]
    (found,) = contradictions(table(tmp_path / "t.json", rows), SM_90)
    assert gone([found]) == [(32, "w4_mma")]
    assert str(found).startswith("32,4096,2048 e2m1 w4_mma: w4_wgmma takes less at M = 32, and M = 2")
    alike = [row(16, 5.0, "w4_mma", config=few), row(32, 10.0, "w4_mma", config=few), *wgmma]
    assert contradictions(table(tmp_path / "u.json", alike), SM_90) == []


def test_between_others_a_route_is_not_taken_where_its_row_was_beaten(tmp_path: Path) -> None:
    """By the rows for 64 and 256 alone w4_wgmma would take 12.3 us at M = 128, where it took 13.1 and fp8_fold 13."""
    configs = [{"stages": stages} for stages in (4, 5, 6)]
    times = zip((64, 128, 256), (8.7, 13.1, 17.3), configs, strict=True)
    rows = [row(m, us, "w4_wgmma", config=config) for m, us, config in times]
    rows += [row(m, us, FAST) for m, us in ((64, 12.9), (128, 13.0), (256, 13.1))]
    found = contradictions(table(tmp_path / "t.json", rows), SM_90)
    assert gone(found) == [(128, "w4_wgmma"), (256, "w4_wgmma")]


def test_a_row_that_is_taken_at_few_m_alone_is_seen_too(tmp_path: Path) -> None:
    """From 363 on the row for 512 is the nearest, and from 380 on fp8_fold is the quicker one."""
    config = {"groups_n": 2, "stages": 4}
    rows = [row(256, 6.0, "w4_wgmma", config=config), row(512, 9.0, "w4_wgmma", config=config | {"stages": 5})]
    rows += [row(256, 7.5, FAST), row(512, 7.6, FAST)]
    (found,) = contradictions(table(tmp_path / "t.json", rows), SM_90)
    assert gone([found]) == [(512, "w4_wgmma")]


def test_configurations_are_compared_and_not_their_words(tmp_path: Path) -> None:
    """What is warmed at M = 16 is what the row for 32 says with a default spelled out."""
    few: dict[str, Any] = {"tiles": 1, "warps_k": 8, "depth": 1}
    wgmma = [row(m, 9.0, "w4_wgmma") for m in (32, 64)]
    rows = [row(16, 5.0, "w4_mma", config=few), row(32, 10.0, "w4_mma", config=few | {"overlap": False}), *wgmma]
    spelled = replace(table(tmp_path / "t.json", rows), by_weight={(4096, 2048): tuple(rows)})
    assert contradictions(spelled, SM_90) == []


def test_of_rows_as_far_from_an_m_the_quicker_one_is_taken_as_the_router_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M = 16 lies as far from 8 as from 32, whose row is the quicker one here."""
    configs = {8: {"tiles": 1, "warps_k": 8, "depth": 1}, 32: {"tiles": 1, "warps_k": 4, "depth": 1}}
    rows = [row(m, us, "w4_mma", config=configs[m]) for m, us in ((8, 6.0), (32, 5.0))]
    found = table(tmp_path / "t.json", rows)
    of_kind = settled._Rows(found.rows, settled.kind_of(found.rows[0]), SM_90)
    taken = of_kind._row_of({one.m: one for one in found.rows}, 16)
    monkeypatch.setattr(router, "shipped", lambda arch: (found,))
    monkeypatch.setattr(ROUTES["w4_mma"], "missing", lambda machine: None)
    problem = problem_of(16, 4096, 2048, SM_90, derived="fp8_fold")
    choice = router.choose(problem, tables=[], route="w4_mma")
    assert taken == (choice.row, choice.config)
    assert taken[0].m == 32
    assert of_kind._row_of({2: row(2, 5.0, "w4_mma", config=configs[8])}, 16) is None  # the route's guess is better


def test_grades_are_not_compared_and_rows_for_any_gpu_are_with_every_one(tmp_path: Path) -> None:
    rows = alternating(0.5, 2.0, 0.99, 2.0, 0.5, 0.5)
    predicted = [one if one.route == FAST else replace(one, grade="predicted") for one in rows]
    assert contradictions(table(tmp_path / "t.json", predicted), SM_90) == []
    of_one = [one if one.route == FAST else replace(one, cu_count=132) for one in rows]
    assert gone(contradictions(table(tmp_path / "u.json", of_one), SM_90)) == [(256, SLOW)]


@pytest.mark.parametrize("arch", ["sm_90", "gfx950", "gfx942", "cpu"])
def test_the_shipped_tables_are_settled(arch: str) -> None:
    for one in tables.shipped(arch):
        assert contradictions(one, KNOWN_MACHINES[arch]) == []


class Noisy(Delayed):
    """One configuration; how long it takes is a matter of M."""

    def __init__(self, name: str, times: dict[int, int]) -> None:
        super().__init__()
        self.name, self.times = name, times  # type: ignore[misc]

    def candidates(self, problem: Any) -> list[Delay]:
        return [Delay(self.times[problem.m])]

    def configs(self, problem: Any) -> list[Delay]:
        return self.candidates(problem)


def test_the_tuner_and_a_merge_leave_no_contradiction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.measure.delayed import call_us

    monkeypatch.setattr(trial, "call_us", call_us)
    shares = (50, 200, 99, 200, 50)
    ms = [1 << step for step in range(5)]
    steady = Noisy("steady", {m: 100 * m for m in ms})
    noisy = Noisy("noisy", {m: share * m for m, share in zip(ms, shares, strict=True)})
    for route in (steady, noisy):
        monkeypatch.setitem(ROUTES, route.name, route)
    here: dict[str, Any] = {"derived": "", "cpu": variants.kind() or None}
    rows = [Row(m, 32, 64, name, "old", "measured", 1e6, **here) for m in ms for name in ("steady", "noisy")]
    path = tmp_path / "t.json"
    tuned.write(path, "cpu", {"old": {"title": "old"}}, rows)
    said = output("tune", "--again", "old", "--device", "cpu", "-o", path)
    assert "left out of the table: 4,32,64 e2m1 noisy: the fastest route would change 4 times along M" in said
    kept = {(one.m, one.route): one.us for one in tables.load(path).rows}
    assert kept == {(m, "steady"): 100.0 * m for m in ms} | {
        (m, "noisy"): float(share * m) for m, share in zip(ms, shares, strict=True) if m != 4
    }
    back = tmp_path / "back.json"
    tuned.write(back, "cpu", {"new": {}}, [Row(4, 32, 64, "noisy", "new", "measured", 396.0, **here)])
    said = output("tune", "--merge", back, "-o", path)
    assert "left out of the table: 4,32,64 e2m1 noisy" in said
    assert "1 tables merged: 9 rows" in said
    assert {(one.m, one.route): one.us for one in tables.load(path).rows} == kept
