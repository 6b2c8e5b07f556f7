"""``mxgemm convert`` and ``mxgemm inspect``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import checkpoints
from mxgemm.checkpoints.statistics import blocks_of
from tests.checkpoints import made
from tests.checkpoints.layouts import MAKERS, skip_without
from tests.checkpoints.made import weight
from tests.command import command, output

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = {f"model.layers.{i}.down_proj.weight": weight(32, 64, seed=i, low=110, high=120) for i in range(3)}
PLAIN = {"model.norm.weight": np.ones(64, np.float32)}


def unwrapped(text: str) -> str:
    """Lines as they would be on a wide terminal."""
    return " ".join(text.split())


def test_convert_says_what_was_read_and_made(tmp_path: Path) -> None:
    source = MAKERS["quark a4"](tmp_path / "in", WEIGHTS, PLAIN)
    text = unwrapped(output("convert", source, tmp_path / "out", "--to", "compressed-tensors", "--shard-size", "1500"))
    assert f"{source}: quark, 3 mx, 1 tensor, 0.00 MB; activations: e2m1, scales even (input_tensors: dtype fp4" in text
    assert f"{tmp_path / 'out'}: compressed-tensors, 3 mx, 1 tensor" in text
    assert "[3/3] model-00003-of-00003.safetensors" in text
    assert checkpoints.open(tmp_path / "out").a_format == "e2m1"
    done = command("convert", source, tmp_path / "out", "--to", "quark")
    assert (done.code, "out: is there already; want a name that is free or empty" in done.err) == (1, True)


def test_convert_asks_for_what_it_needs(tmp_path: Path) -> None:
    tensors = {"a.up_proj.weight": np.ones((4, 32), np.float32), "lm_head.weight": np.ones((4, 32), np.float32)}
    source = made.folder(tmp_path / "in", tensors, {"model_type": "llama"})
    line = ["convert", source, tmp_path / "out", "--to", "quark", "--quantize", "*_proj.weight"]
    done = command(*line)
    assert (done.code, "a_format: the source says nothing (quantised now), and quark has to" in done.err) == (2, True)
    assert "wrote" in output(*line, "--a-format", "e2m1", "--scale-rounding", "rceil")
    again = checkpoints.open(tmp_path / "out")
    assert (again.a_format, again.scale_rounding) == ("e2m1", "rceil")
    assert again.entries["a.up_proj.weight"].kind == "mx"
    assert again.entries["lm_head.weight"].kind == "tensor"
    for wrong, words in (
        (["--shard-size", "0"], "got '0', want a size such as 500MB or 2GB"),
        (["--shard-size", "2TB"], "got '2TB', want a size"),
        (["--to", "awq"], "got 'awq', want one of quark"),
        (["--scale-bias", "126"], "got '126', want one of 127, 125"),
    ):
        done = command("convert", source, tmp_path / "x", "--to", "quark", *wrong)
        assert (done.code, words in done.err) == (2, True), done.err
    assert command("convert", tmp_path / "none", tmp_path / "x", "--to", "quark").code == 1


def test_versions_and_formats_may_be_named(tmp_path: Path) -> None:
    config = made.compressed_tensors_config(version=None)
    source = made.folder(tmp_path / "in", made.compressed_tensors(WEIGHTS, bias=125), config)
    done = command("inspect", source)
    assert (done.code, "want scale_bias=125 for files that" in done.err) == (2, True)
    assert "scale bytes with bias 125" in unwrapped(output("inspect", source, "--scale-bias", "125"))
    bare = made.safetensors(tmp_path / "x.safetensors", made.quark(WEIGHTS))
    assert command("inspect", bare).code == 2
    assert "activations: unknown (nothing without config.json)" in unwrapped(output("inspect", bare, "--from", "quark"))


@pytest.mark.parametrize("layout", MAKERS)
def test_inspect_counts_blocks(layout: str, tmp_path: Path) -> None:
    skip_without(layout)
    path = MAKERS[layout](tmp_path / "m", WEIGHTS, PLAIN)
    text = output("inspect", path, "--json", tmp_path / "i.json")
    document = json.loads((tmp_path / "i.json").read_text())
    assert (document["kind"], document["format"]) == ("mxgemm-checkpoint", checkpoints.open(path).format)
    found = {about["name"]: about for about in document["parameters"]}
    for name, w in WEIGHTS.items():
        blocks = w.codes.reshape(-1, 32) & 7
        assert found[name]["blocks"] == len(blocks)
        assert found[name]["saturated"] == (blocks == 7).any(1).sum()
        assert found[name]["zero"] == found[name]["nan"] == 0
        values, counts = np.unique(w.scales, return_counts=True)
        assert found[name]["scales"] == {str(value): count for value, count in zip(values, counts, strict=True)}
    assert "model.layers.*" in text
    assert "-17 .. -8" in text
    shown = dict(re.findall(r"^ *2\^(-\d+) +(\d+) .*#$", text, flags=re.MULTILINE))
    scales = np.concatenate([w.scales.ravel() for w in WEIGHTS.values()]).astype(int) - 127
    assert shown == {str(power): str((scales == power).sum()) for power in np.unique(scales)}
    assert "blocks" not in found["model.norm.weight"]
    headers = output("inspect", path, "--headers")
    assert "%" not in headers
    assert "32 x 64" in headers


@pytest.mark.parametrize("format", ["e2m1", "e4m3", "e5m2"])
def test_what_blocks_are(format: str) -> None:
    x = torch.zeros(6, 96)
    x[0, 40:] = 1e-3
    x[1, :32] = torch.nan
    x[2, 70] = 1.0  # under "floor" a power of two is in the middle of the range
    x[3, 5] = -(2 - 2**-20)  # and what is just below the next one is cut to its end
    counted = blocks_of(mxgemm.quantize(x, format=format, scale_rounding="floor"))  # type: ignore[arg-type]
    assert (counted.total, counted.nan, counted.saturated, counted.zero) == (18, 1, 1, 13)
    assert sum(counted.scales) == 18
    assert blocks_of(mxgemm.quantize(torch.zeros(0, 32))).total == 0


def test_inspect_draws_scales(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = MAKERS["quark"](tmp_path / "m", WEIGHTS, PLAIN)
    assert f"wrote {tmp_path / 'm_scales.png'}" in output("inspect", path, "--plot", tmp_path)
    assert (tmp_path / "m_scales.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "m_scales.png").write_bytes(b"mine")
    done = command("inspect", path, "--plot", tmp_path)
    assert (done.code, "--force replaces it" in done.err) == (1, True)
    assert command("inspect", path, "--plot", tmp_path, "--force").code == 0
    assert "no picture" in output("inspect", path, "--plot", tmp_path, "--headers")
    (tmp_path / "i.json").write_text("mine")
    assert command("inspect", path, "--json", tmp_path / "i.json").code == 1


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MAKERS["quark"](tmp_path / "m", WEIGHTS, {})
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    for name, file in (("safetensors", path), ("gguf", tmp_path / "x.gguf")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            for line in (["inspect", file], ["convert", file, tmp_path / "out", "--to", "quark"]):
                done = command(*line)
                wanted = f"pip install 'mxgemm[{'checkpoints' if name == 'safetensors' else 'gguf'}]'"
                assert (done.code, wanted in done.err) == (2, True), done.err


@pytest.mark.slow
def test_an_interrupted_command_goes_on(tmp_path: Path) -> None:
    weights = {f"l{i}.weight": weight(256, 4096, seed=i) for i in range(24)}
    source, out = MAKERS["quark"](tmp_path / "in", weights, {}), tmp_path / "out"
    line = [sys.executable, "-m", "mxgemm", "convert", source, out, "--to", "gpt-oss", "--shard-size", "600000"]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partial = Path(f"{out}.partial")
    deadline = time.monotonic() + 60
    while not list(partial.glob("*.safetensors")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    status = process.wait()
    assert status in (0, 130)
    if status == 130:
        assert not out.exists()
        assert not list(partial.glob("*.unfinished"))
        assert command(*map(str, line[3:])).code == 0
    assert len(checkpoints.open(out)) == 24
    assert not partial.exists()
