import json
import logging
from pathlib import Path

import pytest

from mxgemm.aiter.f4gemm import KERNELS
from mxgemm.routes import ROUTES
from mxgemm.routes.ck_gemm import CK_PREFIX
from mxgemm.routing import tables

GOOD = {
    "kind": tables.KIND,
    "version": 1,
    "arch": "gfx950",
    "sources": {"me": {"title": "my own run"}},
    "rules": [{"route": "reference", "source": "me", "m_max": 8}],
    "rows": [{"m": 1, "n": 2, "k": 32, "route": "reference", "source": "me", "grade": "measured", "us": 1.5}],
}


def write(folder: Path, content: object, name: str = "table.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_good_table(tmp_path: Path) -> None:
    table = tables.load(write(tmp_path, GOOD))
    assert table.rows[0] == tables.Row(1, 2, 32, "reference", "me", "measured", 1.5)
    assert table.by_weight[2, 32] == table.rows
    assert str(table.rules[0]) == "M <= 8"


@pytest.mark.parametrize(
    "change, message",
    [
        ("{", "not JSON"),
        (json.dumps(GOOD)[:-30], "not JSON"),
        ([], "kind: got list"),
        ({**GOOD, "kind": "other"}, "kind: got 'other'"),
        ({**GOOD, "version": 2}, "version: got 2, want 1"),
        ({**GOOD, "arch": 950}, "arch: got 950"),
        ({**GOOD, "rows": {}}, "rows: got dict, want a list"),
        ({**GOOD, "rows": [3]}, r"rows\[0\]: got int"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "m": 0}]}, r"rows\[0\].m: got 0"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "tile": 3}]}, "unknown fields .'tile'."),
        ({**GOOD, "rows": [{"m": 1}]}, "missing fields"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "us": -1}]}, "us: got -1"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "grade": "guess"}]}, "grade: got 'guess'"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "source": "you"}]}, "source: got 'you', want one of me"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "a_format": "int8"}]}, "a_format: got 'int8'"),
        ({**GOOD, "rules": [{"route": "reference", "source": "me", "m_max": "8"}]}, "m_max: got '8'"),
    ],
)
def test_a_bad_table_names_file_and_place(change: object, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, change)
    with pytest.raises(tables.TableError, match=message) as error:
        tables.load(path)
    assert str(path) in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(tables.TableError, match="cannot be read"):
        tables.load(tmp_path / "none.json")


def test_users_bad_table_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = write(tmp_path, "{", "bad.json"), write(tmp_path, GOOD, "good.json")
    with caplog.at_level(logging.WARNING, "mxgemm"):
        found = tables.from_user("gfx950", [bad, good])
    assert [table.path for table in found] == [str(good)]
    assert "bad.json" in caplog.text
    assert tables.from_user("sm_90", [good]) == ()


def test_shipped_tables_load_and_name_their_sources() -> None:
    paths = sorted(tables.shipped_folder().glob("*.json"))
    assert {path.stem.split("-")[0] for path in paths} >= {"cpu", "gfx950"}
    for path in paths:
        table = tables.load(path)
        assert path.stem.startswith(table.arch)
        for row in table.rows:
            assert table.sources[row.source].get("title")
            assert row.us is None or table.sources[row.source].get("covers")


def test_shipped_gfx950_rows_keep_aiters_contract() -> None:
    (table,) = tables.shipped("gfx950")
    aiter = [row for row in table.rows if row.source == "aiter"]
    assert len(aiter) > 1500
    assert not [row for row in aiter if row.k % 256 or row.n % 32]
    assert {row.config["kernel"].split("_")[0] for row in aiter} == {"f4gemm", "a4w4"}
    for row in aiter:
        ROUTES[row.route].config_type.from_mapping(row.config)
        kernel = KERNELS.get(row.config["kernel"])
        assert kernel or row.config["kernel"].startswith(CK_PREFIX)
        assert kernel is None or kernel.broken(row.m, row.n, row.k) is None, row
        assert row.route == "ck_gemm" or kernel
    assert "128x512" in table.sources["aiter"]["dropped"]


def test_a_rule_for_some_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = tables.Rule("cpu_dequant_mm", "me", cpu_feature="amx_bf16")
    assert str(rule) == "a CPU with amx_bf16"
    for features, applies in ((frozenset({"amx_bf16"}), True), (frozenset({"avx2"}), False)):
        monkeypatch.setattr(tables, "cpu_features", lambda features=features: features)
        assert rule.applies(64, 64, 64, "e2m1", "") is applies


@pytest.mark.parametrize(
    "m, a_format, features, route",
    [
        (1, "e2m1", {"amx_bf16"}, "cpu_native"),
        (16, "bf16", set(), "cpu_native"),
        (16, "bf16", {"avx512_bf16"}, "cpu_native"),
        (17, "bf16", {"avx512_bf16"}, "cpu_dequant_mm"),
        (1024, "e4m3", {"avx512_bf16", "avx512vbmi"}, "cpu_native"),
        (1025, "e4m3", {"avx512_bf16", "avx512vbmi"}, "cpu_dequant_mm"),
        (4096, "bf16", {"amx_bf16", "avx512_bf16"}, "cpu_native"),
        (4096, "e2m1", set(), "cpu_native"),
        (4096, "e4m3", set(), "cpu_native"),
        (4096, "e2m1", {"amx_bf16"}, "cpu_native"),
    ],
)
def test_the_cpus_rules(m: int, a_format: str, features: set[str], route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "cpu_features", lambda: frozenset(features))
    (table,) = tables.shipped("cpu")
    assert next(rule.route for rule in table.rules if rule.applies(m, 64, 64, a_format, "")) == route


@pytest.mark.parametrize("arch", ["gfx950", "sm_90", "cpu"])
def test_every_time_says_what_it_covers(arch: str) -> None:
    for table in tables.shipped(arch):
        for row in table.rows:
            assert table.sources[row.source].get("scope") in ("call", "kernel"), row
            assert table.sources[row.source].get("covers"), row


def test_predictions_are_those_of_the_committed_model() -> None:
    """Of our own kernels on gfx950: whole calls, as evidence/isa_table.py predicted them strictly."""
    (table,) = tables.shipped("gfx950")
    document = json.loads((Path(__file__).parents[2] / "bench" / "results" / "isa_gfx950.json").read_text())
    wanted = {(one["m"], one["n"], one["k"]): (one["predicted_us"], one["config"]) for one in document["rows"]}
    found = {(row.m, row.n, row.k): (row.us, dict(row.config)) for row in table.rows if row.source == "isa"}
    assert found == wanted
    assert {row.grade for row in table.rows if row.source == "isa"} == {"predicted"}
    assert {table.scope_of(row) for row in table.rows if row.source == "isa"} == {"call"}
    assert {table.scope_of(row) for row in table.rows if row.source == "aiter"} == {"kernel"}
