"""Every format byte for byte, against files that numpy made; what metadata says of activations; what is asked for."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mxgemm
from mxgemm import checkpoints
from mxgemm.checkpoints import Checkpoint
from mxgemm.files import FileError
from tests.checkpoints import made
from tests.checkpoints.layouts import MAKERS, skip_without
from tests.checkpoints.made import weight

PLAIN = {"norm.weight": np.arange(5, dtype=np.float32), "lm_head.weight": np.ones((3, 32), np.float16)}
NAME = "model.layers.0.mlp.down_proj.weight"


def check(checkpoint: Checkpoint, weights: dict[str, made.Weight], plain: dict[str, np.ndarray]) -> None:
    assert set(checkpoint) == {*weights, *plain}
    for name, w in weights.items():
        entry, read = checkpoint.entries[name], checkpoint[name]
        assert isinstance(read, mxgemm.MXTensor)
        assert (entry.kind, entry.type, entry.shape) == ("mx", "e2m1", w.codes.shape)
        assert read.shape == w.codes.shape
        rows = read.row_major()
        assert np.array_equal(rows.data.numpy(), w.packed)
        assert np.array_equal(rows.scales.numpy(), w.scales)
        assert np.array_equal(read.dequantize().double().numpy(), w.values)
        assert np.array_equal(checkpoint.dequantize(name, torch.float32).double().numpy(), w.values)
    for name, array in plain.items():
        assert checkpoint.entries[name].kind == "tensor"
        assert np.array_equal(checkpoint[name].numpy(), array)  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", MAKERS)
def test_every_byte(layout: str, tmp_path: Path) -> None:
    skip_without(layout)
    plain = PLAIN if layout != "gguf" else {name: array.astype(np.float32) for name, array in PLAIN.items()}
    weights = {NAME: weight(130, 96), "a.b.weight": weight(1, 32, seed=1), "a.c.weight": weight(33, 288, seed=2)}
    path = MAKERS[layout](tmp_path / "m", weights, plain)
    checkpoint = checkpoints.open(path)
    assert layout.startswith(checkpoint.format)
    check(checkpoint, weights, plain)
    assert "3 mx, 2 tensor" in repr(checkpoint)
    for again in (pickle.loads(pickle.dumps(checkpoint)), copy.copy(checkpoint), copy.deepcopy(checkpoint)):
        check(again, weights, plain)


@pytest.mark.parametrize("layout", MAKERS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 140), st.integers(1, 9), st.integers(0, 2**16))
def test_any_shape(layout: str, tmp_path: Path, n: int, blocks: int, seed: int) -> None:
    skip_without(layout)
    weights = {"x.weight": weight(n, 32 * blocks, seed=seed, low=2, high=250)}
    check(checkpoints.open(MAKERS[layout](tmp_path / "m", weights, {})), weights, {})


@pytest.mark.parametrize("layout", [name for name in MAKERS if name != "torchao-swizzled"])
def test_a_stack(layout: str, tmp_path: Path) -> None:
    skip_without(layout)
    w = weight(3, 6, 64)
    checkpoint = checkpoints.open(MAKERS[layout](tmp_path / "m", {"e.gate_up_proj": w}, {}))
    check(checkpoint, {"e.gate_up_proj": w}, {})
    stack = checkpoint["e.gate_up_proj"]
    assert isinstance(stack, mxgemm.MXTensor)
    a = torch.randn(4, 64, dtype=torch.bfloat16)
    for e in range(3):
        alone = mxgemm.MXTensor.wrap(torch.from_numpy(w.packed[e]), torch.from_numpy(w.scales[e]))
        assert torch.equal(
            mxgemm.gemm(a, stack[e], a_format="bf16"), mxgemm.gemm(a, alone, a_format="bf16")
        )  # fmt: skip


def test_gpt_oss_conventions(tmp_path: Path) -> None:
    w = weight(2, 8, 64)
    path = MAKERS["gpt-oss"](tmp_path / "m", {"experts.gate_up_proj": w}, {})
    stack = checkpoints.open(path)["experts.gate_up_proj"]
    assert isinstance(stack, mxgemm.MXTensor)
    gate, up = checkpoints.split_gate_up(stack)
    assert np.array_equal(gate.dequantize().double().numpy(), w.values[:, 0::2])
    assert np.array_equal(up.dequantize().double().numpy(), w.values[:, 1::2])
    assert gate.data.untyped_storage().data_ptr() == stack.data.untyped_storage().data_ptr()
    joined = checkpoints.join_gate_up(gate, up)
    assert np.array_equal(joined.data.numpy(), w.packed)
    assert np.array_equal(joined.scales.numpy(), w.scales)
    dense = checkpoints.to_dense(stack, torch.float32)
    assert dense.shape == (2, 64, 8)
    assert np.array_equal(dense.double().numpy(), w.values.transpose(0, 2, 1))
    assert np.array_equal(checkpoints.from_dense(dense).dequantize().double().numpy(), w.values)
    with pytest.raises(ValueError, match="weight: got shape .* want an even number of rows"):
        checkpoints.split_gate_up(stack[:, :7])
    with pytest.raises(ValueError, match="up: got e2m1 of shape"):
        checkpoints.join_gate_up(gate, up[:1])


def test_openais_own_names(tmp_path: Path) -> None:
    w = weight(2, 4, 32)
    tensors = {name.replace("_", ".", 1): array for name, array in made.gpt_oss({"mlp1": w}).items()}
    assert set(tensors) == {"mlp1.blocks", "mlp1.scales"}
    check(checkpoints.open(made.safetensors(tmp_path / "model.safetensors", tensors)), {"mlp1": w}, {})


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    weights = {f"l{i}.weight": weight(4, 32, seed=i) for i in range(6)}
    names = list(weights)
    shards = [made.quark({name: weights[name] for name in names[i : i + 2]}) for i in (0, 2, 4)]
    path = made.sharded(tmp_path / "m", [*shards, dict(PLAIN)], made.quark_config())
    check(checkpoints.open(path), weights, PLAIN)
    part = checkpoints.open(path / "model-00002-of-00004.safetensors")  # config.json lies beside it
    check(part, {name: weights[name] for name in names[2:4]}, {})
    split = [{"l0.weight": weights["l0.weight"].packed}, {"l0.weight_scale": weights["l0.weight"].scales}]
    check(
        checkpoints.open(made.sharded(tmp_path / "s", split, made.quark_config())),
        {"l0.weight": weights["l0.weight"]},
        {},
    )


A = torch.randn(3, 64, dtype=torch.bfloat16)
SAID = {
    "quark a16": (lambda p: made.folder(p, made.quark(W), made.quark_config()), "bf16", "even"),
    "quark a4": (lambda p: made.folder(p, made.quark(W), made.quark_config("fp4", "floor")), "e2m1", "floor"),
    "quark a8": (lambda p: made.folder(p, made.quark(W), made.quark_config("fp8_e4m3")), "e4m3", "even"),
    "ct a16": (
        lambda p: made.folder(p, made.compressed_tensors(W), made.compressed_tensors_config()), "bf16", "even",
    ),
    "ct a4": (
        lambda p: made.folder(p, made.compressed_tensors(W), made.compressed_tensors_config(4)), "e2m1", "even",
    ),
    "ct mx a8": (
        lambda p: made.folder(p, made.compressed_tensors(W), made.compressed_tensors_config(8)), "e4m3", "even",
    ),
    "gpt-oss": (lambda p: made.folder(p, made.gpt_oss(W), made.GPT_OSS_CONFIG), "bf16", "even"),
    "torchao a4": (
        lambda p: made.folder(p, made.torchao(W, False), None, made.torchao_metadata(list(W), [], False)), "e2m1",
        "rceil",
    ),
    "torchao a8": (
        lambda p: made.folder(
            p, made.torchao(W, True), None, made.torchao_metadata(list(W), [], True, "float8_e4m3fn", "FLOOR")
        ), "e4m3", "floor",
    ),
    "torchao weight only": (
        lambda p: made.folder(p, made.torchao(W, False), None, made.torchao_metadata(list(W), [], False, None)), "bf16",
        "even",
    ),
}  # fmt: skip
W = {"l.weight": weight(8, 64)}


@pytest.mark.parametrize("case", SAID)
def test_activations_as_the_metadata_says(case: str, tmp_path: Path) -> None:
    make, a_format, rounding = SAID[case]
    checkpoint = checkpoints.open(make(tmp_path / "m"))
    assert (checkpoint.a_format, checkpoint.scale_rounding) == (a_format, rounding)
    other = "e4m3" if a_format != "e4m3" else "bf16"
    with pytest.raises(ValueError, match=f"a_format: got {other}, but .* says {a_format} of l.weight .*; leave it out"):
        checkpoints.open(tmp_path / "m", a_format=other)  # type: ignore[arg-type]
    assert checkpoints.open(tmp_path / "m", a_format=a_format).a_format == a_format  # type: ignore[arg-type]
    w = checkpoint["l.weight"]
    mxgemm.gemm(A, w, a_format=checkpoint.a_format, scale_rounding=checkpoint.scale_rounding)  # type: ignore[arg-type]


def test_what_is_unknown_is_asked_for(tmp_path: Path) -> None:
    group = made.folder(tmp_path / "g", made.compressed_tensors(W), made.compressed_tensors_config(8, group=128))
    checkpoint = checkpoints.open(group)
    with pytest.raises(
        ValueError, match=r"a_format: .* group_size 128; want open\(path, a_format=\), one of e2m1, e4m3"
    ):
        _ = checkpoint.a_format
    assert checkpoints.open(group, a_format="bf16").scale_rounding == "even"
    half = checkpoints.open(group, a_format="e4m3")
    with pytest.raises(ValueError, match=r"scale_rounding: .* want open\(path, scale_rounding=\)"):
        _ = half.scale_rounding
    assert checkpoints.open(group, a_format="e4m3", scale_rounding="floor").scale_rounding == "floor"

    bare = made.safetensors(tmp_path / "bare.safetensors", made.quark(W))
    with pytest.raises(ValueError, match="format: .* does not say what its bytes are; want format=, one of quark"):
        checkpoints.open(bare)
    with pytest.raises(ValueError, match="a_format: .*nothing without config.json"):
        _ = checkpoints.open(bare, format="quark").a_format
    check(checkpoints.open(bare, format="quark"), W, {})
    with pytest.raises(ValueError, match="format: got quark, but .* says gpt-oss; leave it out"):
        checkpoints.open(made.folder(tmp_path / "o", made.gpt_oss(W), made.GPT_OSS_CONFIG), format="quark")
    with pytest.raises(ValueError, match="format: got 'awq', want one of quark"):
        checkpoints.open(bare, format="awq")


@pytest.mark.parametrize("version", [None, "0.13.1.a20260120", "0.14.0.a1", 14, "new"])
def test_a_version_that_says_no_bias(version: str, tmp_path: Path) -> None:
    config = made.compressed_tensors_config(version=version)
    path = made.folder(tmp_path / "m", made.compressed_tensors(W, bias=125), config)
    with pytest.raises(ValueError, match="scale_bias: .* says version .*; want scale_bias=125 for files that"):
        checkpoints.open(path)
    check(checkpoints.open(path, scale_bias=125), W, {})


@pytest.mark.parametrize(
    "version, bias", [("0.9.4", 125), ("0.13.0", 125), ("0.14.0", 127), ("0.20.1", 127), ("1.0", 127)]
)
def test_versions_that_say_the_bias(version: str, bias: int, tmp_path: Path) -> None:
    config = made.compressed_tensors_config(version=version)
    path = made.folder(tmp_path / "m", made.compressed_tensors(W, bias=bias), config)
    check(checkpoints.open(path), W, {})
    check(checkpoints.open(path, scale_bias=bias), W, {})
    with pytest.raises(
        ValueError, match=f"scale_bias: got {252 - bias}, but version {version} wrote {bias}; leave it out"
    ):
        checkpoints.open(path, scale_bias=252 - bias)
    with pytest.raises(ValueError, match="scale_bias: got 126, want 127 or 125"):
        checkpoints.open(path, scale_bias=126)


def test_layers_of_several_schemes(tmp_path: Path) -> None:
    weights = {"a.weight": weight(2, 32), "b.weight": weight(2, 32)}
    config = made.quark_config("fp4")
    whole = config["quantization_config"]["global_quant_config"]
    config["quantization_config"]["layer_quant_config"] = {"*b": {**whole, "input_tensors": None}}
    checkpoint = checkpoints.open(made.folder(tmp_path / "m", made.quark(weights), config))
    with pytest.raises(ValueError, match=r"a_format: .* has layers of e2m1, bf16; want entries\[name\].scheme of each"):
        _ = checkpoint.a_format
    assert [checkpoint.entries[name].scheme.a_format for name in weights] == ["e2m1", "bf16"]

    groups = made.compressed_tensors_config(4)
    config_groups = groups["quantization_config"]["config_groups"]
    config_groups["group_1"] = {**config_groups["group_0"], "targets": ["re:.*b"], "input_activations": None}
    checkpoint = checkpoints.open(made.folder(tmp_path / "c", made.compressed_tensors(weights), groups))
    assert [checkpoint.entries[name].scheme.a_format for name in weights] == ["e2m1", "bf16"]
    config_groups["group_1"]["targets"] = ["a", "Linear"]
    (tmp_path / "c" / "config.json").write_text(json.dumps(groups))
    with pytest.raises(FileError, match="config_groups: got Linear in several groups, want one"):
        checkpoints.open(tmp_path / "c")


def test_what_is_not_mx_is_left_alone(tmp_path: Path) -> None:
    weights = {"a.weight": weight(2, 32), "b.weight": weight(2, 32)}
    config = made.quark_config("fp4")
    fp8 = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "input_tensors": None}
    config["quantization_config"]["layer_quant_config"] = {"b": fp8}
    tensors = {
        **made.quark({"a.weight": weights["a.weight"]}),
        "b.weight": made.Raw("F8_E4M3", weights["b.weight"].packed),
    }
    tensors["b.weight_scale"] = np.ones(1, np.float32)
    checkpoint = checkpoints.open(made.folder(tmp_path / "m", tensors, config))
    assert [checkpoint.entries[name].kind for name in weights] == ["mx", "foreign"]
    with pytest.raises(TypeError, match="b.weight: is b: weight: dtype fp8_e4m3, qscheme per_tensor, which is not MX"):
        checkpoint["b.weight"]
    with pytest.raises(FileError, match="quantization_config: got quant_method 'fp8', want one of quark"):
        checkpoints.open(made.folder(tmp_path / "f", {}, {"quantization_config": {"quant_method": "fp8"}}))


def test_names_of_any_other_format(tmp_path: Path) -> None:
    weights = {"l.weight": weight(8, 64), "m.weight": weight(3, 32)}
    checkpoint = checkpoints.open(MAKERS["torchao-swizzled"](tmp_path / "m", weights, PLAIN))
    state = dict(checkpoint.stored_as())
    assert {name: tensor.dtype for name, tensor in state.items() if name.startswith("m.weight")} == {
        "m.weight": torch.uint8, "m.weight_scale": torch.uint8,
    }  # fmt: skip
    for name, array in {**made.quark(weights), **PLAIN}.items():
        assert np.array_equal(state[name].numpy(), array)
    blocks = dict(checkpoint.stored_as("gpt-oss"))
    for name, array in made.gpt_oss(weights).items():
        assert np.array_equal(blocks[name].numpy(), array)


def test_scales_in_torchs_dtype(tmp_path: Path) -> None:
    tensors = {"l.weight": W["l.weight"].packed, "l.weight_scale": made.Raw("F8_E8M0", W["l.weight"].scales)}
    check(checkpoints.open(made.folder(tmp_path / "q", tensors, made.quark_config())), W, {})
    packed = {"l.weight_packed": tensors["l.weight"], "l.weight_scale": made.Raw("F8_E8M0", W["l.weight"].scales - 2)}
    config = made.compressed_tensors_config(version="0.13.0")
    check(checkpoints.open(made.folder(tmp_path / "c", packed, config)), W, {})


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MAKERS["quark"](tmp_path / "m", {"l.weight": weight(8, 64)}, {})
    monkeypatch.setattr("mxgemm.checkpoints.store.Store.read", lambda *_: pytest.fail("read"))
    checkpoint = checkpoints.open(path)
    assert checkpoint.entries["l.weight"].nbytes == 8 * 32 + 8 * 2
    assert (len(checkpoint), list(checkpoint), "l.weight" in checkpoint) == (1, ["l.weight"], True)


def test_threads_and_forks_share_a_checkpoint(tmp_path: Path) -> None:
    weights = {f"l{i}.weight": weight(64, 64, seed=i) for i in range(8)}
    checkpoint = checkpoints.open(MAKERS["quark"](tmp_path / "m", weights, {}))
    wrong: list[str] = []

    def read() -> None:
        for name, w in weights.items():
            found = checkpoint[name]
            if not (isinstance(found, mxgemm.MXTensor) and np.array_equal(found.data.numpy(), w.packed)):
                wrong.append(name)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if child == 0:
        read()
        os._exit(bool(wrong))
    for thread in threads:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not wrong


def test_a_read_within_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What interrupts a read and reads from another file leaves the first one its own."""
    from mxgemm.checkpoints import store

    weights = {"a.weight": weight(8, 64), "b.weight": weight(8, 64, seed=1)}
    shards = [made.quark({name: w}) for name, w in weights.items()]
    checkpoint = checkpoints.open(made.sharded(tmp_path / "m", shards, made.quark_config()))
    opened, depth = store._opened, []

    def interrupted(file: Path) -> object:
        handle = opened(file)
        if not depth:
            depth.append(file)
            check(checkpoint, weights, {})
            depth.pop()
        return handle

    monkeypatch.setattr(store, "_opened", interrupted)
    check(checkpoint, weights, {})


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MAKERS["quark"](tmp_path / "m", W, {})
    monkeypatch.chdir(tmp_path)
    checkpoint = checkpoints.open("m")
    monkeypatch.chdir("/")
    check(checkpoint, W, {})


