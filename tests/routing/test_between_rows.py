"""Between the rows of the shipped tables: along M the choice changes a few times at most, and times do not fall."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.errors import Refusal
from mxgemm.mx.layouts import FRAGMENTS, Layout
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routing import nearby, router, tables
from mxgemm.routing.explain import problem_of
from mxgemm.routing.nearby import us_at

MOST_CHANGES = 3
FALL = 0.8
"""The least share of a smaller M's time that a larger M may take."""
ARCHS = ("sm_90", "gfx950", "cpu")
FORMATS = ("e2m1", "e4m3", "bf16")
SEED = 24
ONLY_INSTALLED = ("scaled_mm",)
"""Routes that cannot say what they take where what they call is not there."""


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compiler and every library: which route is chosen is then the tables' matter alone."""
    for route in ROUTES.values():
        if route.name not in ONLY_INSTALLED:
            real = route.missing

            def missing(machine: Machine, real: object = real) -> Refusal | None:
                found = real(machine)  # type: ignore[operator]
                return None if found is not None and found.about == "installation" else found

            monkeypatch.setattr(route, "missing", missing)


def every_m(most: int = 1 << 14, finer: int = 4) -> list[int]:
    """A few M an octave, and those around every power of two."""
    grid = {round(2 ** (step / finer)) for step in range(finer * (most.bit_length() - 1) + 1)}
    return sorted(grid | {m + near for m in (8, 16, 32, 64, 128, 256) for near in (-1, 1)})


def weights(count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Random ones, some near those that tables have rows of, behind one that had five changes of the choice once."""
    yield 4096, 16384
    rng = random.Random(seed)
    shipped = sorted({(row.n, row.k) for arch in ARCHS for table in tables.shipped(arch) for row in table.rows})
    for _ in range(count):
        n, k = rng.choice(shipped)
        yield rng.choice([n, rng.randrange(1, 1000) * 16]), rng.choice([k, rng.randrange(1, 600) * 32])


def changes(problems: list[Problem]) -> list[tuple[int, str, str]]:
    """Where the choice changes: M, route, reason."""
    found = list[tuple[int, str, str]]()
    for problem in problems:
        choice = router.choose(problem)
        if not found or found[-1][1] != choice.route.name:
            found.append((problem.m, choice.route.name, choice.reason))
    return found


def check(arch: str, a_format: str, prepared: bool, n: int, k: int) -> None:
    machine = KNOWN_MACHINES[arch]
    found = changes([problem_of(m, n, k, machine, a_format=a_format, prepared=prepared) for m in every_m()])
    assert len(found) <= 1 + MOST_CHANGES, (n, k, found)


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "raw"])
@pytest.mark.parametrize("a_format", FORMATS)
@pytest.mark.parametrize("arch", ARCHS)
def test_the_choice_changes_a_few_times_along_m(arch: str, a_format: str, prepared: bool, all_installed: None) -> None:
    for n, k in weights(1, SEED):
        check(arch, a_format, prepared, n, k)


@pytest.mark.exhaustive
@pytest.mark.parametrize("installed", [True, False], ids=["all", "as here"])
@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "raw"])
@pytest.mark.parametrize("a_format", FORMATS)
@pytest.mark.parametrize("arch", ARCHS)
def test_the_choice_changes_a_few_times_along_m_for_many_weights(
    arch: str, a_format: str, prepared: bool, installed: bool, request: pytest.FixtureRequest
) -> None:
    if installed:
        request.getfixturevalue("all_installed")
    for n, k in weights(10, SEED + 1):
        check(arch, a_format, prepared, n, k)


@pytest.fixture
def no_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses of w4_mma, which take longer than all else of a choice, are no matter here."""
    monkeypatch.setattr(ROUTES["w4_mma"], "configs", lambda problem: [MmaConfig()])


@pytest.mark.parametrize("form", ["", "fp8_fold", "bf16", "fp8_fold_compact"])
@pytest.mark.parametrize("a_format", FORMATS)
def test_along_m_every_weight_of_the_table_changes_seldom_and_no_promised_time_falls(
    a_format: str, form: str, all_installed: None, no_ranking: None
) -> None:
    """Times by the rows of the weight that decides, at any M between the least and the largest of them."""
    (table,) = tables.shipped("sm_90")
    for n, k in sorted(table.by_weight):
        chosen, most, longest = list[tuple[int, str]](), 0, 0.0
        for m in every_m(1 << 13):
            problem = problem_of(m, n, k, KNOWN_MACHINES["sm_90"], a_format=a_format, derived=form)
            choice = router.choose(problem, tables=[])
            name = choice.route.name
            if not chosen or chosen[-1][1] != name:
                chosen.append((m, name))
            us = promised(table, problem, choice)
            if us is None:
                continue
            assert us >= FALL * longest, (n, k, most, longest, m, us, name)
            most, longest = (m, us) if us > longest else (most, longest)
        assert len(chosen) <= 1 + MOST_CHANGES, (n, k, chosen)


def promised(table: tables.Table, problem: Problem, choice: router.Choice) -> float | None:
    """The time that the rows of the weight say, None where they say only a bound, or none decides."""
    row, m = choice.row, problem.m
    if row is None or row.us is None or (row.n, row.k) != (problem.n, problem.k):
        return None
    beside = nearby.of_one_weight(problem, nearby.Found(table, row, ""))
    points = {one.row.m: one.row.us for one in reversed(beside) if one.row.route == choice.route.name}
    return us_at([(at, us) for at, us in points.items() if us is not None], m) if m <= max(points) else None


def test_a_promised_time_that_falls_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_installed: None
) -> None:
    table = table_of(tmp_path / "t.json", (40, "w4_wgmma", 9.0), (90, "w4_wgmma", 6.0))
    monkeypatch.setattr(router, "shipped", lambda arch: (table,))
    problems = [problem_of(m, 6144, 4096, KNOWN_MACHINES["sm_90"]) for m in (40, 60, 90, 128)]
    found = [promised(table, problem, router.choose(problem, tables=[])) for problem in problems]
    assert found == [9.0, pytest.approx(54**0.5), 6.0, None]


