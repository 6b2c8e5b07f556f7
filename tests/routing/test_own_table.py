"""The table that ``mxgemm tune`` keeps in the user's cache folder: used by itself, shown, and never in a call's way."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm import build_cache, plan
from mxgemm.device import CPU
from mxgemm.measure import tuned
from mxgemm.measure.doctor import examine
from mxgemm.problem import Problem
from mxgemm.routing import tables
from mxgemm.routing.router import choose
from mxgemm.routing.tables import Row
from tests.cases import cpu_route
from tests.command import output

SIZE = (3, 32, 64)
REAL_PATH = tables.own_path
"""Which tests have another one in place of."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own, without the kernels that are built already, and no ``MXGEMM_TABLES``."""
    monkeypatch.setattr(tables, "own_path", lambda arch: tmp_path / "cache" / "tables" / f"{arch}.json")
    monkeypatch.delenv(tables.TABLES_VARIABLE)
    forget()
    yield tmp_path / "cache"
    monkeypatch.undo()
    forget()


def forget() -> None:
    tables.own.cache_clear()
    tables.from_environment.cache_clear()
    plan.clear_plans()


def add(path: Path, route: str, title: str) -> Path:
    tuned.write(path, "cpu", {title: {"title": title}}, [Row(*SIZE, route, title, "measured", 1.0)])
    forget()
    return path


def source() -> str:
    return choose(Problem(*SIZE, CPU)).source


def test_it_goes_before_the_shipped_ones_and_behind_those_that_are_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(Problem(*SIZE, CPU)).table == ""
    path = add(cache / "tables" / "cpu.json", "reference", "tuned here")
    choice = choose(Problem(*SIZE, CPU))
    assert (choice.route.name, choice.source, choice.table) == ("reference", "tuned here", str(path))
    named = add(tmp_path / "named.json", "reference", "named")
    monkeypatch.setenv(tables.TABLES_VARIABLE, str(named))
    forget()
    assert source() == "named"
    assert source() == choose(Problem(*SIZE, CPU), tables=[named]).source
    assert choose(Problem(*SIZE, CPU), tables=[]).table == ""  # who names tables names all of them


def test_set_to_nothing_the_variable_leaves_it_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add(cache / "tables" / "cpu.json", "reference", "tuned here")
    monkeypatch.setenv(tables.TABLES_VARIABLE, "")
    forget()
    assert choose(Problem(*SIZE, CPU)).table == ""
    facts = dict(examine().facts)
    assert facts["what mxgemm tune found"] == "left out: MXGEMM_TABLES is set to nothing"
    assert path.exists()


def test_explain_and_doctor_show_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert dict(examine().facts)["what mxgemm tune found"] == "none"
    path = add(cache / "tables" / "cpu.json", "reference", "tuned here")
    text = output("explain", *SIZE, "--device", "cpu")
    assert f"table     {path}" in text
    assert "source    tuned here" in text
    if not torch.cuda.is_available():
        assert f"{path} (1 rows)" in output("doctor")


@pytest.mark.parametrize("damage", ["cut", "foreign", "folder", "arch"])
def test_a_damaged_one_is_said_once_and_breaks_no_call(
    damage: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = add(cache / "tables" / "cpu.json", "reference", "tuned here")
    if damage == "cut":
        path.write_text(path.read_text()[:50])
    elif damage == "foreign":
        path.write_text("[]")
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"arch": "gfx950"}))
    forget()
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for m in (3, 4, 5):
            mxgemm.gemm(torch.randn(m, 64), mxgemm.quantize(torch.randn(32, 64)))
    assert mxgemm.explain(*SIZE, device="cpu").route == cpu_route()
    assert caplog.text.count("routing table ignored") == (damage != "arch")
    if not torch.cuda.is_available():
        assert dict(examine().facts)["what mxgemm tune found"].startswith("none that can be used")


def test_it_is_in_the_folder_of_built_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path))
    assert REAL_PATH("sm_90") == tmp_path / "tables" / "sm_90.json"


def test_without_a_home_folder_there_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(arch: str) -> Path:
        raise build_cache.CacheUnusable("there is no home folder")

    monkeypatch.setattr(tables, "own_path", nowhere)
    assert tables.own("cpu") == ()
    assert mxgemm.explain(*SIZE, device="cpu").route == cpu_route()
    if not torch.cuda.is_available():
        assert dict(examine().facts)["what mxgemm tune found"] == "none: there is no home folder"


def test_tune_writes_it_and_calls_use_it(cache: Path) -> None:
    size = ",".join(map(str, SIZE))
    text = output("tune", "--shape", size, "--device", "cpu", "--seconds", "0", "--route", "reference")
    path = cache / "tables" / "cpu.json"
    assert f"wrote {path}, which calls use from now on; MXGEMM_TABLES= (set to nothing) leaves it out" in text
    assert os.listdir(path.parent) == ["cpu.json"]
    forget()
    choice = choose(Problem(*SIZE, CPU))
    assert (choice.route.name, choice.table) == ("reference", str(path))
    path.write_text("{")
    refused = output("tune", "--shape", size, "--device", "cpu", "--seconds", "0", code=1)
    assert f"{path}: not JSON" in refused
    assert "--force replaces it" in refused
