"""A table that grows: its rows for every form alike, and how seldom a large one is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import growing, tuned
from mxgemm.measure.growing import PAUSE, Growing
from mxgemm.measure.tune import Task, Timing
from mxgemm.measure.unfinished import Unfinished
from mxgemm.problem import Config, Problem
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.routing.explain import problem_of
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
    monkeypatch.setattr(route, "alike", (("", "folded", "of_others"),), raising=False)
    monkeypatch.setattr(tuned, "is_made_on", lambda form, arch: form in ("", "folded") and arch == "cpu")
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
    assert ROUTES["w4_wgmma"].alike == ROUTES["w4_mma"].alike
    assert ROUTES["dequant_mm"].alike == (("", "fp8_fold", "fp8_fold_compact"),)
    assert all(not ROUTES[name].alike for name in ROUTES if name[:2] != "w4" and name != "dequant_mm")
    assert tuned.alike("dequant_mm", "", "sm_90") == ("", "fp8_fold", "fp8_fold_compact")
    assert tuned.alike("dequant_mm", "bf16", "sm_90") == ("bf16",)
    assert tuned.alike("dequant_mm", "", "gfx950") == ("",)  # where nothing makes the others


@pytest.mark.parametrize("route", ["w4_mma", "w4_wgmma", "w4_fp8", "dequant_mm"])
def test_what_is_alike_is_the_same_kernels(route: str) -> None:
    """Of a problem in each of the forms: the same sources with the same macros, the same launches of Triton's."""
    pytest.importorskip("triton")
    from mxgemm.cuda import w4_mma, w4_wgmma
    from mxgemm.routes import w4_fp8
    from mxgemm.triton.launch import described as launches

    def described(problem: Problem) -> object:
        config = ROUTES[route].configs(problem)[0]
        if route == "w4_mma":
            macros = w4_mma.defines(problem, config), w4_mma.round_defines(problem, config)  # type: ignore[arg-type]
            return config, macros
        if route == "w4_wgmma":
            return config, w4_wgmma.defines(problem, config)  # type: ignore[arg-type]
        if route == "w4_fp8":
            (_, product), fold = w4_fp8.instances(problem, config)  # type: ignore[arg-type]
            return config, fold, {name: value for name, value in product.items() if name != "BASES"}  # bytes or words
        with launches() as calls:
            ROUTES[route].bind(problem, config)
        return list(calls)

    for forms in ROUTES[route].alike:
        every = [described(problem_of(16, 2880, 512, KNOWN_MACHINES["sm_90"], derived=form)) for form in forms]
        assert all(one == every[0] for one in every)
