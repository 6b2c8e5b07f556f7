"""``mxgemm tune --model``: the sizes of a checkpoint, from its headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxgemm.cli.model_sizes import model_sizes
from mxgemm.measure.shapes import DECODE_AND_PREFILL
from mxgemm.routing import tables
from tests.checkpoints import made
from tests.command import output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {
        "model.layers.0.q_proj.weight": made.weight(96, 64),
        "model.layers.1.q_proj.weight": made.weight(96, 64, seed=1),
        "model.layers.0.down_proj.weight": made.weight(64, 128),
    }
    tensors = made.quark(weights) | {"model.norm.weight": made.bf16(made.weight(64, 64).values[0])}
    return made.folder(tmp_path / "model", tensors, made.quark_config())


def test_each_weight_once_at_every_m(model: Path) -> None:
    assert set(model_sizes(model)) == {(m, n, k) for n, k in ((96, 64), (64, 128)) for m in DECODE_AND_PREFILL}
    assert {m for m, _, _ in model_sizes(model, [3, 3, 5])} == {3, 5}
    assert len(model_sizes(model, [3, 3, 5])) == 4


def test_experts_are_multiplied_one_at_a_time(tmp_path: Path) -> None:
    weights = {"model.layers.0.mlp.experts.gate_up_proj": made.weight(4, 128, 64)}
    folder = made.folder(tmp_path / "experts", made.gpt_oss(weights), made.GPT_OSS_CONFIG)
    assert model_sizes(folder, [7]) == [(7, 128, 64)]


def test_the_command(model: Path, tmp_path: Path) -> None:
    arguments = ["tune", "--model", model, "--rows", "1", "--device", "cpu", "--seconds", "0", "--route", "reference"]
    output(*arguments, "-o", tmp_path / "t.json")
    rows = tables.load(tmp_path / "t.json").rows
    assert {(row.m, row.n, row.k) for row in rows} == {(1, 96, 64), (1, 64, 128)}


def test_what_has_no_such_weight_is_refused(tmp_path: Path) -> None:
    plain = made.folder(tmp_path / "plain", {"a.weight": made.bf16(made.weight(64, 64).values)}, {})
    arguments = ["tune", "--dry-run", "--device", "cpu", "--model"]
    assert "holds no MXFP4 weight" in output(*arguments, plain, code=2)
    assert str(tmp_path / "none") in output(*arguments, tmp_path / "none", code=1)
    assert "--rows: got it without --model" in output("tune", "--rows", "4", code=2)
