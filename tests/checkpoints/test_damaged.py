"""Damaged, truncated and lying files: refused with file and tensor named, never read as something else."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import checkpoints
from mxgemm.files import FileError
from tests.checkpoints import made
from tests.checkpoints.layouts import MAKERS, skip_without
from tests.checkpoints.made import weight

W = {"l.weight": weight(8, 64)}


def quark(path: Path, **tensors: object) -> Path:
    return made.folder(path, {**made.quark(W), **tensors}, made.quark_config())


def edited(path: Path, file: str, change: Callable[[dict], object]) -> Path:
    document = json.loads((path / file).read_text())
    change(document)
    (path / file).write_text(json.dumps(document))
    return path


LIES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no scales": (
        lambda p: made.folder(p, {"l.weight": W["l.weight"].packed}, made.quark_config()),
        r"model.safetensors: l.weight: is U8 and has no l.weight_scale beside it",
    ),
    "scales of another shape": (
        lambda p: quark(p, **{"l.weight_scale": np.ones((8, 3), np.uint8)}),
        r"model.safetensors: l.weight_scale: got shape \[8, 3\], want \[8, 2\] for l.weight \[8, 32\]",
    ),
    "scales of another dtype": (
        lambda p: quark(p, **{"l.weight_scale": np.ones((8, 2), np.float32)}),
        "model.safetensors: l.weight_scale: got dtype F32, want U8 or F8_E8M0",
    ),
    "blocks in Quark's": (
        lambda p: made.folder(p, made.gpt_oss({"e": weight(2, 32)}), made.quark_config()),
        "e_blocks: is named as gpt-oss's blocks, in a checkpoint that says quark",
    ),
    "half a block": (
        lambda p: quark(p, **{"l.weight": np.ones((8, 24), np.uint8)}),
        r"l.weight: got shape \[8, 24\], want whole blocks",
    ),
    "packed without scales": (
        lambda p: made.folder(p, {"l.weight_packed": np.ones((8, 32), np.uint8)}, made.compressed_tensors_config()),
        "l.weight_packed: has no l.weight_scale beside it",
    ),
    "of no group": (
        lambda p: edited(
            made.folder(p, made.compressed_tensors(W), made.compressed_tensors_config()), "config.json",
            lambda c: c["quantization_config"]["config_groups"]["group_0"].update(targets=["re:other"]),
        ), "l.weight_packed: is of no group of quantization_config",
    ),
    "blocks of 15": (
        lambda p: made.folder(
            p, {"e_blocks": np.ones((2, 1, 15), np.uint8), "e_scales": np.ones((2, 1), np.uint8)}, made.GPT_OSS_CONFIG
        ), r"e_blocks: got shape \[2, 1, 15\], want \[..., K/32, 16\]",
    ),
    "blocks without scales": (
        lambda p: made.folder(p, {"e_blocks": np.ones((2, 1, 16), np.uint8)}, made.GPT_OSS_CONFIG),
        "e_blocks: has no e_scales beside it",
    ),
    "scales without blocks": (
        lambda p: made.folder(p, {"e_scales": np.ones((2, 1), np.uint8)}, made.GPT_OSS_CONFIG),
        "e_scales: has no blocks beside it",
    ),
    "gpt-oss scales": (
        lambda p: made.folder(
            p, {"e_blocks": np.ones((2, 1, 16), np.uint8), "e_scales": np.ones((1, 2), np.uint8)}, made.GPT_OSS_CONFIG
        ), r"e_scales: got shape \[1, 2\], want \[2, 1\] for e_blocks",
    ),
    "torchao says swizzled": (
        lambda p: made.folder(p, made.torchao(W, False), None, made.torchao_metadata(["l.weight"], [], True)),
        r"l._weight_scale: got shape \[8, 2\], want \[32, 16\] \(swizzled_32_4_4\)",
    ),
    "torchao lists more": (
        lambda p: made.folder(p, made.torchao(W, False), None, made.torchao_metadata(["l.weight", "m.w"], [], False)),
        "m.w: has no m._w_qdata, which the header lists",
    ),
    "torchao lists no tensor": (
        lambda p: made.folder(p, made.torchao(W, False), None, made.torchao_metadata(["l.weight"], ["b"], False)),
        "b: is listed in the header and not there",
    ),
    "torchao's JSON": (
        lambda p: made.folder(p, made.torchao(W, False), None, {"tensor_names": '["l.weight"]', "l.weight": "{"}),
        "header field l.weight: not JSON",
    ),
    "config.json is a list": (
        lambda p: made.folder(p, made.quark(W), []), r"config.json: got list, want an object",  # type: ignore[arg-type]
    ),
    "index of a missing file": (
        lambda p: edited(
            made.sharded(p, [made.quark(W)], made.quark_config()), "model.safetensors.index.json",
            lambda d: d["weight_map"].update(other="model-00009-of-00009.safetensors"),
        ), "model-00009-of-00009.safetensors: cannot be read",
    ),
    "index of a missing tensor": (
        lambda p: edited(
            made.sharded(p, [made.quark(W)], made.quark_config()), "model.safetensors.index.json",
            lambda d: d["weight_map"].update(other="model-00001-of-00001.safetensors"),
        ), "index.json: other: is not in model-00001-of-00001.safetensors, where the index has it",
    ),
    "index out of the folder": (
        lambda p: edited(
            made.sharded(p, [made.quark(W)], made.quark_config()), "model.safetensors.index.json",
            lambda d: d["weight_map"].update(other="../other.safetensors"),
        ), "other: got '../other.safetensors', want the name of a safetensors file beside the index",
    ),
    "index without a map": (
        lambda p: edited(
            made.sharded(p, [made.quark(W)], made.quark_config()), "model.safetensors.index.json",
            lambda d: d.update(weight_map=[]),
        ), "weight_map: got",
    ),
    "one name in two files": (
        lambda p: made.sharded(p, [{**made.quark(W), "x": np.ones(2, np.uint8)}, made.quark(W)], made.quark_config()),
        "l.weight: is in model-00001-of-00002",
    ),
    "nothing": (lambda p: made.folder(p, {}, None) / "none", "there is no such file or folder"),
    "a folder of nothing": (lambda p: _empty(p), "has neither model.safetensors.index.json nor a safetensors file"),
    "a pickle": (lambda p: _file(p / "m.bin", b"x"), "is a pickle, which may run code as it is read"),
    "two files and no index": (lambda p: _two(p), "has 2 safetensors files and no model.safetensors.index.json"),
    "a pipe": (lambda p: _pipe(p), "model.safetensors: is no regular file"),
    "not safetensors": (lambda p: _file(p / "x.safetensors", b"not at all"), "x.safetensors: no safetensors file"),
    "not GGUF": (lambda p: _file(p / "x.gguf", b"not at all"), "x.gguf: no GGUF file: it does not begin with GGUF"),
}  # fmt: skip


def _empty(path: Path) -> Path:
    path.mkdir()
    return path


def _file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def _two(path: Path) -> Path:
    path.mkdir()
    for name in "ab":
        made.safetensors(path / f"{name}.safetensors", made.quark(W))
    return path


def _pipe(path: Path) -> Path:
    path.mkdir()
    os.mkfifo(path / "model.safetensors")
    return path


@pytest.mark.parametrize("lie", LIES)
def test_lying_files(lie: str, tmp_path: Path) -> None:
    make, words = LIES[lie]
    if lie == "not GGUF":
        skip_without("gguf")
    with pytest.raises(FileError, match=words) as error:
        checkpoints.open(make(tmp_path / "m"))
    assert str(tmp_path) in str(error.value)


def read_all(path: Path) -> dict[str, object]:
    checkpoint = checkpoints.open(path)
    return {
        name: value.row_major() if isinstance(value, mxgemm.MXTensor) else value for name, value in checkpoint.items()
    }


def refusal_of(path: Path) -> str | None:
    """What reading all of it says against it; an error of another kind passes through."""
    try:
        found = read_all(path)
    except (FileError, ValueError) as error:
        return str(error)
    except TypeError as error:
        return str(error) if "which is not MX" in str(error) else pytest.fail(str(error))
    assert all(isinstance(value, (mxgemm.MXTensor, torch.Tensor)) for value in found.values())
    return None


@pytest.mark.parametrize("layout", MAKERS)
def test_truncated_files(layout: str, tmp_path: Path) -> None:
    skip_without(layout)
    made_path = MAKERS[layout](tmp_path / "m", W, {"b": np.ones(3, np.float32)})
    file = made_path if made_path.is_file() else made_path / "model.safetensors"
    whole = file.read_bytes()
    assert read_all(made_path)
    for size in [*range(0, min(len(whole), 64)), *range(64, len(whole) - 32, 37)]:  # GGUF ends with up to 31 of padding
        file.write_bytes(whole[:size])
        with pytest.raises(FileError, match=file.name):
            read_all(made_path)


@pytest.mark.parametrize("layout", MAKERS)
def test_damaged_headers(layout: str, tmp_path: Path) -> None:
    """A byte changed in the head: an error that names the file, or a checkpoint that makes sense."""
    skip_without(layout)
    made_path = MAKERS[layout](tmp_path / "m", W, {"b": np.ones(3, np.float32)})
    file = made_path if made_path.is_file() else made_path / "model.safetensors"
    whole, draw, refused = file.read_bytes(), random.Random(0), 0
    head = len(whole) - 8 * 34 - 12
    for _ in range(120):
        damaged = bytearray(whole)
        damaged[draw.randrange(min(head, 600))] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(damaged))
        refusal = refusal_of(made_path)
        refused += refusal is not None
        assert refusal is None or file.name in refusal or refusal.startswith(("format: ", "l.", "b: "))
    assert refused > 40


def test_lengths_of_a_gguf_file_that_lie(tmp_path: Path) -> None:
    skip_without("gguf")
    path = made.gguf_of(tmp_path / "m.gguf", W)
    whole = path.read_bytes()
    for at in range(8, 260, 4):
        for value in (b"\xff" * 8, b"\0\0\0\0\0\0\0\x7f", (1 << 33).to_bytes(8, "little")):
            path.write_bytes(whole[:at] + value + whole[at + 8 :])
            refusal = refusal_of(path)
            assert refusal is None or "m.gguf" in refusal or "which is not MX" in refusal


@pytest.mark.parametrize("layout", ["quark", "gguf"])
def test_a_file_that_changes_after_it_was_opened(layout: str, tmp_path: Path) -> None:
    skip_without(layout)
    path = MAKERS[layout](tmp_path / "m", W, {})
    checkpoint = checkpoints.open(path)
    file = path if path.is_file() else path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-200])
    with pytest.raises(FileError, match=file.name):
        checkpoint["l.weight"]
    file.unlink()
    with pytest.raises(FileError, match=file.name):
        checkpoint["l.weight"]
    if layout == "quark":
        made.safetensors(file, made.quark({"l.weight": weight(4, 64)}))
        with pytest.raises(FileError, match=r"l.weight: is not what it was when the checkpoint was opened"):
            checkpoint["l.weight"]


def test_scale_bytes_without_a_meaning(tmp_path: Path) -> None:
    w = {"l.weight": weight(4, 32)}
    w["l.weight"].scales[2, 0] = 255
    old = made.compressed_tensors(w)
    config = made.compressed_tensors_config(version="0.13.0")
    with pytest.raises(FileError, match="l.weight_scale: has scale bytes above 252, which mean nothing with bias 125"):
        checkpoints.open(made.folder(tmp_path / "c", old, config))["l.weight"]
    nan = mxgemm.quantize(torch.full((4, 32), torch.nan))
    with pytest.raises(ValueError, match=r"x: has NaN blocks \(scale byte 255\), which ggml would read as numbers"):
        checkpoints.FORMATS["gguf"].encode("x", nan)
    skip_without("gguf")
    with pytest.raises(FileError, match="m.gguf: l.weight: has scale bytes 255: a number for ggml, NaN in MX"):
        checkpoints.open(made.gguf_of(tmp_path / "m.gguf", w))["l.weight"]
