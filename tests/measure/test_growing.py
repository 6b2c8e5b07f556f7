"""A table that grows: its rows for every form alike, and how seldom a large one is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mxgemm.measure import growing, tuned
from mxgemm.measure.growing import PAUSE, Growing
from mxgemm.measure.tune import Task, Timing
from mxgemm.measure.unfinished import Unfinished
from mxgemm.problem import Config
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from tests.measure.delayed import Delayed

CPU = torch.device("cpu")


def measured(m: int, us: float | None, route: str = "reference") -> Unfinished:
    kept = Unfinished(Task((m, 32, 64)), {}, None)
    kept.take(Timing((m, 32, 64), route, Config(), us, "" if us else "wrong", derived=""))
    return kept


def test_writing_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written, real = [0.0], list[float](), tuned.add

    def slow(*arguments: object, **more: object) -> None:
        written.append(now[0])
        now[0] += 2.0
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(growing.tuned, "add", slow)
    grown = Growing(tmp_path / "t.json", CPU, False, clock=lambda: now[0])
    kept = [measured(m, 5.0) for m in range(1, 201)]
    for m, one in enumerate(kept, 1):
        grown.take(Task((m, 32, 64)), one, finished=True)
        now[0] += 1.0
    assert 2 <= len(written) <= 200 / PAUSE
    assert not kept[-1].finished
    grown.finish()
    assert all(one.finished for one in kept)
    assert {row.m for row in tables.load(tmp_path / "t.json").rows} == set(range(1, 201))


def test_forms_in_which_a_route_reads_the_same_bytes_share_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = Delayed()
    monkeypatch.setattr(route, "alike", (("", "folded"),), raising=False)
    monkeypatch.setitem(ROUTES, "delayed", route)
    path = tmp_path / "t.json"
    for us in (7.0, None):
        grown = Growing(path, CPU, False)
        grown.take(Task((3, 32, 64)), measured(3, us, "delayed"), finished=True)
        grown.take(Task((3, 32, 64)), measured(3, 9.0), finished=True)
        grown.finish()
        rows = {(row.route, row.derived, row.us) for row in tables.load(path).rows}
        of_all = {("delayed", "", 7.0), ("delayed", "folded", 7.0)} if us else set()
        assert rows == of_all | {("reference", "", 9.0)}


def test_routes_say_which_forms_are_alike() -> None:
    assert ROUTES["w4_mma"].alike == (("fp8_fold", "bf16"), ("", "fp8_fold_compact"))
    assert ROUTES["w4_fp8"].alike == (("fp8_fold", "fp8_fold_compact"),)
    assert all(not ROUTES[name].alike for name in ROUTES if name not in ("w4_mma", "w4_fp8"))
