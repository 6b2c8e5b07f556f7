"""Checkpoints written here, loaded by transformers with the projects' own code: names, configuration, headers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import mxgemm
from mxgemm import checkpoints
from tests.checkpoints.test_projects import project

transformers = pytest.importorskip("transformers", reason="transformers is not installed (mxgemm[test] has it)")


def llama(path: Path) -> nn.Module:
    """A random Llama of two layers, saved."""
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=64, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(path)
    return model.eval()


def dequantized(model: nn.Module, path: Path) -> int:
    """Put the values of a checkpoint's MX weights into a model, and return how many there are."""
    checkpoint, count = checkpoints.open(path), 0
    for name, entry in checkpoint.entries.items():
        if entry.kind == "mx":
            model.get_parameter(name).data = checkpoint.dequantize(name)
            count += 1
    return count


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


@pytest.mark.slow
def test_compressed_tensors_weights(tmp_path: Path) -> None:
    project("compressed_tensors.compressors.mxfp4")
    model, source = llama(tmp_path / "bf16"), checkpoints.open(tmp_path / "bf16")
    out = checkpoints.convert(
        source, tmp_path / "ct", "compressed-tensors", quantize=["*_proj.weight"], a_format="bf16", shard_bytes=20_000
    )
    assert len(list(out.glob("*.safetensors"))) > 1
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    assert dequantized(model, out) == 14
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize("format", ["torchao", "torchao-swizzled"])
def test_torchao_tensors(format: str, tmp_path: Path) -> None:
    project("torchao.prototype.safetensors.safetensors_support")
    model, source = llama(tmp_path / "bf16"), checkpoints.open(tmp_path / "bf16")
    out = checkpoints.convert(
        source, tmp_path / "ao", format, quantize=["*_proj.weight"], a_format="e2m1", shard_bytes=20_000
    )
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    assert dequantized(model, out) == 14
    for name, parameter in model.named_parameters():
        theirs = loaded.get_parameter(name)
        values = theirs.dequantize() if type(theirs).__name__ == "MXTensor" else theirs
        assert torch.equal(values, parameter), name
    assert sum(type(parameter).__name__ == "MXTensor" for parameter in loaded.parameters()) == 14


def test_dense_and_back(tmp_path: Path) -> None:
    model, source = llama(tmp_path / "bf16"), checkpoints.open(tmp_path / "bf16")
    quark = checkpoints.convert(source, tmp_path / "q", "quark", quantize=["*_proj.weight"], a_format="bf16")
    out = checkpoints.convert(checkpoints.open(quark), tmp_path / "dense", "dense")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    assert dequantized(model, quark) == 14
    assert torch.equal(logits(loaded), logits(model))
    assert isinstance(checkpoints.open(quark)["model.layers.0.mlp.up_proj.weight"], mxgemm.MXTensor)


def test_gpt_oss_experts(tmp_path: Path) -> None:
    """transformers decodes our blocks where it has no kernel for them; its dense parameters are the transposes."""
    config = transformers.GptOssConfig(
        hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=64, max_position_embeddings=32,
        layer_types=["full_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(tmp_path / "bf16")
    source = checkpoints.open(tmp_path / "bf16")
    out = checkpoints.convert(source, tmp_path / "mx", "gpt-oss", quantize=["*.experts.*_proj"])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.bfloat16, quantization_config=transformers.Mxfp4Config(dequantize=True)
    )
    checkpoint = checkpoints.open(out)
    stacks = [name for name, entry in checkpoint.entries.items() if entry.kind == "mx"]
    assert len(stacks) == 2
    dense = checkpoints.open(checkpoints.convert(checkpoint, tmp_path / "dense", "dense"))
    for name in stacks:
        stack = checkpoint[name]
        assert isinstance(stack, mxgemm.MXTensor)
        exact = mxgemm.quantize(model.get_parameter(name).transpose(-1, -2)).dequantize(torch.bfloat16)
        assert torch.equal(loaded.get_parameter(name), exact.transpose(-1, -2))
        assert torch.equal(dense[name], exact.transpose(-1, -2))  # type: ignore[arg-type]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.bfloat16)
    assert torch.equal(logits(again), logits(loaded))
