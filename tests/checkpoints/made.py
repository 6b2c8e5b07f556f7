"""Checkpoint files made from the formats' descriptions, by numpy alone: nothing of mxgemm or of a format's own library.

A weight is codes (0 to 15, one an element) and scale bytes; every maker says once more where each of them goes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NAMES = {np.uint8: "U8", np.float32: "F32", np.float16: "F16", np.int64: "I64"}


@dataclass(frozen=True)
class Weight:
    """Codes ``[..., N, K]`` and scale bytes ``[..., N, K/32]``."""

    codes: np.ndarray
    scales: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """float64."""
        powers = np.ldexp(1.0, self.scales.astype(int) - 127)
        return VALUES[self.codes] * np.repeat(powers, 32, axis=-1)

    @property
    def packed(self) -> np.ndarray:
        """Two codes a byte, the even one low."""
        return (self.codes[..., 0::2] + 16 * self.codes[..., 1::2]).astype(np.uint8)


def weight(*shape: int, seed: int = 0, low: int = 100, high: int = 150) -> Weight:
    draw = np.random.default_rng(seed)
    return Weight(
        draw.integers(0, 16, shape).astype(np.uint8),
        draw.integers(low, high, (*shape[:-1], shape[-1] // 32)).astype(np.uint8),
    )


# ---- safetensors files


@dataclass(frozen=True)
class Raw:
    """Bytes with a dtype's name that numpy has not."""

    dtype: str
    array: np.ndarray
    shape: tuple[int, ...] | None = None


def bf16(values: np.ndarray) -> Raw:
    """Upper halves of fp32, which is exact for what tests put in."""
    return Raw("BF16", (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))


def safetensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    """8 bytes of the header's length, the header, the bytes."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    body = b""
    for name, tensor in tensors.items():
        array = tensor.array if isinstance(tensor, Raw) else tensor
        kind = tensor.dtype if isinstance(tensor, Raw) else NAMES[array.dtype.type]
        shape = tensor.shape if isinstance(tensor, Raw) and tensor.shape is not None else array.shape
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def stored(path: Path) -> tuple[dict[str, tuple[str, list[int], bytes]], dict[str, str]]:
    """What a safetensors file holds, by the same description: dtype, shape and bytes of each; metadata."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    body = data[8 + length :]
    return {
        name: (about["dtype"], about["shape"], body[slice(*about["data_offsets"])]) for name, about in header.items()
    }, metadata


