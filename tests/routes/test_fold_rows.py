"""Which launch of route fp8_fold comes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.hip import build
from mxgemm.problem import Problem, Strides
from mxgemm.routes import fold_rows
from mxgemm.triton.launch import Launcher


def first(m: int = 64, n: int = 48, k: int = 4096, arch: str = "sm_90", rows: int = 0, **more: Any) -> Any:
    kept = {"derived": "fp8_fold_compact" if rows else "fp8_fold", **more}
    strides = Strides(a=(k, 1), b=(k // 2, 1), b_scales=(k // 32, 1), out=(n, 1))
    problem = Problem.of(m, n, k, KNOWN_MACHINES[arch], strides=strides, **kept)
    return fold_rows.first_launch(problem, rows)


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(build, "compiler_missing", lambda arch: None)
    monkeypatch.setattr(fold_rows.Lazy, "build", lambda self, machine: self)


def test_it_is_one_of_ours_where_it_is_quicker() -> None:
    assert isinstance(first(), fold_rows.FoldRows)
    assert isinstance(first(4096, k=4096), fold_rows.FoldRows)
    assert isinstance(first(a_dtype=torch.float32), fold_rows.FoldRows)
    assert isinstance(first(aligned=False), fold_rows.FoldRows)
    assert isinstance(first(4096, k=8192), Launcher)
    assert isinstance(first(k=28672), Launcher)
    assert isinstance(first(rows=48), Launcher)


def test_it_is_tritons_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(first(arch="gfx942", derived="fp8_fold_fnuz"), Launcher)
    monkeypatch.setattr(build, "compiler_missing", lambda arch: Refusal("compiler", "missing", "one", "installation"))
    assert isinstance(first(), Launcher)
