"""gpt-oss: its experts, against transformers' own decoder of the same files and its own module."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from tests.cases import spread

pytest.importorskip("transformers", reason="pip install 'mxgemm[transformers]'")
pytest.importorskip("safetensors", reason="pip install 'mxgemm[transformers]'")
pytest.importorskip("mxgemm.integrations.transformers", exc_type=ImportError)  # an older transformers

from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, Mxfp4Config
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from mxgemm.integrations.gpt_oss import MXGptOssExperts
from mxgemm.integrations.transformers import MXGemmConfig, adopt

E, HIDDEN, INNER, TOP = 4, 64, 96, 2
IDS = torch.tensor([[3, 17, 40, 5, 9, 22, 31]])


def config() -> GptOssConfig:
    return GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2, num_local_experts=E, num_experts_per_tok=TOP,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=64, max_position_embeddings=64,
        layer_types=["sliding_attention", "full_attention"], eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def published(folder: Path) -> Path:
    """A checkpoint as gpt-oss publishes it: bf16 but for the experts' blocks and scales, output features first."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(config()).bfloat16()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if name.endswith("_proj") and "experts" in name]:
        weight = mxgemm.quantize(state.pop(name).transpose(1, 2) * 1.0)
        count, n, k = weight.shape
        state[f"{name}_blocks"] = weight.data.view(count, n, k // 32, 16)
        state[f"{name}_scales"] = weight.scales
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": left}
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def load(path: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **options)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def test_a_published_checkpoint_gives_what_transformers_gives_by_its_own_decoder(tmp_path: Path) -> None:
    path = published(tmp_path / "theirs")
    model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
    theirs = load(path, quantization_config=Mxfp4Config(dequantize=True))
    stored = load_file(path / "model.safetensors")
    for i in range(2):
        ours, decoded = model.model.layers[i].mlp.experts, theirs.model.layers[i].mlp.experts
        assert isinstance(ours, MXGptOssExperts)
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(ours, name).mx_tensor()
            blocks = stored[f"model.layers.{i}.mlp.experts.{name}_blocks"]
            assert torch.equal(weight.data, blocks.flatten(-2))
            assert torch.equal(weight.dequantize(torch.bfloat16).transpose(1, 2), getattr(decoded, name))
    want = logits(theirs)
    assert (logits(model) - want).norm() / want.norm() < 2e-2  # of bf16 sums in another order
    assert want.std() > 0.1


def test_it_is_saved_as_ours_and_loads_again(tmp_path: Path) -> None:
    path = published(tmp_path / "theirs")
    model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
    model.save_pretrained(tmp_path / "ours")
    names = load_file(tmp_path / "ours" / "model.safetensors")
    assert "model.layers.1.mlp.experts.down_proj.weight_scale" in names
    again = load(tmp_path / "ours")
    one, other = model.state_dict(), again.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(logits(again), logits(model))
    tokens = [m.generate(IDS, max_new_tokens=6, do_sample=False).tolist() for m in (model, again)]
    assert tokens[0] == tokens[1]


def test_the_model_is_one_graph(tmp_path: Path) -> None:
    path = published(tmp_path / "theirs")
    model = load(path, config=adopt(AutoConfig.from_pretrained(path)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(logits(compiled), logits(model))


def experts() -> tuple[MXGptOssExperts, GptOssExperts]:
    """Ours with random weights of different scales, and transformers' with the same values in float64."""
    with torch.device("meta"):
        ours = MXGptOssExperts(GptOssExperts(config()), "bf16", "even")
    ours = ours.to_empty(device="cpu")
    theirs = GptOssExperts(config()).double()
    for name, n, k in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
        weight = mxgemm.quantize(torch.stack([spread(n, k, octaves=2, seed=e) for e in range(E)]) * 0.1)
        getattr(ours, name).load_state_dict({"weight": weight.data, "weight_scale": weight.scales})
        getattr(theirs, name).data = weight.dequantize().double().transpose(1, 2).contiguous()
        bias = torch.randn(E, n)
        getattr(ours, f"{name}_bias").data, getattr(theirs, f"{name}_bias").data = bias, bias.double()
    return ours, theirs


@pytest.mark.parametrize("tokens", [1, 9, 0])
def test_the_experts_against_transformers_own_in_float64(tokens: int) -> None:
    ours, theirs = experts()
    x = torch.randn(tokens, HIDDEN).bfloat16().float()
    places = torch.stack([torch.randperm(E)[:TOP] for _ in range(tokens)]) if tokens else torch.zeros(0, TOP).long()
    weights = torch.rand(tokens, TOP)
    got = ours(x, places, weights)
    want = theirs(x.double(), places, weights.double())
    assert got.shape == want.shape
    assert got.dtype == torch.float32
    if tokens:
        assert (got.double() - want).norm() / want.norm() < 5e-3  # the inner activations are rounded to bf16


def test_gradients_reach_the_tokens_and_the_router() -> None:
    ours, theirs = experts()
    x = torch.randn(5, HIDDEN).bfloat16().float().requires_grad_()
    places = torch.stack([torch.randperm(E)[:TOP] for _ in range(5)])
    weights = torch.rand(5, TOP, requires_grad=True)
    ours(x, places, weights).sum().backward()
    exact_x, exact_weights = x.detach().double().requires_grad_(), weights.detach().double().requires_grad_()
    theirs(exact_x, places, exact_weights).sum().backward()
    assert (x.grad - exact_x.grad).norm() / exact_x.grad.norm() < 1e-2
    assert (weights.grad - exact_weights.grad).norm() / exact_weights.grad.norm() < 1e-2


def test_experts_are_asked_for_in_quantised_checkpoints_alone(tmp_path: Path) -> None:
    GptOssForCausalLM(config()).bfloat16().save_pretrained(tmp_path / "bf16")
    with pytest.raises(ValueError, match="experts: got True for a model that is not quantised"):
        load(tmp_path / "bf16", quantization_config=MXGemmConfig(experts=True))
    model = load(tmp_path / "bf16", quantization_config=MXGemmConfig())  # linear layers alone, experts as they were
    assert type(model.model.layers[0].mlp.experts) is GptOssExperts
    with pytest.raises(TypeError, match="experts: got 1, want True or False"):
        MXGemmConfig(experts=1)


def test_missing_scales_are_an_error(tmp_path: Path) -> None:
    path = published(tmp_path / "theirs")
    state = load_file(path / "model.safetensors")
    del state["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.down_proj\.weight_scale: missing"):
        load(path, config=adopt(AutoConfig.from_pretrained(path)))
