"""GGUF files, through the ``gguf`` package: MXFP4 is MX; F32, F16 and BF16 are tensors; other types are foreign.

A block of 32 elements is 17 bytes: the E8M0 scale, then 16 bytes of which byte j holds element j in its low nibble and
element j + 16 in its high one; ggml counts elements double and scales half. Where MX has NaN, scale byte 255, ggml has
the number 2**128, so that byte is refused either way. Shapes here are torch's, the reverse of ggml's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry, Format, foreign_entry, plain_entry
from mxgemm.checkpoints.gguf_header import check_header
from mxgemm.checkpoints.quark import require_e2m1
from mxgemm.checkpoints.scheme import Given, Scheme
from mxgemm.checkpoints.store import Store, Stored, check_regular
from mxgemm.files import FileError
from mxgemm.mx.codec import row_chunks
from mxgemm.mx.formats import BLOCK, E8M0_NAN
from mxgemm.mx.tensor import MXTensor

SUFFIX: Final = ".gguf"
TYPE: Final = "MXFP4"
BLOCK_BYTES: Final = 1 + BLOCK // 2
_HALF: Final = BLOCK // 2
_PLAIN: Final = {
    **{"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64},
    **{"I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64},
}
PLAIN_TYPES: Final = {dtype: name for name, dtype in _PLAIN.items()}


def require_gguf() -> Any:
    """Return the ``gguf`` package.

    Raises:
        ImportError: it is missing; the message says how to get it.
    """
    try:
        import gguf
    except ImportError as error:
        raise ImportError("GGUF files need the gguf package: pip install 'mxgemm[gguf]'") from error
    return gguf


@dataclass(eq=False)
class GgufStore(Store):
    """The tensors of a GGUF file; quantised types are stored bytes ``[..., bytes of a row]``.

    Attributes:
        offsets: where each tensor begins.
        fields: key and value metadata: name to value, value type and type of an array's elements.
    """

    offsets: dict[str, int] = field(default_factory=dict)
    fields: dict[str, tuple[Any, Any, Any]] = field(default_factory=dict)

    def read(self, name: str) -> Tensor:
        """Return a tensor in memory of its own."""
        stored = self.tensors[name]
        check_regular(stored.file)
        buffer = torch.empty(stored.nbytes, dtype=torch.uint8, device="cpu")
        try:
            with open(stored.file, "rb") as file:
                file.seek(self.offsets[name])
                got = file.readinto(buffer.numpy().data)
        except OSError as error:
            raise self.error(name, f"cannot be read ({error.strerror or error})") from error
        if got != stored.nbytes:
            raise self.error(name, "is cut off: the file is shorter than when it was opened")
        return buffer.view(stored.dtype).view(stored.shape)


def open_gguf(path: Path) -> GgufStore:
    """Return the tensors of a GGUF file.

    Raises:
        FileError: it is damaged, or says what it does not hold.
        ImportError: the gguf package is missing.
    """
    gguf = require_gguf()
    check_header(path)
    try:
        with np.errstate(over="ignore"):  # an offset that lies: what it gives is checked below
            reader = gguf.GGUFReader(path)
        found = [(t.name, t.tensor_type, [int(n) for n in t.shape], int(t.data_offset)) for t in reader.tensors]
        fields = {key: _field(entry) for key, entry in reader.fields.items() if not key.startswith("GGUF.")}
        swapped = reader.byte_order != "I"
        del reader  # and its mapping
    except Exception as error:  # the package lets its own, numpy's and Python's through
        raise FileError(f"{path}: no GGUF file that can be read ({type(error).__name__}: {error})") from error
    if swapped:
        raise FileError(f"{path}: is of the other byte order; want the machine's own")
    store = GgufStore(path, {}, files=(path,), fields=fields)
    size = path.stat().st_size
    for name, kind, shape, offset in found:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        *leading, row = reversed(shape)
        if row % block:
            raise FileError(f"{path}: {name}: got rows of {row}, want a multiple of {block} for {kind.name}")
        dtype = _PLAIN.get(kind.name, torch.uint8)
        columns = row if kind.name in _PLAIN else row // block * block_bytes
        store.tensors[name] = stored = Stored(dtype, (*leading, columns), path, kind.name)
        store.offsets[name] = offset
        if offset < 0 or offset + stored.nbytes > size:
            raise FileError(f"{path}: {name}: ends at byte {offset + stored.nbytes} of a file of {size}")
    return store


class Gguf(Format):
    """See the module."""

    name = "gguf"

    def detects(self, store: Store) -> bool:
        """By the file itself."""
        return isinstance(store, GgufStore)

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield every tensor."""
        del given
        for name, stored in store.tensors.items():
            if stored.type in _PLAIN:
                yield plain_entry(name, store)
            elif stored.type == TYPE:
                shape = (*stored.shape[:-1], stored.shape[-1] // BLOCK_BYTES * BLOCK)
                words = "blocks of 17 bytes"
                yield Entry(name, "mx", shape, "e2m1", (name,), stored.nbytes, words, Scheme(says="nothing (GGUF)"))
            else:
                entry = foreign_entry(name, (name,), store, f"ggml's {stored.type}")
                yield replace(entry, shape=logical_shape(stored.type, stored.shape))

    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """Pair the nibbles as MX has them.

        Raises:
            FileError: a scale byte 255.
        """
        weight = from_blocks(store.read(entry.name))
        if bool((weight.scales == E8M0_NAN).any()):
            raise store.error(entry.name, "has scale bytes 255: a number for ggml, NaN in MX")
        return weight

    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Pair the nibbles as ggml has them.

        Raises:
            ValueError: not e2m1, or NaN blocks, which ggml would read as zeros.
        """
        require_e2m1(name, weight, self.name)
        if weight.device.type != "meta" and bool((weight.scales == E8M0_NAN).any()):
            raise ValueError(f"{name}: has NaN blocks (scale byte 255), which ggml would read as numbers")
        return {name: to_blocks(weight)}


def from_blocks(blocks: Tensor) -> MXTensor:
    """Return the weight of ggml blocks, uint8 ``[..., K/32 * 17]``."""
    *leading, row_bytes = blocks.shape
    columns = row_bytes // BLOCK_BYTES
    apart = blocks.reshape(-1, BLOCK_BYTES)
    packed = torch.empty((apart.shape[0], _HALF), dtype=torch.uint8, device=blocks.device)
    for part in row_chunks(apart.shape[0], BLOCK):
        pairs = apart[part, 1:]
        codes = torch.cat((pairs & 15, pairs >> 4), dim=-1)  # elements of a block in order
        packed[part] = codes[:, 0::2] | codes[:, 1::2] << 4
    scales = apart[:, 0].reshape(*leading, columns).contiguous()
    return MXTensor.wrap(packed.view(*leading, columns * _HALF), scales)


def to_blocks(weight: MXTensor) -> Tensor:
    """Return ggml blocks, uint8 ``[..., K/32 * 17]``, of a row-major e2m1 weight."""
    *leading, columns = weight.scales.shape
    if weight.device.type == "meta":  # the first operation there would import 160 MB of torch
        return torch.empty((*leading, columns * BLOCK_BYTES), dtype=torch.uint8, device="meta")
    packed, scales = weight.data.reshape(-1, _HALF), weight.scales.reshape(-1)
    blocks = torch.empty((scales.shape[0], BLOCK_BYTES), dtype=torch.uint8, device=weight.device)
    blocks[:, 0] = scales
    for part in row_chunks(scales.shape[0], BLOCK):
        codes = torch.stack((packed[part] & 15, packed[part] >> 4), dim=-1).flatten(-2)
        blocks[part, 1:] = codes[:, :_HALF] | codes[:, _HALF:] << 4
    return blocks.view(*leading, columns * BLOCK_BYTES)


def dequantize(entry: Entry, store: Store) -> Tensor:
    """Return the fp32 values of a tensor in one of ggml's types, as the gguf package decodes it.

    Raises:
        FileError: a type that the package does not decode.
    """
    gguf = require_gguf()
    stored = store.tensors[entry.name]
    try:
        values = gguf.quants.dequantize(store.read(entry.name).numpy(), gguf.GGMLQuantizationType[stored.type])
    except NotImplementedError as error:
        raise store.error(entry.name, str(error)) from error
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def logical_shape(kind: str, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in elements of a tensor of a ggml type, of its shape in stored bytes."""
    gguf = require_gguf()
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return (*stored[:-1], stored[-1] // block_bytes * block)


def _field(entry: Any) -> tuple[Any, Any, Any]:
    return entry.contents(), entry.types[0], entry.types[-1] if len(entry.types) > 1 else None
