"""transformers: quantising on load, saving, loading again, and published checkpoints."""

import copy
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mxgemm
from mxgemm.nn import MXLinear
from tests.integrations.models import (
    CONFIG,
    PUBLISHED,
    QUANTIZED,
    WORDS,
    compressed_tensors,
    encoded,
    quark,
    weights,
    write,
)

pytest.importorskip("transformers", reason="pip install 'mxgemm[transformers]'")
pytest.importorskip("safetensors", reason="pip install 'mxgemm[transformers]'")
pytest.importorskip("mxgemm.integrations.transformers", exc_type=ImportError)  # an older transformers

from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mxgemm.integrations.transformers import MXGemmConfig, adopt

IDS = torch.tensor([[(7 * i * i + 11 * i + 3) % WORDS for i in range(9)]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "bf16")


def load(path: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **options)


def tokens(model: Any) -> list[int]:
    return model.generate(IDS, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, IDS.shape[1] :].tolist()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def same_state(left: nn.Module, right: nn.Module) -> bool:
    one, other = left.state_dict(), right.state_dict()
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def layers(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, MXLinear)]


def by_hand(a_format: str, mlp: str = "") -> Any:
    """The model with every quantised layer a product of the oracle's bytes, made without the integration."""
    model = LlamaForCausalLM._from_config(LlamaConfig(**CONFIG), dtype=torch.bfloat16)
    model.load_state_dict(weights())
    for name in QUANTIZED:
        linear, its = model.get_submodule(name), mlp if mlp and ".mlp." in name else a_format
        model.set_submodule(name, MXLinear.from_parts(*encoded(linear.weight.detach()), linear.bias, a_format=its))
    return model.eval()


@pytest.mark.parametrize("a_format", ["bf16", "e4m3", "e2m1"])
def test_quantised_on_load_saved_and_loaded_again(folder: Path, tmp_path: Path, a_format: str) -> None:
    model = load(folder, quantization_config=MXGemmConfig(a_format))
    assert layers(model) == QUANTIZED
    assert type(model.lm_head) is nn.Linear
    reference = by_hand(a_format)
    assert same_state(model, reference)
    assert torch.equal(logits(model), logits(reference))
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert same_state(again, model)
    assert torch.equal(logits(again), logits(model))
    assert tokens(again) == tokens(model) == tokens(reference)
    again.save_pretrained(tmp_path / "twice")
    name = "model.safetensors"
    assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()


def test_the_formats_of_activations_are_told_apart() -> None:
    models = [logits(by_hand(a_format)).float() for a_format in ("bf16", "e4m3", "e2m1")]
    assert all((one - other).norm() / one.norm() > 0.01 for one, other in pairwise(models))


def test_what_is_saved_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    load(folder, quantization_config=MXGemmConfig("e4m3", "floor")).save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert saved == {
        "quant_method": "mxgemm",
        "a_format": "e4m3",
        "scale_rounding": "floor",
        "modules_to_not_convert": None,
        "prepare": None,
        "experts": False,
        "layers": [],
    }
    layer = load(tmp_path / "saved").model.layers[1].mlp.up_proj
    assert (layer.a_format, layer.scale_rounding) == ("e4m3", "floor")
    want = mxgemm.quantize(weights()["model.layers.1.mlp.up_proj.weight"], scale_rounding="floor")
    assert torch.equal(layer.weight, want.data)
    assert torch.equal(layer.weight_scale, want.scales)


def test_in_several_files(folder: Path, tmp_path: Path) -> None:
    model = load(folder, quantization_config=MXGemmConfig())
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 2
    assert same_state(load(tmp_path / "saved"), model)


def test_a_model_that_quantize_made_is_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    report = mxgemm.quantize_(model, mxgemm.MXConfig("e2m1"), lambda layer, name: "mlp" in name)
    assert len(report.quantized) == 6
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert layers(again) == [name for name in QUANTIZED if "mlp" in name]
    assert same_state(again, model)
    assert tokens(again) == tokens(model)
    with pytest.raises(ValueError, match="got one with a quantization_config"):
        mxgemm.quantize_(again)


