"""``mxgemm bench`` of layers of experts: floors of the experts hit, judged before timed, peers, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mxgemm.measure import moe
from mxgemm.measure.moe_sets import MOE_SETS, ExpertsSet
from mxgemm.measure.spread import Effort
from tests.command import command, output
from tests.experts.cases import CPU_ROUTES

SMALL = ExpertsSet("small", "none", "made up", 6, 2, 96, 64, gpt_oss=True, tokens=(1, 5))
CPU = torch.device("cpu")


def measured(monkeypatch: pytest.MonkeyPatch, **options: object) -> dict:
    monkeypatch.setattr(moe, "measure_roof", lambda device: moe.Roof({"copy": 10.0}, {"bf16": 0.1}))
    return moe.run(moe.MoeRequest([SMALL], CPU, effort=Effort(0.0, 1, 1), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("a_format", ["bf16", "e2m1"])
def test_routes_and_peers_are_judged_and_timed(monkeypatch: pytest.MonkeyPatch, a_format: str) -> None:
    document = measured(monkeypatch, a_format=a_format, all_routes=True)
    assert moe.passed(document)
    assert not document["failures"]
    names = [(record["tokens"], record["name"]) for record in document["results"]]
    assert names == [(t, name) for t in SMALL.tokens for name in (*CPU_ROUTES, *moe.PEERS)]
    for record in document["results"]:
        assert record["passed"]
        assert record["device"]["us"] > 0
        assert 1 <= record["hit"] <= min(6, 2 * record["tokens"])
        assert record["bytes"] == record["hit"] * 3 * 96 * 64 * 17 // 32 + 4 * record["tokens"] * 96
        assert record["floor_us"] == max(record["bytes"] / 10.0 / 1e3, record["flops"] / 0.1 / 1e6)
    assert [record["chosen"] for record in document["results"]].count(True) == 2
    json.dumps(document)
    assert len(moe.rows(document)) == len(document["results"])
    assert any("GB/s" in note for note in moe.notes(document))


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = moe.moe
    monkeypatch.setattr(moe, "moe", lambda *given, **named: right(*given, **named) * 1.1)
    document = measured(monkeypatch, peers=False)
    assert not moe.passed(document)
    assert all(record["device"] is None and not record["passed"] for record in document["results"])


def test_a_failure_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **named: object) -> None:
        raise RuntimeError("launch")

    monkeypatch.setattr(moe, "moe", fail)
    document = measured(monkeypatch, peers=False)
    assert not moe.passed(document)
    assert [record["error"] for record in document["failures"]] == ["RuntimeError: launch"] * 2


def test_sets_name_public_layers() -> None:
    assert MOE_SETS["moe-gpt-oss-120b"].expert_bytes == (2 * 2880 * 2880 + 2880 * 2880) * 17 // 32
    for name, one in MOE_SETS.items():
        assert name.startswith("moe-")
        assert one.hidden % 32 == one.inner % 32 == 0


def test_the_command_measures_writes_and_refuses_a_mixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = command("bench", "--set", "moe-gpt-oss-20b", "--set", "gpt-oss")
    assert done.code == 2
    assert "--set: got moe-gpt-oss-20b beside other sizes" in done.err
    monkeypatch.setattr(moe, "measure_roof", lambda device: moe.Roof({"copy": 10.0}, {"bf16": 0.1}))
    monkeypatch.setitem(MOE_SETS, "moe-gpt-oss-20b", SMALL)
    path = tmp_path / "moe.json"
    line = ("bench", "--device", "cpu", "--set", "moe-gpt-oss-20b", "--seconds", "0.01", "--json", path)
    said = output(*line, "--a-format", "bf16")
    assert "6" in said
    assert CPU_ROUTES[0] in said
    assert json.loads(path.read_text())["kind"] == moe.KIND