def test_a_size_that_no_row_names_goes_as_its_neighbours_do(all_installed: None) -> None:
    for prepared, a_format in itertools.product((True, False), FORMATS):
        at = {
            m: router.choose(problem_of(m, 4096, 1024, KNOWN_MACHINES["sm_90"], a_format=a_format, prepared=prepared))
            for m in (2, 3, 4, 8)
        }
        assert {choice.route.name for choice in at.values()} == {"w4_mma"}, at


@pytest.mark.parametrize("a_format", FORMATS)
def test_rows_of_bf16_values_say_nothing_of_a_weight_in_fragment_order_alone(
    a_format: str, all_installed: None
) -> None:
    """dequant_mm has such values where prepare() made them; where only the order is left it decodes at each call."""
    machine, order = KNOWN_MACHINES["sm_90"], Layout(FRAGMENTS, FRAGMENTS)
    both = problem_of(256, 7168, 2048, machine, a_format=a_format, derived="bf16")
    alone = problem_of(256, 7168, 2048, machine, a_format=a_format, given=order)
    (table,) = tables.shipped("sm_90")
    names = {one.row.route for one in nearby.same_weight(both, table)}
    assert "dequant_mm" in names
    assert {one.row.route for one in nearby.same_weight(alone, table)} == names - {"dequant_mm"}
    assert router.choose(both, tables=[]).route.name == "dequant_mm"
    assert router.choose(alone, tables=[]).route.name == "w4_wgmma"


def test_where_a_route_ends_the_fastest_of_the_others_takes_over(all_installed: None) -> None:
    """33 rows are too many for w4_mma; one of these takes 64 in less time than fp8_fold, by its rows, takes 32."""
    for n, k, route in ((7168, 2048, "w4_wgmma"), (8192, 28672, "w4_fp8"), (4096, 1024, "w4_wgmma")):
        problem = problem_of(33, n, k, KNOWN_MACHINES["sm_90"], prepared=True)
        assert router.choose(problem).route.name == route


@pytest.mark.parametrize("form", ["", "fp8_fold", "bf16"])
@pytest.mark.parametrize("a_format", FORMATS)
def test_rows_that_were_never_compared_with_the_rules_route_do_not_reach_down(
    a_format: str, form: str, all_installed: None
) -> None:
    """At what a table's rows once said in the rules' stead, and at every other weight: by that rule, or by a weight
    that has rows of its route."""
    (table,) = tables.shipped("sm_90")
    for n, k in sorted(table.by_weight):
        for m in (32, 64, 128, 256):
            problem = problem_of(m, n, k, KNOWN_MACHINES["sm_90"], a_format=a_format, derived=form)
            of_form = [row for row in table.by_weight[n, k] if row.a_format == a_format and row.derived in (None, form)]
            rule = next(one for one in table.rules if one.applies(m, n, k, a_format, form))
            if any(row.route == rule.route for row in of_form):
                continue
            choice = router.choose(problem, tables=[])
            if choice.row is None:
                assert choice.route.name == rule.route
            else:
                found = nearby.Found(table, choice.row, "")
                assert (choice.row.n, choice.row.k) != (n, k)
                assert rule.route in {one.row.route for one in nearby.of_one_weight(problem, found)}


def table_of(path: Path, *rows: tuple[int, str, float]) -> tables.Table:
    """The rules of sm_90, and rows of one unprepared weight: M, route, time."""
    (shipped,) = tables.shipped("sm_90")
    same = {"n": 6144, "k": 4096, "grade": "measured", "source": "t", "derived": ""}
    document = {
        **{"kind": tables.KIND, "version": 1, "arch": "sm_90", "sources": {"t": {}, **shipped.sources}},
        "rules": [{name: getattr(rule, name) for name in rule.__slots__} for rule in shipped.rules],
        "rows": [{**same, "m": m, "route": route, "us": us} for m, route, us in rows],
    }
    path.write_text(json.dumps(document))
    return tables.load(path)