def test_a_model_within_a_model_is_told_what_it_is(folder: Path, tmp_path: Path) -> None:
    """As sentence-transformers holds one: the inner model is saved by itself."""
    inner, untouched = load(folder), load(folder)
    outer = nn.ModuleDict({"text": inner, "other": untouched, "head": nn.Linear(64, 8)})
    mxgemm.quantize_(outer, filter_fn=lambda layer, name: name == "head" or name.startswith("text.model.layers.0"))
    inner.save_pretrained(tmp_path / "saved")
    assert same_state(load(tmp_path / "saved"), inner)
    assert layers(inner) == [name for name in QUANTIZED if ".0." in name]
    assert getattr(untouched.config, "quantization_config", None) is None


def test_where_memory_runs_out_on_the_way_the_rest_is_said_to_be_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, real, count = load(folder), MXLinear.from_linear.__func__, []

    def fails(cls: type, linear: nn.Linear, **options: str) -> MXLinear:
        count.append(1)
        if len(count) > 5:
            raise MemoryError
        return real(cls, linear, **options)

    monkeypatch.setattr(MXLinear, "from_linear", classmethod(fails))
    with pytest.raises(MemoryError):
        mxgemm.quantize_(model)
    assert layers(model) == QUANTIZED[:5]
    model.save_pretrained(tmp_path / "saved")
    assert same_state(load(tmp_path / "saved"), model)


def test_a_tied_output_layer_stays(tmp_path: Path) -> None:
    config = LlamaConfig(**{**CONFIG, "tie_word_embeddings": True})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tied")
    for given in (None, [], ["down_proj"]):
        model = load(tmp_path / "tied", quantization_config=MXGemmConfig(modules_to_not_convert=given))
        assert model.lm_head.weight is model.model.embed_tokens.weight
        wanted = [name for name in QUANTIZED if not given or "down_proj" not in name]
        assert layers(model) == wanted
        model.save_pretrained(tmp_path / f"saved {given}")
        again = load(tmp_path / f"saved {given}")
        assert same_state(again, model)
        assert again.lm_head.weight is again.model.embed_tokens.weight


def test_a_list_replaces_what_is_left_out_by_default(folder: Path, tmp_path: Path) -> None:
    given = ["model.layers.0", ".*k_proj"]
    model = load(folder, quantization_config=MXGemmConfig(modules_to_not_convert=given))
    assert "lm_head" in layers(model)
    assert len(layers(model)) == 7
    model.save_pretrained(tmp_path / "saved")
    assert same_state(load(tmp_path / "saved"), model)


def test_layers_are_prepared_where_that_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(MXLinear, "prepare", lambda self, arch=None, *, memory="fast", keep=True: asked.append(memory))
    load(folder, quantization_config=MXGemmConfig(prepare="compact"))
    assert asked == ["compact"] * len(QUANTIZED)


def test_adapters_beside_a_loaded_model_learn(folder: Path) -> None:
    model = load(folder, quantization_config=MXGemmConfig("e2m1"))
    assert model.hf_quantizer.is_trainable
    model(IDS, labels=IDS).loss.backward()
    assert model.model.embed_tokens.weight.grad.isfinite().all()
    assert model.model.embed_tokens.weight.grad.any()


@pytest.mark.slow
def test_a_loaded_model_compiles_into_one_graph(folder: Path) -> None:
    model = load(folder, quantization_config=MXGemmConfig("e2m1"), attn_implementation="sdpa")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(IDS, use_cache=False).logits, model(IDS, use_cache=False).logits)


