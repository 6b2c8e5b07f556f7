"""What the router takes now, against what committed benchmarks measured of every route: within 5 % of the best."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import SETS
from mxgemm.routing.explain import problem_of
from mxgemm.routing.router import choose

RESULTS = Path(__file__).parents[2] / "bench" / "results"
NAMES = ("bench_h200.json", "bench_gpt_oss_h200.json")
MOST = 1.05


def measured(document: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, float]]:
    """Device microseconds of right routes by size, format of A and form of the weight."""
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for one in document["results"]:
        if one["kind"] == "route" and one["device"] and one["accuracy"]["passed"]:
            found[one["m"], one["n"], one["k"], one["a_format"], one["form"]][one["name"]] = one["device"]["us"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_routers_choice_is_near_the_best_route(name: str) -> None:
    """Of a route that the run did not measure the table's own time counts."""
    every = measured(json.loads((RESULTS / name).read_text()))
    assert len(every) >= len(SETS["leaderboard"].shapes)
    compared = 0
    for (m, n, k, a_format, form), times in every.items():
        assert form == "fast"
        choice = choose(problem_of(m, n, k, KNOWN_MACHINES["sm_90"], a_format=a_format, prepared=True))
        row = choice.row.us if choice.row and (choice.row.m, choice.row.n, choice.row.k) == (m, n, k) else None
        us = times.get(choice.route.name, row)
        if us is not None:
            compared += 1
            assert us <= MOST * min(times.values()), (m, n, k, a_format, choice.route.name, us, times)
    assert compared >= 0.9 * len(every)
