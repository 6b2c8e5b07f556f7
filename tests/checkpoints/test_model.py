"""A checkpoint in a torch model: bytes, activations, ties; what is refused leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mxgemm
from mxgemm import checkpoints
from mxgemm.nn import MXLinear, MXWeight
from tests.checkpoints import made
from tests.checkpoints.layouts import MAKERS, skip_without
from tests.checkpoints.made import Weight, weight

WEIGHTS = {"up.weight": weight(96, 64, low=120, high=130), "down.weight": weight(33, 96, seed=1, low=120, high=130)}
PLAIN = {
    "embed.weight": np.random.default_rng(0).normal(size=(12, 64)).astype(np.float32),
    "up.bias": np.random.default_rng(1).normal(size=96).astype(np.float32),
}
IDS = torch.tensor([[3, 7, 1, 11, 5]])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 64)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 33, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.embed(ids))))


def meta(make: Callable[[], nn.Module] = Model) -> Any:
    with torch.device("meta"):
        return make().eval()


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("layout", MAKERS)
def test_every_format(layout: str, tmp_path: Path) -> None:
    skip_without(layout)
    path = MAKERS[layout](tmp_path / "m", WEIGHTS, PLAIN)
    given = {"a_format": "e2m1", "scale_rounding": "floor"} if layout == "gguf" else {}
    checkpoint = checkpoints.open(path, **given)  # type: ignore[arg-type]
    model = meta()
    checkpoints.load_into(model, checkpoint)
    for name, w in WEIGHTS.items():
        layer = model.get_submodule(name.removesuffix(".weight"))
        assert type(layer) is MXLinear
        assert (layer.a_format, layer.scale_rounding) == (checkpoint.a_format, checkpoint.scale_rounding)
        assert np.array_equal(layer.weight.numpy(), w.packed)
        assert np.array_equal(layer.weight_scale.numpy(), w.scales)
        assert not layer.training
    assert np.array_equal(model.up.bias.detach().numpy(), PLAIN["up.bias"])
    assert model.up.bias.requires_grad
    x = nn.functional.embedding(IDS, torch.from_numpy(PLAIN["embed.weight"]))
    how = {"a_format": checkpoint.a_format, "scale_rounding": checkpoint.scale_rounding, "out_dtype": torch.float32}
    up = mxgemm.gemm(x, checkpoint["up.weight"], bias=torch.from_numpy(PLAIN["up.bias"]), **how)  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(model(IDS), mxgemm.gemm(torch.relu(up), checkpoint["down.weight"], **how))  # type: ignore[arg-type]
        assert torch.equal(copy.deepcopy(model)(IDS), model(IDS))


def test_values_against_float64(tmp_path: Path) -> None:
    model = Model().eval()
    checkpoints.load_into(model, checkpoints.open(MAKERS["quark"](tmp_path / "m", WEIGHTS, PLAIN)))
    x = torch.randn(9, 96).bfloat16()
    exact = x.double() @ torch.from_numpy(WEIGHTS["down.weight"].values).T
    with torch.no_grad():
        got = model.down(x).double()
    assert (got - exact).norm() / exact.norm() < 4e-3  # of rounding the result to bf16


def test_layers_of_several_schemes_experts_and_what_is_tied(tmp_path: Path) -> None:
    stack = weight(3, 32, 64, seed=5)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = Model(), nn.Linear(64, 12, bias=False)
            self.head.weight = self.inner.embed.weight
            self.experts = nn.ModuleDict({"up": MXWeight(mxgemm.quantize(torch.ones(3, 32, 64)))})
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.register_buffer("own", torch.full((2,), 7.0, device="cpu"), persistent=False)

    config = made.quark_config("fp4")
    whole = config["quantization_config"]["global_quant_config"]
    config["quantization_config"]["layer_quant_config"] = {"*.down": {**whole, "input_tensors": None}}
    weights = {**{f"inner.{name}": w for name, w in WEIGHTS.items()}, "experts.up.weight": stack}
    plain = {**{f"inner.{name}": w for name, w in PLAIN.items()}, "steps": np.array(4, np.int64)}
    checkpoint = checkpoints.open(made.folder(tmp_path / "m", {**made.quark(weights), **plain}, config))
    model = meta(Whole)
    checkpoints.load_into(model, checkpoint)
    assert [model.inner.up.a_format, model.inner.down.a_format] == ["e2m1", "bf16"]
    assert model.head.weight is model.inner.embed.weight
    assert np.array_equal(model.head.weight.detach().numpy(), PLAIN["embed.weight"])
    assert np.array_equal(model.experts["up"].mx_tensor().data.numpy(), stack.packed)
    assert (int(model.steps), model.own.tolist()) == (4, [7.0, 7.0])
    again = meta(Whole)
    mxgemm.quantize_(again, filter_fn=lambda layer, name: name.startswith("inner"))
    again.load_state_dict(model.state_dict(), assign=True)  # what is loaded is a state as any other
    assert np.array_equal(again.inner.up.weight.numpy(), WEIGHTS["up.weight"].packed)

    both = {**plain, "head.weight": PLAIN["embed.weight"]}
    checkpoint = checkpoints.open(made.folder(tmp_path / "b", {**made.quark(weights), **both}, config))
    model = meta(Whole)
    checkpoints.load_into(model, checkpoint)
    assert model.head.weight is model.inner.embed.weight
    both["head.weight"] = PLAIN["embed.weight"] + 1
    checkpoint = checkpoints.open(made.folder(tmp_path / "c", {**made.quark(weights), **both}, config))
    with pytest.raises(
        ValueError, match="one parameter inner.embed.weight, head.weight, of which the checkpoint holds"
    ):
        checkpoints.load_into(meta(Whole), checkpoint)


def test_a_layer_that_is_mxfp4_already(tmp_path: Path) -> None:
    checkpoint = checkpoints.open(MAKERS["quark a4"](tmp_path / "m", WEIGHTS, PLAIN))
    model = Model()
    mxgemm.quantize_(model, mxgemm.MXConfig("e2m1"))
    checkpoints.load_into(model, checkpoint)
    assert np.array_equal(model.up.weight.numpy(), WEIGHTS["up.weight"].packed)
    assert np.array_equal(model.up.bias.detach().numpy(), PLAIN["up.bias"])
    model = Model()
    mxgemm.quantize_(model, mxgemm.MXConfig("bf16"))
    with pytest.raises(ValueError, match=r": got a layer of \('bf16', 'even'\), but the checkpoint says \('e2m1',"):
        checkpoints.load_into(model, checkpoint)


class Custom(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x


def changed(**modules: nn.Module | None) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Model()
        for name, module in modules.items():
            setattr(model, name, module)
        return model

    return make


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Weight], dict[str, Any], str]] = {
    "missing": (Model, WEIGHTS, {"up.bias": PLAIN["up.bias"]}, "model: has embed.weight, which .* does not hold"),
    "missing MX": (Model, {"up.weight": WEIGHTS["up.weight"]}, PLAIN, "model: has down.weight, which .* does not hold"),
    "unknown": (Model, WEIGHTS, {**PLAIN, "x": PLAIN["up.bias"]}, "model: has no x, which .* holds"),
    "unknown MX": (Model, {**WEIGHTS, "x.weight": weight(2, 32)}, PLAIN, "model: has no x, of which the checkpoint"),
    "shape": (Model, WEIGHTS, {**PLAIN, "up.bias": np.ones(95, np.float32)}, r"got float32 \[95\], want .*\[96\]"),
    "integers": (Model, WEIGHTS, {**PLAIN, "up.bias": np.ones(96, np.int64)}, r"up.bias: got int64 \[96\], want tor"),
    "shape MX": (Model, {**WEIGHTS, "up.weight": weight(95, 64)}, PLAIN, r"up.weight: got shape \[95, 64\], want"),
    "stack": (Model, {**WEIGHTS, "up.weight": weight(1, 96, 64)}, PLAIN, r"up.weight: got shape \[1, 96, 64\], want"),
    "embedding": (
        Model, {**WEIGHTS, "embed.weight": weight(12, 64)}, {"up.bias": PLAIN["up.bias"]}, "embed.weight: got a Emb",
    ),
    "forward": (changed(up=Custom(64, 96)), WEIGHTS, PLAIN, "up.weight: cannot be MXFP4: Custom has a forward"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(what: str, tmp_path: Path) -> None:
    make, weights, plain, message = REFUSED[what]
    checkpoint = checkpoints.open(MAKERS["quark a4"](tmp_path / "m", weights, plain))
    model = make()
    before, modules = state(model), list(model.modules())
    with pytest.raises(ValueError, match=message):
        checkpoints.load_into(model, checkpoint)
    assert list(model.modules()) == modules
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_what_nobody_says_and_what_is_neither(tmp_path: Path) -> None:
    bare = made.safetensors(tmp_path / "bare.safetensors", {**made.quark(WEIGHTS), **PLAIN})
    with pytest.raises(
        ValueError, match=r"a_format: of .*.weight the files say nothing .*; want open\(path, a_format=\)"
    ):
        checkpoints.load_into(meta(), checkpoints.open(bare, format="quark"))
    model = meta()
    checkpoints.load_into(model, checkpoints.open(bare, format="quark", a_format="bf16"))
    assert model.up.a_format == "bf16"
    with pytest.raises(TypeError, match="checkpoint: got str, want what|checkpoint: got '.*', want what"):
        checkpoints.load_into(meta(), str(bare))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model: got"):
        checkpoints.load_into({}, checkpoints.open(bare, format="quark"))  # type: ignore[arg-type]
    lost = meta()
    lost.register_buffer("rope", torch.ones(3, device="meta"), persistent=False)
    with pytest.raises(ValueError, match="model: has rope, which .* does not hold"):
        checkpoints.load_into(lost, checkpoints.open(bare, format="quark", a_format="bf16"))
    only = made.safetensors(tmp_path / "one.safetensors", made.quark({"weight": weight(96, 64)}))
    alone = checkpoints.open(only, format="quark", a_format="bf16")
    with pytest.raises(ValueError, match="cannot be MXFP4: it is the model itself"):
        checkpoints.load_into(nn.Linear(64, 96, bias=False), alone)


def test_a_model_of_transformers_is_told_and_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (mxgemm[test] has it)")
    from mxgemm.integrations.transformers import MXGemmConfig
    from tests.integrations import models

    config = models.quark("fp4")
    config["layer_quant_config"] = {"*.mlp.*": models.quark("fp8_e4m3")["global_quant_config"]}
    checkpoint = checkpoints.open(models.write(tmp_path / "theirs", config))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**models.CONFIG)).eval()
    checkpoints.load_into(model, checkpoint)
    assert MXGemmConfig(**model.config.quantization_config).a_format == "e2m1"
    model.save_pretrained(tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.bfloat16)
    layers = [name for name, layer in again.named_modules() if isinstance(layer, MXLinear)]
    assert layers == models.QUANTIZED
    assert {name: again.get_submodule(name).a_format for name in layers} == {
        name: "e4m3" if ".mlp." in name else "e2m1" for name in layers
    }
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)
