"""Tiny Llama and Qwen2 models with random weights, written as MXFP4 checkpoints by mxgemm.checkpoints.convert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import mxgemm

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, WORDS = 256, 512, 2, 4, 2, 512
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,  # 64: vLLM's attention on a CPU takes multiples of 32
    "vocab_size": WORDS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": True, "mlp_bias": False},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
}
A_FORMATS = {"w4a16": "bf16", "w4a8": "e4m3", "w4a4": "e2m1"}
FORMATS = {"ct": "compressed-tensors", "quark": "quark"}
PROMPTS = [[(7 * i * i + 11 * i + 3) % WORDS for i in range(start, start + 10)] for start in (0, 10, 20, 30)]


def weights(kind: str, seed: int = 0) -> dict[str, Tensor]:
    """bf16; log-probabilities spread over some units, so that errors show."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(n: int, k: int) -> Tensor:
        rows = torch.exp2(torch.randn(n, 1, generator=generator) * 0.5)  # a scale in a wrong row shows
        return (torch.randn(n, k, generator=generator) * rows / k**0.5).to(torch.bfloat16)

    def vector(n: int, middle: float) -> Tensor:
        return (middle + 0.3 * torch.randn(n, generator=generator)).to(torch.bfloat16)

    state = {"model.embed_tokens.weight": torch.randn(WORDS, HIDDEN, generator=generator).to(torch.bfloat16)}
    kv = KV_HEADS * HIDDEN // HEADS
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name, n in (("q", HIDDEN), ("k", kv), ("v", kv), ("o", HIDDEN)):
            state[f"{at}self_attn.{name}_proj.weight"] = matrix(n, HIDDEN)
            if name != "o" or kind == "llama":
                state[f"{at}self_attn.{name}_proj.bias"] = vector(n, 0)
        state[f"{at}mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        state[f"{at}mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        state[f"{at}mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{at}{name}.weight"] = vector(HIDDEN, 1)
    state["model.norm.weight"] = vector(HIDDEN, 1)
    state["lm_head.weight"] = matrix(WORDS, HIDDEN)
    return state


def make(folder: Path, flavour: str) -> Path:
    """Write ``folder/flavour``, "llama-ct-w4a4" or the like, from ``folder/llama`` in bf16, made if it is not there."""
    kind, format, scheme = flavour.split("-")
    source = folder / kind
    if not source.exists():
        source.mkdir(parents=True)
        (source / "config.json").write_text(json.dumps(CONFIG | KINDS[kind]))
        save_file(weights(kind), source / "model.safetensors", metadata={"format": "pt"})
    a_format: Any = A_FORMATS[scheme]
    checkpoint = mxgemm.checkpoints.open(source, format="dense")
    return mxgemm.checkpoints.convert(
        checkpoint,
        folder / flavour,
        FORMATS[format],
        quantize=["*_proj.weight"],
        a_format=a_format,
        scale_rounding=None if a_format == "bf16" else "even",
    )


def logprobs(folder: Path, texts: list[list[int]], a_format: str | None = None) -> Tensor:
    """Of the token after each one of some texts, fp32 ``[tokens, WORDS]``, by transformers with mxgemm's layers.

    ``a_format`` is another one than the checkpoint's.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    # Not .to(dtype), which rounds the rotary frequencies.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    mxgemm.checkpoints.load_into(model, mxgemm.checkpoints.open(folder))
    for module in model.modules():
        if isinstance(module, mxgemm.nn.MXLinear):
            module.a_format = module.a_format if a_format is None else a_format
        else:
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter.data = parameter.data.float()
    with torch.no_grad():
        return torch.cat([torch.log_softmax(model(torch.tensor([text])).logits[0], -1) for text in texts])