# ---- published checkpoints


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints(name: str, tmp_path: Path) -> None:
    quantization, a_format = PUBLISHED[name]
    path = write(tmp_path / "theirs", quantization)
    config = AutoConfig.from_pretrained(path)
    before = copy.deepcopy(config.quantization_config)
    model = load(path, config=adopt(config))
    assert config.quantization_config == before
    reference = by_hand(a_format)
    assert same_state(model, reference)
    assert torch.equal(logits(model), logits(reference))
    model.save_pretrained(tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert same_state(again, model)
    assert tokens(again) == tokens(model)


def test_layers_of_several_schemes(tmp_path: Path) -> None:
    theirs, groups = quark("fp4"), compressed_tensors(8)
    theirs["layer_quant_config"] = {"*.mlp.*": quark("fp8_e4m3")["global_quant_config"]}
    attention = {**compressed_tensors(4)["config_groups"]["group_0"], "targets": ["re:.*self_attn"]}
    groups["config_groups"] = {"group_0": attention, "group_1": {**groups["config_groups"]["group_0"]}}
    groups["config_groups"]["group_1"]["targets"] = ["re:.*mlp"]
    del groups["ignore"]  # lm_head is of no group
    reference = by_hand("e2m1", mlp="e4m3")
    for config in (theirs, groups):
        path = write(tmp_path / config["quant_method"], config)
        model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
        assert layers(model) == QUANTIZED
        model.save_pretrained(path / "ours")
        for one in (model, load(path / "ours")):
            assert same_state(one, reference)
            assert torch.equal(logits(one), logits(reference))
    assert not torch.equal(logits(reference), logits(by_hand("e2m1")))


def test_layers_are_quantised_on_load_for_activations_of_their_own(folder: Path, tmp_path: Path) -> None:
    mlp = {"pattern": r".*\.mlp\..*", "a_format": "e4m3", "scale_rounding": "even"}
    model, reference = load(folder, quantization_config=MXGemmConfig("e2m1", layers=[mlp])), by_hand("e2m1", mlp="e4m3")
    assert torch.equal(logits(model), logits(reference))
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), logits(reference))


def test_scales_of_torchs_own_dtype_are_taken_as_the_bytes_that_they_are(tmp_path: Path) -> None:
    typed = {}
    for name in QUANTIZED:
        data, scales = encoded(weights()[f"{name}.weight"])
        typed |= {f"{name}.weight": data, f"{name}.weight_scale": scales.view(torch.float8_e8m0fnu)}
    path = write(tmp_path / "theirs", quark("fp4"), **typed)
    model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
    assert same_state(model, by_hand("e2m1"))
    assert not any(parameter.requires_grad for parameter in model.parameters() if parameter.dtype == torch.uint8)


def test_exclusions_are_matched_as_the_project_matches_them(tmp_path: Path) -> None:
    plain = [name for name in QUANTIZED if ".0.mlp" in name or name.endswith("1.self_attn.o_proj")]
    changed: dict[str, Tensor | None] = {f"{name}.weight": weights()[f"{name}.weight"] for name in plain}
    scales: dict[str, Tensor | None] = {f"{name}.weight_scale": None for name in plain}
    theirs = {**quark(None), "exclude": ["lm_head", "*.0.mlp.*", "model.layers.1.self_attn.o_proj"]}
    path = write(tmp_path / "quark", theirs, **changed, **scales)
    model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
    assert layers(model) == [name for name in QUANTIZED if name not in plain]
    theirs = copy.deepcopy(PUBLISHED["ct-w4a4"][0])
    theirs["ignore"] = ["lm_head", r"re:.*layers\.0\.ml", "model.layers.1.self_attn.o_proj"]
    gone: dict[str, Tensor | None] = {f"{name}.weight_packed": None for name in plain}
    path = write(tmp_path / "ct", theirs, **changed, **scales, **gone)
    model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
    assert layers(model) == [name for name in QUANTIZED if name not in plain]


# ---- what is refused


