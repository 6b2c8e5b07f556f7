"""A tiny Llama with random weights, and the same as projects publish it in MXFP4; the files are written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from mxgemm.mx import oracle

HIDDEN, INTERMEDIATE, LAYERS, HEADS, WORDS = 64, 128, 2, 4, 96
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS // 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
QUANTIZED = [
    f"model.layers.{i}.{name}_proj"
    for i in range(LAYERS)
    for name in (
        *(f"self_attn.{x}" for x in "qkvo"),
        *(f"mlp.{x}" for x in ("gate", "up", "down")),
    )
]


def weights(seed: int = 0) -> dict[str, Tensor]:
    """bf16, with rows of different size, so that a scale in a wrong row shows."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(n: int, k: int) -> Tensor:
        rows = torch.exp2(torch.randn(n, 1, generator=generator))
        return (torch.randn(n, k, generator=generator) * rows / k**0.5).to(torch.bfloat16)

    def vector(n: int, middle: float) -> Tensor:
        return (middle + 0.2 * torch.randn(n, generator=generator)).to(torch.bfloat16)

    state = {"model.embed_tokens.weight": matrix(WORDS, HIDDEN) * 8, "lm_head.weight": matrix(WORDS, HIDDEN)}
    state["model.norm.weight"] = vector(HIDDEN, 1)
    for i in range(LAYERS):
        at, half = f"model.layers.{i}.", HIDDEN // 2
        for name, n in (("q", HIDDEN), ("k", half), ("v", half), ("o", HIDDEN)):
            state[f"{at}self_attn.{name}_proj.weight"] = matrix(n, HIDDEN)
            state[f"{at}self_attn.{name}_proj.bias"] = vector(n, 0)
        state[f"{at}mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        state[f"{at}mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        state[f"{at}mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{at}{name}.weight"] = vector(HIDDEN, 1)
    return state


def encoded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes and scales by the numpy oracle."""
    data, scales = oracle.encode(weight.float().numpy(), "e2m1", "even")
    return torch.from_numpy(np.ascontiguousarray(data)), torch.from_numpy(np.ascontiguousarray(scales))


_QUARK = {
    "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "is_dynamic": False, "symmetric": None,
    "scale_format": "e8m0", "scale_calculation_mode": "even", "observer_cls": "PerBlockMXObserver",
}  # fmt: skip
_GROUP = {
    "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True,
    "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8",
}  # fmt: skip


def quark(activations: str | None) -> dict[str, Any]:
    given = None if activations is None else {**_QUARK, "dtype": activations, "is_dynamic": True}
    return {
        "quant_method": "quark",
        "export": {"kv_cache_group": [], "pack_method": "order", "weight_format": "real_quantized"},
        "global_quant_config": {"weight": dict(_QUARK), "input_tensors": given, "output_tensors": None, "bias": None},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head"],
    }


def compressed_tensors(bits: int | None) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {**_GROUP, "dynamic": False},
        "input_activations": None if bits is None else {**_GROUP, "num_bits": bits, "dynamic": True},
        "output_activations": None,
        "format": "mxfp4-pack-quantized",
    }
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "mxfp4-pack-quantized",
        "version": "0.14.0",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


PUBLISHED: dict[str, tuple[dict[str, Any], str]] = {
    "quark-w4a16": (quark(None), "bf16"),
    "quark-w4a8": (quark("fp8_e4m3"), "e4m3"),
    "quark-w4a4": (quark("fp4"), "e2m1"),
    "ct-w4a16": (compressed_tensors(None), "bf16"),
    "ct-w4a4": (compressed_tensors(4), "e2m1"),
}
"""A checkpoint's ``quantization_config``, and the format of activations that it means."""


def write(folder: Path, quantization: dict[str, Any] | None = None, **changed: Tensor | None) -> Path:
    """Write a checkpoint; ``changed`` replaces stored tensors, or leaves them out."""
    state: dict[str, Tensor | None] = {}
    for name, value in weights().items():
        module = name.removesuffix(".weight")
        if quantization is None or module not in QUANTIZED:
            state[name] = value
            continue
        packed = "weight" if quantization["quant_method"] == "quark" else "weight_packed"
        state[f"{module}.{packed}"], state[f"{module}.weight_scale"] = encoded(value)
    state |= changed
    folder.mkdir()
    config = CONFIG if quantization is None else {**CONFIG, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    kept = {name: value for name, value in state.items() if value is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
