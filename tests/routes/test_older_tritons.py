"""Triton 3.4 and 3.5 on gfx950: what is taken there, and that the data says what was compiled, run and predicted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from evidence.cross_compile import problem_of
from evidence.older_tritons import KERNELS, RESULTS, jobs
from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.measure import LEADERBOARD
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.routing import router
from mxgemm.triton import support
from mxgemm.triton.releases import GFX950, old_release
from mxgemm.triton.tile import tile_refusal
from mxgemm.triton.tile_config import TileConfig

OLD = sorted(GFX950)
PREPARED = {"weight_layout": "preshuffled", "scale_layout": "shuffled"}


@pytest.fixture(params=OLD, ids=str)
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Let one of the old releases be installed."""
    version: tuple[int, int] = request.param
    monkeypatch.setattr(support, "triton_version", lambda: version)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    return version


@pytest.fixture(scope="module")
def results() -> dict[tuple[int, int], Any]:
    """What evidence/older_tritons.py wrote, by (major, minor)."""
    tritons = json.loads(RESULTS.read_text(encoding="utf-8"))["tritons"]
    return {(int(version.split(".")[0]), int(version.split(".")[1])): found for version, found in tritons.items()}


def problems() -> Iterator[tuple[TritonGemm, Problem]]:
    """Yield what each Triton route takes at sizes small and large."""
    for route, options in KERNELS.values():
        for m, n, k in (*LEADERBOARD, (1024, 4096, 4096)):
            found = ROUTES[route]
            assert isinstance(found, TritonGemm)
            yield found, problem_of(m, n, k, "gfx950", **options)


def test_every_triton_route_takes_what_it_takes_and_guesses_within_the_limits(old: tuple[int, int]) -> None:
    for route, problem in problems():
        assert route.refusal(problem) is None
        for config in (*route.configs(problem), *route.candidates(problem)):
            refusal = route.check_config(problem, config)
            assert refusal is None or refusal.missing or refusal.field == "split_k", (config, refusal)
        first = route.configs(problem)[0]
        assert route.check_config(problem, first) is None
        for limit in GFX950[old].limits:
            assert getattr(first, limit.field) <= limit.most


def test_a_tile_beyond_a_limit_is_refused_for_what_is_installed(
    old: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(16, 2112, 7168, "gfx950", **PREPARED)
    beyond = {
        "waves_per_eu": TileConfig(16, 128, 256, waves_per_eu=4),
        "block_k": TileConfig(16, 32, 512),
        "num_warps": TileConfig(128, 128, 256, num_warps=8),
    }
    for limit in GFX950[old].limits:
        refusal = tile_refusal(problem, beyond[limit.field])
        assert refusal is not None
        assert (refusal.field, refusal.about) == (limit.field, "installation")
        assert f"with triton {old[0]}.{old[1]}" in refusal.needed
        assert tile_refusal(problem_of(16, 2112, 7168, "sm_90"), beyond[limit.field]) is None
    for other in ((3, 6), (3, 9), (3, 3), None):
        monkeypatch.setattr(support, "triton_version", lambda version=other: version)
        assert old_release("gfx950") is None
        assert all(tile_refusal(problem, tile) is None for tile in beyond.values())


def test_tables_rows_and_rules_choose_legal_tiles(old: tuple[int, int]) -> None:
    for m, n, k in LEADERBOARD:
        problem = problem_of(m, n, k, "gfx950", **PREPARED)
        chosen = router.choose(problem, tables=())
        assert chosen.route.name == "a16wfp4" if m < 256 else "quant_gemm_mx", chosen
        assert chosen.route.check_config(problem, chosen.config) is None
        assert isinstance(chosen.config, TileConfig)
        assert chosen.config.block_k == (512 if k == 512 and old == (3, 5) and m < 256 else 256)
    large = router.choose(problem_of(4096, 7168, 2048, "gfx950"), tables=())
    assert large.route.name == "quant_gemm_mx"
    decode = router.choose(problem_of(4, 2880, 512, "gfx950", a_format="bf16"), tables=())
    assert decode.route.name == "w4a16"


def test_what_was_not_compiled_with_them_is_refused(old: tuple[int, int]) -> None:
    gpu = KNOWN_MACHINES["gfx950"]
    assert ROUTES["dequant_mm"].missing(gpu) is not None
    for kernels in ("quantised", "bf16", "quantiser"):
        assert support.triton_missing(gpu, kernels) is None  # type: ignore[arg-type]
        for arch in ("sm_90", "sm_100", "gfx942", "gfx1250"):
            refusal = support.triton_missing(Machine(arch, 64, arch), kernels)  # type: ignore[arg-type]
            assert refusal is not None
            assert "triton >= 3.6" in refusal.needed
    refusal = support.triton_missing(gpu)
    assert refusal is not None
    assert refusal.needed.startswith("triton >= 3.6")


def test_the_results_are_of_these_releases_and_of_every_job(results: dict[tuple[int, int], Any]) -> None:
    assert sorted(results) == OLD
    for found in results.values():
        assert [(row["kernel"], row["tile"]) for row in found["compiled"]] == [
            (name, job["config"]) for name, job in jobs()
        ]
        assert not [row for row in found["compiled"] if "error" in row]


def test_what_is_allowed_was_compiled_without_a_spill_and_what_is_not_spills(
    results: dict[tuple[int, int], Any],
) -> None:
    for version, release in GFX950.items():
        spilled = 0
        for row in results[version]["compiled"]:
            allowed = all(row["tile"][limit.field] <= limit.most for limit in release.limits)
            assert not (allowed and row["spills"]), (version, row)
            assert row["scaled_mfma"] or row["kernel"].startswith("w4a16"), row
            spilled += not allowed and row["spills"] > 0
        assert spilled > 3


def test_every_case_was_right_in_the_emulator_within_the_limits(results: dict[tuple[int, int], Any]) -> None:
    for version, release in GFX950.items():
        executed = results[version]["executed"]
        assert len(executed) > 30
        assert [name for name, case in executed.items() if not case["passed"]] == []
        for case in executed.values():
            assert all(case["config"].get(limit.field, 0) <= limit.most for limit in release.limits), case


def test_the_depth_of_the_loop_is_what_the_prediction_prefers(results: dict[tuple[int, int], Any]) -> None:
    """Of the tile that is guessed, over the leaderboard's sizes, in the geometric mean."""
    for version, release in GFX950.items():
        logs: dict[int, list[float]] = {1: [], 2: []}
        large: dict[int, float] = {}
        for row in results[version]["predicted"]:
            config = row["config"]
            if row["route"] == "quant_gemm_mx":
                if config["num_warps"] == 4:
                    large[config["num_stages"]] = row["us"]
            elif config["block_k"] == 256 and config["block_m"] == (32 if row["m"] > 64 else 16):
                logs[config["num_stages"]].append(math.log(row["us"]))
        assert len(logs[1]) == len(logs[2]) == len(LEADERBOARD)
        assert release.num_stages == min(logs, key=lambda stages: sum(logs[stages]))
        assert len(large) == 2
        assert release.quantized_stages == min(large, key=lambda stages: large[stages])