def test_a_tensor_outlives_its_file(tmp_path: Path) -> None:
    w = weight(64, 64)
    path = MAKERS["quark"](tmp_path / "m", {"l.weight": w}, {})
    found = checkpoints.open(path)["l.weight"]
    assert isinstance(found, mxgemm.MXTensor)
    (path / "model.safetensors").unlink()
    found.data[0, 0] ^= 255  # a private mapping: nobody else sees it
    assert np.array_equal(found.data[1:].numpy(), w.packed[1:])


def test_ggml_types_are_decoded_as_the_package_does(tmp_path: Path) -> None:
    skip_without("gguf")
    import gguf

    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    path = made.gguf(
        tmp_path / "m.gguf", {"x": (8, values.shape, blocks), "y": (1, (2, 3), np.ones((2, 3), np.float16))}
    )
    checkpoint = checkpoints.open(path)
    assert (checkpoint.entries["x"].kind, checkpoint.entries["x"].shape) == ("foreign", (4, 64))
    assert np.abs(checkpoint.dequantize("x", torch.float32).numpy() - values).max() < 0.05
    assert checkpoint["y"].shape == (2, 3)
    with pytest.raises(TypeError, match="x: is ggml's Q8_0, which is not MX"):
        checkpoint["x"]
    with pytest.raises(ValueError, match="a_format: .* has no MX tensor"):
        _ = checkpoint.a_format
