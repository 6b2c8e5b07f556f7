"""What the router takes now, against what committed benchmarks measured of every route: within 5 % of the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_bench_scripts import script

check = script("router_check")

ACCEPTED = {
    # With two threads cpu_native is the faster one there, and the rows of that CPU are of those.
    ("cpu", 256, 2112, 7168, "e2m1", "cpu_native_xeon_beside, 1 thread"),
}
KINDS = {"cpu": 60, "sm_90": 100}
"""By architecture, at least so many choices that can be judged."""


def test_the_routers_choice_is_near_the_best_route() -> None:
    found = list(check.verdicts(check.measured(sorted(check.RESULTS.glob("*.json")))))
    judged = [one for one in found if one.share is not None]
    far = [one for one in judged if one.share > check.MOST]
    assert {(*one.case[:5], one.case.run) for one in far} <= ACCEPTED, "\n".join(map(str, far))
    for arch, least in KINDS.items():
        assert sum(one.case.arch == arch for one in judged) >= least
    assert len(judged) >= 0.9 * len(found)  # the others are routes that tuning has measured since those files


def test_a_file_of_several_runs_is_as_old_as_the_first(tmp_path: Path) -> None:
    """As bench/between_rows.py writes it."""
    screened = [{"route": "fp8_fold", "us": 2.0}, {"route": "dequant_mm", "us": 3.0}]
    rows = [{"m": 512, "n": 4096, "k": 1024, "a_format": "e2m1", "screened": screened}]
    found = {}
    for first in ("2026-12-01T10:00", "2026-12-01T19:00"):
        path = tmp_path / f"{first}.json"
        runs = [{"date": "2026-12-01T20:00"}, {"date": first}]
        path.write_text(json.dumps({"kind": "mxgemm-between-rows", "runs": runs, "rows": rows}))
        ((_, found[first]),) = check.measured([path]).items()
    assert found == {"2026-12-01T10:00": {"dequant_mm": 3.0}, "2026-12-01T19:00": {"fp8_fold": 2.0, "dequant_mm": 3.0}}


def test_a_choice_that_is_far_from_the_best_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(route: str, us: float, **more: Any) -> dict[str, Any]:
        size = {"m": 64, "n": 7168, "k": 2048, "form": "fast", "a_format": "e2m1"}
        return {**size, "route": route, "us": us, "torch_us": 10.0, "passed": True, **more}

    path = tmp_path / "forms.json"
    rows = [row("w4_wgmma", 10.0), row("dequant_mm", 9.0), row("fp8_fold", 1.0), row("w4_mma", 1.0, passed=False)]
    path.write_text(json.dumps({"kind": "mxgemm-forms", "date": "2026-11-30", "rows": rows}))
    monkeypatch.setattr("sys.argv", ["router_check.py", str(path)])
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "64,7168,2048 e2m1 fp8_fold (sm_90): w4_wgmma: 1.111 of dequant_mm" in said  # not of fp8_fold's fast sums
    assert "1 of 1 choices take more than 1.05" in said
    monkeypatch.setattr("sys.argv", ["router_check.py", "--most", "1.2", str(path)])
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == 0