def folder(path: Path, tensors: dict[str, Any], config: dict | None, metadata: dict[str, str] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    safetensors(path / "model.safetensors", tensors, metadata)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def sharded(path: Path, shards: list[dict[str, Any]], config: dict | None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    where = {}
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        safetensors(path / file, tensors, {"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


# ---- formats: names, arrays, quantization_config


def quark(weights: dict[str, Weight]) -> dict[str, Any]:
    return {key: array for name, w in weights.items() for key, array in ((name, w.packed), (name + "_scale", w.scales))}


def quark_config(activations: str | None = None, mode: str = "even", **more: Any) -> dict:
    spec = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "scale_format": "e8m0"}
    given = None if activations is None else {**spec, "dtype": activations, "scale_calculation_mode": mode}
    whole = {"weight": spec, "input_tensors": given, "output_tensors": None, "bias": None}
    return {
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "quark", "global_quant_config": whole, "layer_quant_config": {}, "exclude": ["lm_head"],
            **more,
        },
    }  # fmt: skip


def compressed_tensors(weights: dict[str, Weight], bias: int = 127) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, w in weights.items():
        found[name + "_packed"] = w.packed
        found[name + "_scale"] = (w.scales.astype(int) - 127 + bias).astype(np.uint8)
    return found


def compressed_tensors_config(bits: int | None = None, version: str | None = "0.17.0", group: int = 32) -> dict:
    spec = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
    given = None if bits is None else {**spec, "num_bits": bits, "group_size": group, "dynamic": True}
    config = {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": spec, "input_activations": given}},
    }  # fmt: skip
    return {"quantization_config": config if version is None else {**config, "version": version}}


def gpt_oss(weights: dict[str, Weight]) -> dict[str, Any]:
    """Blocks of 16 bytes: the K/32 of a row apart."""
    found: dict[str, Any] = {}
    for name, w in weights.items():
        blocks = w.codes.reshape(*w.scales.shape, 16, 2)
        found[name + "_blocks"] = (blocks[..., 0] | blocks[..., 1] << 4).astype(np.uint8)
        found[name + "_scales"] = w.scales
    return found


GPT_OSS_CONFIG = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def swizzled(scales: np.ndarray) -> np.ndarray:
    """Byte by byte: tiles of 128 x 4, in a tile 32 rows of 16 bytes, in a row four groups of rows, of four columns."""
    rows, columns = scales.shape
    tall, wide = -(-rows // 128), -(-columns // 4)
    flat = np.zeros(tall * wide * 512, np.uint8)
    for r in range(rows):
        for c in range(columns):
            flat[(r // 128 * wide + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r, c]
    return flat.reshape(tall * 32, wide * 16)


def torchao(weights: dict[str, Weight], is_swizzled: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, w in weights.items():
        module, _, parameter = name.rpartition(".")
        found[f"{module}._{parameter}_qdata"] = w.packed
        found[f"{module}._{parameter}_scale"] = Raw("F8_E8M0", swizzled(w.scales) if is_swizzled else w.scales)
    return found


def torchao_metadata(
    names: list[str],
    plain: list[str],
    is_swizzled: bool,
    activations: str | None = "float4_e2m1fn_x2",
    mode: str = "RCEIL",
) -> dict[str, str]:
    def typed(kind: str, value: Any) -> dict:
        return {"_type": kind, "_data": value}

    given = None
    if activations is not None:
        given = typed("QuantizeTensorToMXKwargs", {
            "elem_dtype": typed("torch.dtype", activations), "block_size": 32,
            "scaling_mode": typed("ScaleCalculationMode", mode), "is_swizzled_scales": is_swizzled,
            "kernel_preference": typed("KernelPreference", "EMULATED"),
        })  # fmt: skip
    about = {
        "elem_dtype": typed("torch.dtype", "float4_e2m1fn_x2"), "block_size": 32,
        "orig_dtype": typed("torch.dtype", "bfloat16"), "kernel_preference": typed("KernelPreference", "EMULATED"),
        "act_quant_kwargs": given, "is_swizzled_scales": is_swizzled,
    }  # fmt: skip
    mx = json.dumps({**typed("MXTensor", about), "_tensor_data_names": ["qdata", "scale"]})
    return {
        "tensor_names": json.dumps([*names, *plain]),
        **dict.fromkeys(names, mx),
        **dict.fromkeys(plain, '{"_type": "Tensor"}'),
    }


# ---- GGUF


def ggml_blocks(w: Weight) -> np.ndarray:
    """17 bytes a block: the scale, then element j and element j + 16 in byte j."""
    blocks = w.codes.reshape(*w.scales.shape, 32)
    pairs = (blocks[..., :16] | blocks[..., 16:] << 4).astype(np.uint8)
    return np.concatenate([w.scales[..., None], pairs], axis=-1).reshape(*w.scales.shape[:-1], -1)


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(path: Path, tensors: dict[str, tuple[int, tuple[int, ...], np.ndarray]]) -> Path:
    """Tensors by name: ggml's type (39 is MXFP4, 0 F32), shape as torch has it, bytes. Two fields before them."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3)
    head += gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("llama")
    head += gguf_text("llama.block_count") + struct.pack("<II", 4, 2)
    head += gguf_text("tokens") + struct.pack("<IIQ", 9, 8, 2) + gguf_text("a") + gguf_text("bé")
    body = b""
    for name, (kind, shape, array) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += gguf_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, len(body))
        body += np.ascontiguousarray(array).tobytes()
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + body + b"\0" * (-len(body) % 32))
    return path


def gguf_of(path: Path, weights: dict[str, Weight], plain: dict[str, np.ndarray] | None = None) -> Path:
    tensors = {name: (39, w.codes.shape, ggml_blocks(w)) for name, w in weights.items()}
    tensors |= {name: (0, array.shape, array.astype(np.float32)) for name, array in (plain or {}).items()}
    return gguf(path, tensors)
