"""bench/between_rows.py: goes on by size within a time, and judges today's router by what a file has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import trial
from mxgemm.measure.held import Held
from mxgemm.measure.tune import Task
from mxgemm.routes import ROUTES
from mxgemm.routing.explain import problem_of
from mxgemm.routing.router import choose
from tests.measure.delayed import Delayed, call_us
from tests.test_bench_scripts import script

TASKS = [Task((m, 1024, 512)) for m in (1, 2, 9, 3, 4)]


def row(task: Task, loss: float) -> dict[str, Any]:
    m, n, k = task.shape
    best = {"route": "w4_mma", "config": {}, "us": 2.0}
    return {
        **{"m": m, "n": n, "k": k, "a_format": task.a_format, "loss": loss},
        **{"routed": {"route": "dequant_mm", "config": {}, "us": 2.0 * (1 + loss)}, "best": best},
        "screened": [best | {"known": False}, {"route": "w4_wgmma", "config": {"stages": 4}, "us": 3.0, "known": True}],
    }


def test_a_run_goes_on_by_size_within_its_time() -> None:
    between = script("between_rows")
    document: dict[str, Any] = {"runs": [{}], "rows": [], "failures": []}
    kept, now = list[int](), [0.0]

    def measure(task: Task) -> dict[str, Any]:
        now[0] += 10.0
        if task.shape[0] == 9:
            raise RuntimeError("no memory")
        return row(task, task.shape[0] / 100)

    def keep(document: dict[str, Any]) -> None:
        kept.append(len(document["rows"]))

    between.go(document, TASKS, measure, keep, 15.0, lambda: now[0])
    assert ([one["m"] for one in document["rows"]], kept) == ([1, 2], [1, 2])
    document["runs"].append({})
    between.go(document, TASKS, measure, keep, 100.0, lambda: now[0])
    assert document["failures"] == [{"task": "9,1024,512 e2m1", "error": "no memory"}]
    assert [(one["m"], one["run"]) for one in document["rows"]] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert (document["median_loss"], document["worst_loss"], kept) == (pytest.approx(0.025), 0.04, [1, 2, 3, 4])


def test_a_file_of_other_versions_is_begun_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    between = script("between_rows")
    path, here = tmp_path / "b.json", dict.fromkeys(between.SAME, "2") | {"platform": "a host"}
    assert between.before(path, here, 5) is None
    runs = [{"environment": here}, {"environment": here | {"platform": "another"}}]
    path.write_text(json.dumps({"version": between.VERSION, "runs": runs, "patience": 5, "rows": []}))
    assert between.before(path, here, 5) is not None
    assert between.before(path, here | {"torch": "3"}, 5) is None
    assert between.before(path, here, 2) is None
    path.write_text("{")
    assert between.before(path, here, 5) is None
    assert capsys.readouterr().out.count("begun anew") == 3


def test_a_size_is_tuned_and_the_routers_choice_timed_beside_the_quickest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = script("between_rows")
    monkeypatch.setattr(trial, "call_us", call_us)
    monkeypatch.setitem(ROUTES, "delayed", Delayed())
    monkeypatch.setattr(between, "ROUTES", ("delayed", "reference"))
    cpu = torch.device("cpu")
    found = between.measured(Task((3, 32, 64)), cpu, Held(cpu), 5)
    assert (found["best"]["route"], found["best"]["us"]) == ("delayed", 20.0)
    assert [(one["route"], one["us"]) for one in found["screened"]] == [
        *(("delayed", 20.0), ("delayed", 30.0), ("delayed", 40.0), ("reference", 99.0))
    ]
    assert (found["routed"]["us"], found["loss"]) == (99.0, 3.95)


def test_the_sizes_are_the_same_in_every_run_and_those_of_the_file() -> None:
    between = script("between_rows")
    assert {"w4_mma", "w4_wgmma", "fp8_fold", "dequant_mm"} <= set(between.ROUTES)
    assert not {"cpu_native", "hip_mx", "scaled_mm", "a16wfp4"} & set(between.ROUTES)
    drawn = list(between.drawn("sm_90", 40))
    assert drawn == list(between.drawn("sm_90", 40))
    found = json.loads((between.Path(between.__file__).parent / "results" / "between_rows_h200.json").read_text())
    first = [(one["m"], one["n"], one["k"], one["a_format"]) for one in found["rows"]]
    assert [(*task.shape, task.a_format) for task in drawn[: len(first)]] == first


def test_what_the_router_takes_now_is_judged_by_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    between = script("between_rows")
    task = TASKS[0]
    one = row(task, 0.5)
    assert between.loss_of(one, "dequant_mm", {}) == 0.5
    assert between.loss_of(one, "w4_wgmma", {"stages": 4, "splits": 1}) == 0.5  # a field that is newer than the file
    assert between.loss_of(one, "w4_wgmma", {"stages": 5}) is None
    assert between.loss_of(one, "w4_mma", {"tiles": 1}) == 0.0
    problem = problem_of(*task.shape, KNOWN_MACHINES["sm_90"], prepared=True)
    assert choose(problem, tables=[]).route.name == "w4_mma"
    assert between.told([one]) == 0
    assert "1 of 1: median 0.0%, worst 0.0%" in capsys.readouterr().out
    one["screened"][1] = {"route": "fp8_fold", "config": {}, "us": 1.0, "known": True}
    assert between.told([one]) == 1
