"""What AITER's kernels did in the emulator at N of 32 to 128 (evidence/f4gemm_rows.py), and what is refused for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mxgemm.aiter.f4gemm import KERNELS, PREFIX, guess
from mxgemm.device import KNOWN_MACHINES
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.ck_gemm import CKGemmConfig

FIGURES = Path(__file__).resolve().parents[2] / "bench" / "results" / "f4gemm_rows_gfx950.json"
N = (32, 64, 96, 128)


def test_whatever_was_wrong_is_refused_and_nothing_else_was() -> None:
    document = json.loads(FIGURES.read_text())
    assert {entry["kernel"] for entry in document["results"]} == set(KERNELS)
    assert {entry["n"] for entry in document["results"]} == set(N)
    assert document["legal_and_not_right"] == 0
    for entry in document["results"]:
        kernel = KERNELS[entry["kernel"]]
        assert all(kernel.broken(int(m), entry["n"], entry["k"]) for m in entry["wrong_rows"]), entry["kernel"]
    spoiled = {entry["kernel"] for entry in document["results"] if entry["wrong_rows"]}
    assert spoiled == {f"{PREFIX}BpreShuffle_{tile}" for tile in ("256x256", "192x256", "224x256", "128x512")}


@pytest.mark.parametrize("n", N)
def test_no_size_with_few_columns_is_left_to_aiter_or_given_to_a_tile_that_spoils_rows(n: int) -> None:
    units = KNOWN_MACHINES["gfx950"].cu_count
    for m in range(1, 65):
        problem = Problem(m, n, 512, KNOWN_MACHINES["gfx950"])
        refusal = ROUTES["ck_gemm"].check_config(problem, CKGemmConfig(shuffle="triton"))
        assert refusal is not None
        assert "N % 256 == 0" in str(refusal)
        found = guess(m, n, 512, units)
        assert found is not None
        assert not found.whole_columns
