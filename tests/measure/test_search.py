"""The search of tuning, with times that are made up: it finds the planted best, and a wrong result never wins."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mxgemm.measure.search import Candidate, Search, ordered
from mxgemm.problem import Config

Timer = Callable[[Candidate], float | None]


@dataclass(frozen=True, slots=True)
class Numbered(Config):
    number: int = 0


def candidate(route: str, number: int, estimate_us: float) -> Candidate:
    return Candidate(route, Numbered(number), estimate_us)


def planted(seed: int, error: float) -> tuple[list[Candidate], dict[Candidate, float]]:
    """Three routes of forty configurations, whose estimates are off by up to a factor."""
    rng = random.Random(seed)
    times: dict[Candidate, float] = {}
    for route, least in (("one", 5.0), ("two", 8.0), ("three", 6.0)):
        for number in range(40):
            us = least * 1.05**number
            times[candidate(route, number, us * rng.uniform(1 / error, error))] = us
    found = list(times)
    rng.shuffle(found)
    return found, times


def run(search: Search, timer: Timer) -> list[Candidate]:
    taken = []
    while (now := search.next()) is not None:
        taken.append(now)
        search.take(now, timer(now))
    return taken


def test_the_first_of_each_route_come_first_and_then_what_promises_most() -> None:
    mixed = [candidate("a", 0, 3.0), candidate("b", 0, 9.0), candidate("a", 1, 1.0), candidate("b", 1, 4.0)]
    names = [(one.route, one.config.number) for one in ordered(mixed)]  # type: ignore[attr-defined]
    assert names == [("a", 1), ("b", 1), ("a", 0), ("b", 0)]


def test_what_tables_name_comes_before_the_rest() -> None:
    mixed = [candidate("a", 0, 3.0), candidate("a", 1, 1.0), candidate("b", 1, 4.0), candidate("a", 3, 2.0)]
    known = Candidate("a", Numbered(2), 50.0, known=True)
    found = [(one.route, one.config.number) for one in ordered([*mixed, known])]  # type: ignore[attr-defined]
    assert found == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 0)]


def test_of_what_tables_name_the_nearest_comes_first_whatever_its_estimate() -> None:
    """It was the best of a size, and two others that came before it ended the search."""
    rows = [Candidate("a", Numbered(number), us, known=True) for number, us in ((7, 9.0), (8, 5.0), (9, 4.0))]
    found = ordered([candidate("a", 0, 3.0), *rows, candidate("a", 1, 3.5)])
    assert [one.config.number for one in found] == [0, 7, 8, 9, 1]  # type: ignore[attr-defined]
    assert [one.config.number for one in ordered(found[::-1])] == [0, 9, 8, 7, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(10))
def test_the_planted_best_is_found_in_few_steps_and_the_same_ones_each_time(seed: int) -> None:
    candidates, times = planted(seed, 1.2)
    search = Search(candidates, patience=12)
    taken = run(search, times.__getitem__)
    assert list(search.best) == ["one", "three", "two"]
    assert {route: us for route, (us, _) in search.best.items()} == {"one": 5.0, "two": 8.0, "three": 6.0}
    assert search.measured == len(taken) < search.known / 2
    assert run(Search(candidates, patience=12), times.__getitem__) == taken


def test_without_patience_everything_is_measured_however_wrong_the_estimates_are() -> None:
    candidates, times = planted(3, 1000.0)
    search = Search(candidates, patience=0)
    assert set(run(search, times.__getitem__)) == set(candidates)
    assert search.best["two"][0] == 8.0


def test_a_route_that_is_far_behind_is_left_after_its_first_configuration() -> None:
    fast = {candidate("a", number, float(number)): 5.0 + number for number in range(9)}
    slow = {candidate("b", number, 20.0 + number): 10.0 - number for number in range(9)}
    search = Search([*fast, *slow], patience=4)
    taken = run(search, {**fast, **slow}.__getitem__)
    assert [one.route for one in taken].count("b") == 1
    assert search.best["b"][0] == 10.0
    assert len(run(Search([*fast, *slow], patience=0), {**fast, **slow}.__getitem__)) == 18


def test_a_wrong_result_never_wins_and_does_not_beat_the_others() -> None:
    times = {candidate("a", number, float(number)): 100.0 - number for number in range(30)}
    right = [one for one in times if one.config.number % 3 == 2]  # type: ignore[attr-defined]
    search = Search(list(times), patience=1)
    run(search, lambda one: times[one] if one in right else None)
    assert search.best["a"] == (71.0, candidate("a", 29, 29.0))
    nothing = Search(list(times), patience=1)
    assert len(run(nothing, lambda one: None)) == 30
    assert nothing.best == {}


def test_a_search_goes_on_where_another_was_stopped() -> None:
    candidates, times = planted(1, 1.5)
    whole = Search(candidates)
    taken = run(whole, times.__getitem__)
    for stopped in (1, len(taken) // 2, len(taken)):
        search = Search(candidates)
        for one in taken[:stopped]:
            search.take(one, times[one])
        assert run(search, times.__getitem__) == taken[stopped:]
        assert search.best == whole.best
    search.take(candidate("gone", 0, 1.0), 0.1)  # a configuration that a later release does not have
    assert search.best == whole.best