def test_rows_of_one_route_reach_no_farther_than_rules_let_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_installed: None
) -> None:
    """w4_wgmma is the rules' up to 128 rows of A, and was not compared; the user's own rows reach as they do."""
    table = table_of(tmp_path / "t.json", (64, "dequant_mm", 9.0), (512, "dequant_mm", 12.0))
    problems = {m: problem_of(m, 6144, 4096, KNOWN_MACHINES["sm_90"]) for m in (40, 64, 100, 129, 256, 512)}
    with monkeypatch.context() as patch:
        patch.setattr(router, "shipped", lambda arch: (table,))
        chosen = {m: router.choose(problem, tables=[]) for m, problem in problems.items()}
    routes = {m: choice.route.name for m, choice in chosen.items()}
    assert routes == dict.fromkeys(problems, "dequant_mm") | dict.fromkeys((40, 64, 100), "w4_wgmma")
    assert chosen[100].reason == "rule: M <= 128"
    assert chosen[129].row is not None
    mine = [router.choose(problem, tables=[table.path]).route.name for problem in problems.values()]
    assert set(mine) == {"dequant_mm"}


def test_of_two_bounds_the_one_that_grows_with_m_gives_way_to_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_installed: None
) -> None:
    """w4_wgmma's last row is for few rows of A and dequant_mm's first for many: the rule says which, and how."""
    rows = (16, "w4_wgmma", 9.0), (64, "w4_wgmma", 9.0), (256, "dequant_mm", 12.0)
    machine = KNOWN_MACHINES["sm_90"]
    for last, own in ((64, False), (16, True)):
        table = table_of(tmp_path / f"{last}.json", *(row for row in rows if row[0] != 64 or last == 64))
        monkeypatch.setattr(router, "shipped", lambda arch, table=table: (table,))
        at = {m: router.choose(problem_of(m, 6144, 4096, machine), tables=[]) for m in (65, 128, 129, 256)}
        assert [choice.route.name for choice in at.values()] == ["w4_wgmma", "w4_wgmma", "dequant_mm", "dequant_mm"]
        assert at[128].reason.endswith("the configuration is the route's own for this size") is own


def test_of_another_weight_a_fitted_route_takes_its_own_configuration(all_installed: None) -> None:
    """At most 1.2 times the best by measurements, where one measured for another weight was up to 1.5 times it."""
    machine = KNOWN_MACHINES["sm_90"]
    other = problem_of(8, 6144, 4096, machine, prepared=True)
    choice = router.choose(other)
    assert (choice.route.name, choice.config) == ("w4_mma", ROUTES["w4_mma"].configs(other)[0])
    assert choice.reason.endswith("; the configuration is the route's own for this size")
    asked = router.choose(other, route="w4_mma")
    assert (asked.config, asked.reason) == (choice.config, "asked for")
    same = router.choose(problem_of(12, 7168, 2048, machine, prepared=True))
    assert same.row is not None
    assert same.config == ROUTES["w4_mma"].config_type.from_mapping(same.row.config)
    assert not ROUTES["a16wfp4"].fitted


def test_a_hole_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first test is for: a table whose routes take turns."""
    names = ("reference", "cpu_dequant_mm")
    same = {"n": 64, "k": 64, "grade": "measured", "us": 1.0, "source": "t", "a_format": "bf16"}
    rows = [{**same, "m": 4**step, "route": names[step % 2], "us": 10.0**step} for step in range(7)]
    path = tmp_path / "t.json"
    document = {"kind": tables.KIND, "version": 1, "arch": "cpu", "sources": {"t": {}}, "rows": rows}
    path.write_text(json.dumps(document))
    table = tables.load(path)
    monkeypatch.setattr(router, "shipped", lambda arch: (table,))
    for route in names:
        monkeypatch.setattr(ROUTES[route], "missing", lambda machine: None)
    with pytest.raises(AssertionError, match="cpu_dequant_mm"):
        check("cpu", "bf16", False, 64, 64)


def test_times_between_rows_are_powers_of_m_and_beyond_them_bounds() -> None:
    points = [(16, 8.0), (4, 4.0), (64, 8.0)]
    assert [us_at(points, m) for m in (1, 4, 16, 32, 64, 128)] == pytest.approx([4.0, 4.0, 8.0, 8.0, 8.0, 16.0])
    assert us_at(points, 8) == pytest.approx(4 * 2**0.5)
    for one, other in itertools.pairwise(us_at([(4, 3.0)], m) for m in range(1, 40)):
        assert one <= other
