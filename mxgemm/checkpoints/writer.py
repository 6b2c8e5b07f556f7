"""Files of tensors, written as the tensors come: the head first, for shapes are known before anything is read.

The ``safetensors`` package writes what is in memory at once; a shard here has one parameter in memory at a time.
Layout: https://github.com/huggingface/safetensors#format, a length, a JSON header, the bytes in its order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints.gguf import PLAIN_TYPES, TYPE, require_gguf
from mxgemm.checkpoints.store import SAFETENSORS_NAMES
from mxgemm.checkpoints.work import written_whole

_ALIGNMENT: Final = 8
_CHUNK: Final = 1 << 26

Spec = tuple[str, torch.dtype, tuple[int, ...]]
"""Name, dtype and shape of a stored tensor."""


def safetensors_head(specs: Sequence[Spec], metadata: Mapping[str, str]) -> bytes:
    """Return the length and the header of a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, dtype, shape in specs:
        end = at + nbytes(dtype, shape)
        header[name] = {"dtype": SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def write_safetensors(
    path: Path, specs: Sequence[Spec], tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file, whole or not at all.

    Args:
        path: of the file, which is replaced.
        specs: of all tensors; those of larger elements first, so that each is aligned to its own.
        tensors: the same tensors in the same order, consumed one by one.
        metadata: text fields of the header.

    Raises:
        OSError: the disk does not take it.
    """
    head = safetensors_head(specs, metadata)
    with written_whole(path) as (file, _):
        file.write(head)
        for spec, (name, tensor) in zip(specs, tensors, strict=True):
            _check(spec, name, tensor)
            write_bytes(file, tensor)


def write_gguf(
    path: Path,
    specs: Sequence[tuple[Spec, str]],
    tensors: Iterable[tuple[str, Tensor]],
    fields: Mapping[str, tuple[Any, Any, Any]],
    architecture: str,
) -> None:
    """Write a GGUF file by the ``gguf`` package, whole or not at all.

    Args:
        path: of the file, which is replaced.
        specs: of all tensors, and ggml's type of each.
        tensors: the same tensors in the same order, consumed one by one.
        fields: key and value metadata as :class:`mxgemm.checkpoints.gguf.GgufStore` has it.
        architecture: of the model, where the fields say none.

    Raises:
        OSError: the disk does not take it.
    """
    gguf = require_gguf()
    named = fields.get("general.architecture", (architecture,))[0]
    with written_whole(path) as (_, partial):
        writer = gguf.GGUFWriter(partial, named)
        try:
            for key, (value, kind, element) in fields.items():
                if key != "general.architecture" and value != []:  # the package has no type for what is in an empty one
                    writer.add_key_value(key, value, kind, element)
            for (name, dtype, shape), kind in specs:
                elements = _numpy(torch.empty(0, dtype=dtype, device="cpu"))
                size = nbytes(dtype, shape)
                writer.add_tensor_info(name, shape, elements.dtype, size, gguf.GGMLQuantizationType[kind])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for (spec, _), (name, tensor) in zip(specs, tensors, strict=True):
                _check(spec, name, tensor)
                writer.write_tensor_data(_numpy(tensor.contiguous()))
        finally:
            writer.close()


def ggml_type(dtype: torch.dtype, stored: str | None) -> str:
    """Return ggml's type of a tensor: that of packed bytes, or of a dtype.

    Raises:
        ValueError: ggml has none.
    """
    if stored is not None:
        return stored
    if dtype not in PLAIN_TYPES:
        raise ValueError(f"dtype: got {dtype}, want one that GGUF has: {', '.join(PLAIN_TYPES.values())} or {TYPE}")
    return PLAIN_TYPES[dtype]


def nbytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor."""
    return dtype.itemsize * int(torch.Size(shape).numel())


def write_bytes(file: Any, tensor: Tensor) -> None:
    """Write the elements of a tensor in order, in parts of 64 MB."""
    rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
    step = max(1, _CHUNK // max(1, nbytes(rows.dtype, rows.shape[1:])))
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step].detach().cpu().contiguous().flatten()
        file.write(part.view(torch.uint8).numpy().data)


def _numpy(tensor: Tensor) -> Any:
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _check(spec: Spec, name: str, tensor: Tensor) -> None:
    if spec != (name, tensor.dtype, tuple(tensor.shape)):
        raise AssertionError(f"{name}: {tensor.dtype} {tuple(tensor.shape)} where {spec} was planned")