NAME = "model.layers.1.mlp.up_proj"


def test_missing_bytes_are_an_error_and_not_random(tmp_path: Path) -> None:
    for part in ("weight", "weight_scale"):
        path = write(tmp_path / part, quark("fp4"), **{f"{NAME}.{part}": None})
        with pytest.raises(ValueError, match=rf"checkpoint: {NAME}\.{part}: missing, want the bytes"):
            load(path, config=adopt(AutoConfig.from_pretrained(path)))


@pytest.mark.parametrize("kind", ["values", "floats", "shape"])
def test_other_tensors_in_the_place_of_bytes_are_an_error(kind: str, tmp_path: Path) -> None:
    values = weights()[f"{NAME}.weight"]
    wrong = {"values": values, "floats": values[:, :32].contiguous(), "shape": encoded(values)[0][:64]}[kind]
    path = write(tmp_path / "theirs", quark("fp4"), **{f"{NAME}.weight": wrong})
    with pytest.raises((ValueError, RuntimeError), match=r"up_proj\.weight: got|ignore_mismatched_sizes"):
        load(path, config=adopt(AutoConfig.from_pretrained(path)))
    with pytest.raises(ValueError, match=r"up_proj\.weight: (got a torch.bfloat16|missing)"):
        load(path, config=adopt(AutoConfig.from_pretrained(path)), ignore_mismatched_sizes=True)


def test_a_checkpoint_of_ours_without_its_configuration_is_an_error(folder: Path, tmp_path: Path) -> None:
    load(folder, quantization_config=MXGemmConfig()).save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(tmp_path / "saved")


def test_an_mx_tensor_among_the_attributes_is_not_lost_without_a_word(folder: Path, tmp_path: Path) -> None:
    model = load(folder, quantization_config=MXGemmConfig())
    model.model.layers[0].extra = mxgemm.quantize(torch.ones(32, 32))
    with pytest.raises(ValueError, match=r"the attribute model\.layers\.0\.extra"):
        model.save_pretrained(tmp_path / "saved")


def layer(**changed: Any) -> dict[str, Any]:
    return {"pattern": ".*", "a_format": "e4m3", "scale_rounding": "even", **changed}


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"a_format": "fp4"}, ValueError, "a_format: got 'fp4'"),
        ({"scale_rounding": "up"}, ValueError, "scale_rounding: got 'up'"),
        ({"prepare": "slow"}, ValueError, "prepare: got 'slow'"),
        ({"modules_to_not_convert": "lm_head"}, TypeError, "modules_to_not_convert: got 'lm_head'"),
        ({"bits": 4}, TypeError, "MXGemmConfig: got bits"),
        ({"layers": {"mlp": "e4m3"}}, TypeError, "layers: got .* want a list"),
        ({"layers": [{"pattern": "mlp"}]}, TypeError, "layers: got .* want objects of pattern, a_format and"),
        ({"layers": [layer(pattern=3)]}, TypeError, "pattern: got 3"),
        ({"layers": [layer(pattern="(")]}, ValueError, r"pattern: got '\(', want a regular expression"),
        ({"layers": [layer(a_format="fp4")]}, ValueError, "a_format: got 'fp4'"),
        ({"quant_method": "quark"}, TypeError, "got quant_method 'quark'"),
    ],
    ids=str,
)
def test_wrong_configurations_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MXGemmConfig(**options)


def test_a_model_without_a_layer_to_convert_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="leaves no linear layer"):
        load(folder, quantization_config=MXGemmConfig(modules_to_not_convert=[".*"]))


def test_what_is_not_quantised_is_not_adopted() -> None:
    with pytest.raises(ValueError, match="got one without quantization_config"):
        adopt(LlamaConfig(**CONFIG))


@pytest.mark.slow
def test_without_transformers_a_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import mxgemm.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs transformers >= 5.24 (pip install 'mxgemm[transformers]')" in done.stderr
