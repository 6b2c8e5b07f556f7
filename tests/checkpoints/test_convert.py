"""Conversions: every format to every format byte for byte, and nothing half-written whatever happens on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import checkpoints
from mxgemm.checkpoints import Checkpoint
from mxgemm.checkpoints.convert import RECORD
from mxgemm.files import FileError
from tests.checkpoints import made
from tests.checkpoints.layouts import MAKERS, ONE, sharded_source, skip_without
from tests.checkpoints.made import weight

NAME = "model.layers.0.mlp.down_proj.weight"
WEIGHTS = {NAME: weight(130, 96), "a.c.weight": weight(33, 288, seed=2)}
PLAIN = {"norm.weight": np.arange(6, dtype=np.float32), "a.bias": np.ones(3, np.float32)}
TARGETS = [name for name in checkpoints.FORMATS if name != "dense"]


def arrays(target: str) -> dict[str, object]:
    if target.startswith("torchao"):
        return made.torchao(WEIGHTS, target == "torchao-swizzled")
    make = {"quark": made.quark, "compressed-tensors": made.compressed_tensors, "gpt-oss": made.gpt_oss}[target]
    return make(WEIGHTS)


def refusal(source: Checkpoint, target: str) -> str | None:
    """Why the target cannot say what the source says of activations."""
    a_format, rounding = source.a_format, source.scale_rounding
    if target.startswith("torchao") and a_format == "bf16":
        return "a_format: got bf16, want e2m1 or e4m3"
    if target == "gpt-oss" and a_format != "bf16":
        return f"a_format: got {a_format}, want bf16"
    if target == "compressed-tensors" and rounding != "even":
        return f"scale_rounding: got {rounding}, want even"
    return None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", MAKERS)
def test_round_trips(layout: str, target: str, tmp_path: Path) -> None:
    skip_without(layout)
    skip_without(target)
    said = {"a_format": "e2m1", "scale_rounding": "even"} if layout == "gguf" else {}
    source = checkpoints.open(MAKERS[layout](tmp_path / "in", WEIGHTS, PLAIN), **said)  # type: ignore[arg-type]
    out = tmp_path / ("out.gguf" if target == "gguf" else "out")
    words = refusal(source, target)
    if words:
        with pytest.raises(ValueError, match=words):
            checkpoints.convert(source, out, target)
        return
    assert checkpoints.convert(source, out, target) == out
    assert {path.name for path in tmp_path.iterdir()} == {out.name, source.path.name}
    again = checkpoints.open(out)
    assert set(again) == {*WEIGHTS, *PLAIN}
    if target == "gguf":
        assert all(np.array_equal(again.stored(name).numpy(), made.ggml_blocks(w)) for name, w in WEIGHTS.items())
    else:
        found, _ = made.stored(out / "model.safetensors")
        for name, array in {**arrays(target), **PLAIN}.items():
            kind, data = (
                (array.dtype, array.array) if isinstance(array, made.Raw) else (made.NAMES[array.dtype.type], array)
            )  # type: ignore[attr-defined]
            assert found[name] == (kind, list(data.shape), data.tobytes())
        assert len(found) == 2 * len(WEIGHTS) + len(PLAIN)
        assert (again.a_format, again.scale_rounding) == (source.a_format, source.scale_rounding)
    for name, w in WEIGHTS.items():
        read = again[name]
        assert isinstance(read, mxgemm.MXTensor)
        assert np.array_equal(read.row_major().data.numpy(), w.packed)
        assert np.array_equal(read.row_major().scales.numpy(), w.scales)
    for name, array in PLAIN.items():
        assert np.array_equal(again[name].numpy(), array)  # type: ignore[union-attr]


def test_a_stack_and_alignment(tmp_path: Path) -> None:
    """Odd bytes before larger elements would leave these unaligned, which torch cannot map."""
    stack, odd = {"e.up_proj": weight(3, 5, 32)}, {"n": np.arange(3, dtype=np.float32), "h": np.ones(5, np.float16)}
    source = checkpoints.open(MAKERS["gpt-oss"](tmp_path / "in", stack, {**odd, "u": np.ones(3, np.uint8)}))
    again = checkpoints.open(checkpoints.convert(source, tmp_path / "out", "quark"))
    read = again["e.up_proj"]
    assert isinstance(read, mxgemm.MXTensor)
    assert np.array_equal(read.data.numpy(), stack["e.up_proj"].packed)
    assert all(np.array_equal(again[name].numpy(), array) for name, array in odd.items())  # type: ignore[union-attr]


def floats(path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(24, 64, generator=generator).to(torch.bfloat16)
        for name in ("l.q_proj.weight", "lm_head.weight")
    }
    tensors = {name: made.Raw("BF16", tensor.view(torch.int16).numpy()) for name, tensor in state.items()}
    config = {"model_type": "llama", "torch_dtype": "bfloat16", "text_config": {"quantization_config": {}, "a": 1}}
    folder = made.folder(path, {**tensors, "l.norm.weight": np.ones(3, np.float32)}, config)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"old")
    return folder, state


def test_quantised_on_the_way(tmp_path: Path) -> None:
    path, state = floats(tmp_path / "in")
    source = checkpoints.open(path)
    assert source.format == "dense"
    out = checkpoints.convert(
        source, tmp_path / "out", "quark", quantize=["*_proj.weight"], a_format="e4m3", scale_rounding="floor"
    )
    again, want = checkpoints.open(out), mxgemm.quantize(state["l.q_proj.weight"], scale_rounding="floor")
    read = again["l.q_proj.weight"]
    assert isinstance(read, mxgemm.MXTensor)
    assert torch.equal(read.data, want.data)
    assert torch.equal(read.scales, want.scales)
    assert torch.equal(again["lm_head.weight"], state["lm_head.weight"])  # type: ignore[arg-type]
    assert (again.a_format, again.scale_rounding) == ("e4m3", "floor")
    assert again.config is not None
    assert again.config["quantization_config"]["exclude"] == ["lm_head"]
    assert again.config["text_config"] == {"a": 1}
    assert {p.name for p in out.iterdir()} == {"config.json", RECORD, "tokenizer.json", "model.safetensors"}
    back = checkpoints.open(checkpoints.convert(again, tmp_path / "back", "dense"))
    assert back.format == "dense"
    assert torch.equal(back["l.q_proj.weight"], want.dequantize(torch.bfloat16))  # type: ignore[arg-type]
    for format, a_format in (("gpt-oss", None), ("compressed-tensors", "bf16")):
        made_again = checkpoints.convert(source, tmp_path / format, format, quantize=("l.q*",), a_format=a_format)  # type: ignore[arg-type]
        assert checkpoints.open(made_again).a_format == "bf16"


def test_what_a_conversion_asks_for_and_refuses(tmp_path: Path) -> None:
    path, _ = floats(tmp_path / "in")
    source, out = checkpoints.open(path), tmp_path / "out"
    for arguments, words in (
        ({"quantize": ["*_proj.weight"]}, r"a_format: the source says nothing \(quantised now\), and quark has to"),
        ({"quantize": ["nothing*"]}, "quantize: 'nothing\\*' fits no tensor of floating point"),
        ({"quantize": ["l.norm*"], "a_format": "bf16"}, r"l.norm.weight: got shape \[3\], want \[N, K\]"),
        ({"format": "awq"}, "format: got 'awq', want one of quark"),
        ({"shard_bytes": 0}, "shard_bytes: got 0, want at least 1"),
        ({"a_format": "fp4"}, "a_format: got 'fp4', want one of e2m1"),
        ({"format": "torchao", "quantize": ["l.q*"], "a_format": "bf16"}, "a_format: got bf16, want e2m1 or e4m3"),
        ({"format": "gpt-oss", "quantize": ["l.q*"], "a_format": "e2m1"}, "a_format: got e2m1, want bf16"),
        (
            {"format": "compressed-tensors", "quantize": ["l.q*"], "a_format": "e2m1", "scale_rounding": "floor"},
            "scale_rounding: got floor, want even",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            checkpoints.convert(source, out, **{"format": "quark", **arguments})  # type: ignore[arg-type]
    e4m3 = made.torchao_metadata(["x.w"], [], False)
    e4m3["x.w"] = e4m3["x.w"].replace("float4_e2m1fn_x2", "float8_e4m3fn", 1)
    tensors = {
        "x._w_qdata": made.Raw("F8_E4M3", np.ones((2, 32), np.uint8)),
        "x._w_scale": made.Raw("F8_E8M0", np.ones((2, 1), np.uint8)),
    }
    eight = checkpoints.open(made.folder(tmp_path / "e4m3", tensors, {}, e4m3))
    with pytest.raises(ValueError, match="x.w: got e4m3, want e2m1, which is what quark files are read with"):
        checkpoints.convert(eight, out, "quark")
    plain = {"a.w_packed": np.ones(2, np.uint8)}
    twice = checkpoints.open(MAKERS["quark"](tmp_path / "twice", {"a.w": weight(2, 32)}, plain))
    with pytest.raises(ValueError, match="a.w_packed: would be written 2 times in compressed-tensors"):
        checkpoints.convert(twice, out, "compressed-tensors")
    assert not out.exists()
    assert not list(tmp_path.glob("*.partial*"))


def test_places_that_are_taken(tmp_path: Path) -> None:
    source = checkpoints.open(MAKERS["quark"](tmp_path / "in", WEIGHTS, {}))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file", "in"):
        with pytest.raises(FileError, match=f"{name}: is there already; want a name that is free or empty"):
            checkpoints.convert(source, tmp_path / name, "gpt-oss")
    with pytest.raises(FileError, match="lies in .*, which is read"):
        checkpoints.convert(source, tmp_path / "in" / "out", "gpt-oss")
    with pytest.raises(ValueError, match=r"want a name that ends in \.gguf"):
        checkpoints.convert(source, tmp_path / "out", "gguf")
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "x").touch()
    with pytest.raises(FileError, match=f"new.partial: has files and no {RECORD}"):
        checkpoints.convert(source, tmp_path / "new", "gpt-oss")
    (tmp_path / "empty").mkdir()
    assert checkpoints.open(checkpoints.convert(source, tmp_path / "empty", "gpt-oss")).format == "gpt-oss"


def test_nothing_to_convert(tmp_path: Path) -> None:
    source = checkpoints.open(made.folder(tmp_path / "in", {}, {}))
    with pytest.raises(ValueError, match="source: got .*in, which holds no tensor"):
        checkpoints.convert(source, tmp_path / "out", "quark")


def test_gguf_keeps_its_fields_and_other_types(tmp_path: Path) -> None:
    skip_without("gguf")
    import gguf

    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    path = made.gguf(
        tmp_path / "m.gguf", {"x": (8, (4, 64), blocks), "y": (8, (4, 64), blocks), "n": (0, (3,), values[0, :3])}
    )
    source = checkpoints.open(path)
    out = checkpoints.convert(source, tmp_path / "o.gguf", "gguf", quantize=["x"])
    again = checkpoints.open(out)
    assert {name: entry.kind for name, entry in again.entries.items()} == {"x": "mx", "y": "foreign", "n": "tensor"}
    assert np.array_equal(again.stored("y").numpy(), blocks)
    want = mxgemm.quantize(torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)))
    assert torch.equal(again["x"].data, want.data)  # type: ignore[union-attr]
    fields = {key: value for key, (value, _, _) in again.fields.items()}
    assert fields == {"general.architecture": "llama", "llama.block_count": 2, "tokens": ["a", "bé"]}
    with pytest.raises(
        ValueError, match="x: is ggml's Q8_0, which quark files do not hold; want a pattern of quantize="
    ):
        checkpoints.convert(source, tmp_path / "q", "quark")
    with pytest.raises(
        ValueError, match=r"a_format: the source says nothing \(GGUF\), and quark has to; want a_format="
    ):
        checkpoints.convert(again, tmp_path / "q", "quark", quantize=["y"])
    said = checkpoints.convert(again, tmp_path / "q", "quark", quantize=["y"], a_format="e4m3", scale_rounding="even")
    assert checkpoints.open(said).a_format == "e4m3"
    dense = checkpoints.open(checkpoints.convert(source, tmp_path / "d", "dense"))
    assert torch.equal(dense["x"], source.dequantize("x"))  # type: ignore[arg-type]


def test_the_index_is_what_the_files_hold(tmp_path: Path) -> None:
    out = checkpoints.convert(sharded_source(tmp_path / "in"), tmp_path / "out", "quark", shard_bytes=2 * ONE)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 6 * ONE
    held = {name: file.name for file in out.glob("*.safetensors") for name in made.stored(file)[0]}
    assert index["weight_map"] == held
    for file in out.glob("*.safetensors"):
        assert file.stat().st_size < 2 * ONE + 1000
