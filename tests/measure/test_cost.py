"""The estimates by which tuning orders what it measures, against what was measured on an H200 and a Zen 4."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure.cost import COSTS, OTHER, estimate_us
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routing.explain import problem_of

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
TIMED = (("fp8_fold", "e2m1", "fast"), ("dequant_mm", "e2m1", "raw"), ("dequant_mm", "bf16", "raw"))
TILED = (("a16wfp4", "e2m1", "raw"), ("w4a16", "bf16", "raw"))


def hopper() -> Iterator[tuple[tuple[str, str, str], Problem, float, float]]:
    """Name, problem, estimated and measured microseconds."""
    document = json.loads((RESULTS / "hopper_h200.json").read_text())
    for one in document["results"]:
        who = one["name"], one["a_format"], one["form"]
        if who not in TIMED + TILED or not one["device"]:
            continue
        problem = problem_of(
            one["m"], one["n"], one["k"], KNOWN_MACHINES["sm_90"], a_format=who[1], prepared=who[2] == "fast"
        )
        config = ROUTES[who[0]].configs(problem)[0]
        yield who, problem, estimate_us(who[0], problem, config), one["device"]["us"]


def test_estimates_are_near_what_was_measured() -> None:
    errors = dict[str, list[float]]()
    for (name, _, _), _, estimated, us in hopper():
        errors.setdefault(name, []).append(math.log(estimated / us))
    spread = {name: math.sqrt(sum(e * e for e in found) / len(found)) for name, found in errors.items()}
    assert spread["fp8_fold"] < 0.2
    assert spread["dequant_mm"] < 0.12
    assert max(spread["a16wfp4"], spread["w4a16"]) < 0.7


def test_estimates_order_routes_as_measurements_do() -> None:
    by_size = dict[tuple[int, int, int, str], list[tuple[float, float]]]()
    for (_, a_format, _), p, estimated, us in hopper():
        by_size.setdefault((p.m, p.n, p.k, a_format), []).append((estimated, us))
    pairs = [pair for found in by_size.values() for pair in itertools.combinations(found, 2)]
    apart = [(one, other) for one, other in pairs if abs(math.log(one[1] / other[1])) > math.log(1.5)]
    right = [(one[0] < other[0]) == (one[1] < other[1]) for one, other in apart]
    assert len(right) > 100
    assert sum(right) / len(right) > 0.95


@pytest.mark.parametrize("threads, within", [(1, 0.2), (2, 0.8)])
def test_estimates_of_the_cpu(threads: int, within: float) -> None:
    document = json.loads((RESULTS / "cpu_native_epyc.json").read_text())
    names = {"avx512_vnni rows": "cpu_native rows", "avx512_vnni panels": "cpu_native panels", "cpu_dequant_mm": ""}
    errors = []
    for one in document["results"]:
        if one["name"] in names and one.get("threads") == threads and one.get("a_format") == "e2m1":
            route, _, method = (names[one["name"]] or one["name"]).partition(" ")
            problem = Problem(one["m"], one["n"], one["k"], KNOWN_MACHINES["cpu"])
            config = ROUTES[route].config_type.from_mapping({"method": method} if method else {})
            errors.append(math.log(estimate_us(route, problem, config) / one["us"]))
    assert len(errors) > 20
    assert math.sqrt(sum(error * error for error in errors) / len(errors)) < within


@pytest.mark.parametrize("arch", list(COSTS))
def test_every_route_of_an_architecture_has_an_estimate(arch: str) -> None:
    machine = KNOWN_MACHINES[arch]
    for prepared, a_format, m in itertools.product((False, True), ("e2m1", "bf16"), (1, 16, 300)):
        problem = problem_of(m, 4096, 2048, machine, a_format=a_format, prepared=prepared)
        for name, route in ROUTES.items():
            if route.refusal(problem):
                continue
            for config in route.configs(problem):
                us = estimate_us(name, problem, config)
                assert 1 < us < math.inf
                assert us < OTHER.fixed_us or arch == "cpu" or name == "reference" or m == 300, (name, config)


def test_a_tile_pays_for_what_it_pads_and_for_programs_that_are_too_few() -> None:
    from mxgemm.triton.tile import TileConfig

    problem = Problem(16, 2112, 7168, KNOWN_MACHINES["gfx950"])

    def us(**fields: int) -> float:
        return estimate_us("a16wfp4", problem, TileConfig(**fields))  # type: ignore[arg-type]

    assert us(block_m=16) < us(block_m=64)
    assert us(block_n=64, split_k=4) < us(block_n=64)
    assert us(num_stages=3) < us(num_stages=2)
