"""Rows and rules for a kind of CPU: they count on such a one alone, and say so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import files
from mxgemm.cpu import abi, variants
from mxgemm.device import CPU
from mxgemm.measure import tuned
from mxgemm.measure.doctor import examine
from mxgemm.measure.tune import Timing
from mxgemm.problem import Config, Problem
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.routing.router import choose
from mxgemm.routing.tables import Row, Rule
from tests.command import output
from tests.test_bench_scripts import script

AVX2 = frozenset({"avx2", "fma"})
AVX512 = frozenset({*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"})
ZEN = AVX512 | {"avx512_bf16", "avx512vbmi"}
XEON = ZEN | {"amx_tile", "amx_bf16"}
KINDS = {
    "zen": "avx512_vnni+avx512_bf16+avx512vbmi",
    "xeon": "amx_bf16",
    "xeon without": "avx512_vnni+amx_bf16+avx512_bf16+avx512vbmi",
}
SIZE = (16, 64, 64)
PROBLEM = Problem(*SIZE, CPU)


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind is the test's; routes are there whatever this machine is."""
    for name in ("cpu_native", "cpu_dequant_mm"):
        monkeypatch.setattr(ROUTES[name], "missing", lambda machine: None)
    monkeypatch.delenv(variants.VARIANT_VARIABLE, raising=False)
    yield
    monkeypatch.undo()
    tables.own.cache_clear()


def on(monkeypatch: pytest.MonkeyPatch, features: frozenset[str], *, permitted: bool = True) -> str:
    """Be on another CPU, and return its kind."""
    monkeypatch.setattr(variants, "cpu_features", lambda: features)
    monkeypatch.setattr(tables, "cpu_features", lambda: features)
    monkeypatch.setattr(abi, "permit_matrix_unit", lambda: permitted)
    amx, *others = variants.VARIANTS
    monkeypatch.setattr(variants, "VARIANTS", (replace(amx, permitted=lambda: permitted), *others))
    return variants.kind()


def row(route: str, us: float, cpu: str | None = None, m: int = SIZE[0], **more: Any) -> Row:
    return Row(m, *SIZE[1:], route, "t", "measured", us, cpu=cpu, **more)


def table(path: Path, rows: Sequence[Row], rules: Sequence[Rule] = ()) -> Path:
    tuned.write(path, "cpu", {"t": {"title": "t"}}, rows, rules=rules)
    return path


def test_kinds_tell_apart_what_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on(monkeypatch, AVX2) == "avx2"
    assert on(monkeypatch, AVX512) == "avx512_vnni"
    assert on(monkeypatch, ZEN) == KINDS["zen"]
    assert on(monkeypatch, XEON) == KINDS["xeon"]
    assert on(monkeypatch, XEON, permitted=False) == KINDS["zen"], "what the system refuses, it refuses torch as well"
    assert on(monkeypatch, frozenset({"asimddp", "bf16", "i8mm"})) == "neon_dotprod+bf16+i8mm"
    assert on(monkeypatch, frozenset()) == ""
    monkeypatch.setenv(variants.VARIANT_VARIABLE, "avx512_vnni")
    assert on(monkeypatch, XEON) == KINDS["xeon without"]
    monkeypatch.setenv(variants.VARIANT_VARIABLE, variants.NONE)
    assert on(monkeypatch, XEON) == ""


def test_rows_of_another_kind_do_not_count_and_those_of_the_kind_go_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [row("reference", 1.0, "avx2"), row("cpu_dequant_mm", 2.0, KINDS["zen"]), row("cpu_native", 3.0)]
    path = table(tmp_path / "t.json", [*rows, row("cpu_dequant_mm", 9.0)])
    assert tables.load(path).rows == tuple(sorted([*rows, row("cpu_dequant_mm", 9.0)], key=lambda one: one.us or 0))
    found = {}
    for features in (AVX2, ZEN, XEON, frozenset[str]()):
        kind = on(monkeypatch, features)
        found[kind] = choose(PROBLEM, tables=[path])
    assert {kind: choice.route.name for kind, choice in found.items()} == {
        **{"avx2": "reference", KINDS["zen"]: "cpu_dequant_mm"},
        **{KINDS["xeon"]: "cpu_native", "": "cpu_native"},
    }
    assert found["avx2"].reason == "measured row for exactly this size, on avx2"
    assert found["avx2"].row == rows[0]
    assert found[""].reason == "measured row for exactly this size"


