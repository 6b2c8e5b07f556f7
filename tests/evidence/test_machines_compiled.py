"""Machines that nobody here has: what Triton makes of each route's own tile, and the committed count of all of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evidence import machines_compile
from mxgemm.device import Machine
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.triton.scaled_dot import SCALED_DOTS
from tests import cross

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "bench" / "results" / "machines_compile.json"
PAGE = ROOT / "docs" / "machines.md"
MX = {"a_quantized": True, "a_format": "e2m1"}
CASES: list[tuple[str, str, int, dict[str, Any], str]] = [
    # architecture, route, M, problem, what is in the code of the last launch, "" for a refusal or error of triton 3.6
    ("gfx1250", "a16wfp4", 16, {}, "v_wmma_scale_f32_16x16x128_f8f6f4"),
    ("gfx1250", "gemm_mx", 128, MX, "v_wmma_scale_f32_16x16x128_f8f6f4"),
    ("sm_100", "a16wfp4", 16, {}, "tcgen05.mma.cta_group::1.kind::mxf4.block_scale"),
    ("sm_100", "gemm_mx", 128, MX, "tcgen05.mma.cta_group::1.kind::mxf4.block_scale"),
    ("sm_120", "a16wfp4", 16, {}, "kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"),
    ("sm_120", "gemm_mx", 16, {**MX, "a_format": "e4m3"}, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("sm_90", "gemm_mx", 128, MX, "wgmma.mma_async.sync.aligned"),
    ("gfx942", "a16wfp4", 16, {}, ""),
    ("gfx942", "fp8_fold", 128, {"derived": "fp8_fold_fnuz"}, "other_mfma"),
]


@pytest.mark.parametrize("triton_name", cross.TRITONS)
def test_the_matrix_instruction_of_a_routes_own_tile(triton_name: str) -> None:
    missing = cross.available(triton_name)
    if missing:
        pytest.skip(missing)
    jobs = [
        {"route": route, "arch": arch, "m": m, "n": 2112, "k": 7168, "problem": problem}
        for arch, route, m, problem, _ in CASES
    ]
    for (arch, route, *_, want), result in zip(CASES, cross.compile_jobs(triton_name, jobs), strict=True):
        if not want and triton_name == "3.6":
            assert "error" in result  # the reason for the refusal in mxgemm.triton.support
            continue
        assert isinstance(result, list), (arch, route, result)
        main = result[-1]
        if arch == "gfx942":
            assert main["other_mfma"] > 0
            assert main["scaled_mfma"] == 0
            continue
        assert main["matrix"]
        assert all(want in name for name in main["matrix"]), (arch, route, main["matrix"])
        assert main["spills"] == 0


def test_the_committed_counts() -> None:
    """Counts are those of the rows; nothing failed; where the table says that a form has the instruction, it has it."""
    document = json.loads(COMMITTED.read_text())
    seen: Counter[str] = Counter()
    for arch, of_tritons in document["results"].items():
        for triton, rows in of_tritons.items():
            counted: dict[str, Counter[str]] = {}
            for row in rows:
                counted.setdefault(row["form"], Counter())[row["grade"]] += 1
                seen[row["grade"]] += 1
                native = arch in SCALED_DOTS and "bf16" not in row["form"]
                mixed = "e4m3 by e2m1" in row["form"] or "a16wfp4 e4m3" in row["form"]
                if native and not (mixed and not SCALED_DOTS[arch].mixed):
                    assert row["grade"] == "scaled", (arch, triton, row)
            assert {form: dict(found) for form, found in counted.items()} == document["counts"][arch][triton]
    assert machines_compile.table_of(document["counts"]) in PAGE.read_text(encoding="utf-8")
    assert seen["error"] == seen["mixed"] == seen["none"] == 0
    assert seen["scaled"] > seen["plain"] > 0


def test_refusals_match_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: (3, 6))
    for arch, a_format, refused in (
        ("gfx942", "e2m1", True),
        ("gfx942", "bf16", False),
        ("gfx1250", "bf16", True),
        ("gfx1250", "e2m1", False),
        ("sm_90", "e2m1", False),
        ("gfx950", "e2m1", False),
    ):
        route = ROUTES["w4a16" if a_format == "bf16" else "a16wfp4"]
        problem = Problem.of(16, 2112, 7168, Machine(arch, 256, arch), a_format=a_format)
        assert (route.refusal(problem) is not None) == refused, arch