def test_rules_name_a_kind_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = table(tmp_path / "t.json", [], [Rule("cpu_dequant_mm", "t", cpu="avx2"), Rule("reference", "t")])
    on(monkeypatch, AVX2)
    choice = choose(PROBLEM, tables=[path])
    assert (choice.route.name, choice.reason) == ("cpu_dequant_mm", "rule: a CPU of kind avx2")
    on(monkeypatch, ZEN)
    assert choose(PROBLEM, tables=[path]).route.name == "reference"


def test_tables_without_kinds_are_read_as_ever(tmp_path: Path) -> None:
    plain = {"m": 16, "n": 64, "k": 64, "route": "reference", "us": 1.0, "grade": "measured", "source": "old"}
    document = {"kind": tables.KIND, "version": 1, "arch": "cpu", "sources": {"old": {}}, "rows": [plain]}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    assert tables.load(path).rows[0].cpu is None
    assert choose(PROBLEM, tables=[path]).route.name == "reference"
    path.write_text(json.dumps(document | {"rows": [plain | {"cpu": 5}]}))
    with pytest.raises(tables.TableError, match=r"rows\[0\].*cpu.* a kind of CPU as mxgemm doctor names it"):
        tables.load(path)


def test_what_is_tuned_names_the_kind_and_two_cpus_keep_their_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device, path = torch.device("cpu"), tmp_path / "t.json"
    for features, us in ((AVX2, 5.0), (ZEN, 3.0)):
        on(monkeypatch, features)
        measured = tuned.rows([Timing(SIZE, "reference", Config(), us)], device, "run")
        name, source = tuned.source_of(device, "raw")
        assert variants.kind() in source["title"]
        assert "threads" in source["title"]
        tuned.write(tmp_path / f"{us}.json", "cpu", {"run": source}, measured)
    assert name.endswith(" raw")
    merged = tuned.merge(path, [tmp_path / "5.0.json", tmp_path / "3.0.json"])
    assert {(one.cpu, one.us) for one in merged.rows} == {("avx2", 5.0), (KINDS["zen"], 3.0)}
    on(monkeypatch, AVX2)
    tuned.write(path, "cpu", {"run": {}}, tuned.rows([Timing(SIZE, "reference", Config(), 4.0)], device, "run"))
    assert {(one.cpu, one.us) for one in tables.load(path).rows} == {("avx2", 4.0), (KINDS["zen"], 3.0)}


def test_the_command_writes_such_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    output(
        *("tune", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0.01", "-o", path, "--route", "reference"),
        *("--route", "cpu_dequant_mm"),
    )
    assert {one.cpu for one in tables.load(path).rows} == {variants.kind() or None}


def test_doctor_and_explain_name_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("they are about the GPU here")
    kind = on(monkeypatch, AVX2)
    facts = dict(examine().facts)
    assert facts["kind of CPU"] == kind == "avx2"
    (shipped,) = tables.shipped("cpu")
    others = sum(one.cpu != "avx2" for one in shipped.rows)
    assert facts["routing tables"] == f"cpu.json ({len(shipped.rows)} rows, {others} of them for other CPUs)"
    answer = str(mxgemm.explain(16, 2112, 7168, device="cpu", a_format="bf16", tables=[]))
    assert "(CPU, avx2)" in answer
    assert "measured row for exactly this size, on avx2" in answer
    on(monkeypatch, frozenset())
    assert "rows that name a kind do not count" in dict(examine().facts)["kind of CPU"]


def test_the_shipped_rows_are_those_of_the_documents() -> None:
    made = script("make_cpu_table")
    (shipped,) = tables.shipped("cpu")
    expected = []
    for run in made.RUNS:
        document = files.read_json(made.RESULTS / f"cpu_native_{run.document}.json")
        expected += made.rows_of(document, run)
        assert shipped.sources[run.source] == made.source_of(document, run)
    of_tune = [one for one in shipped.rows if one.source.startswith("tune ")]
    places = {tuned.place_of_row(one) for one in of_tune}
    assert set(map(repr, shipped.rows)) - set(map(repr, of_tune)) == {
        repr(one) for one in expected if tuned.place_of_row(one) not in places
    }
