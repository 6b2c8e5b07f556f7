"""gpt-oss's MXFP4: ``X_blocks`` uint8 ``[..., N, K/32, 16]``, ``X_scales`` uint8 ``[..., N, K/32]``, low nibble first.

Experts are stacks ``[E, N, K]``. ``gate_up_proj`` has gate and up in turn along N (:func:`split_gate_up`), and the
parameter of the dense model is the transpose, ``[E, K, N]`` (:func:`to_dense`, :func:`from_dense`). OpenAI's own files
say ``X.blocks``. Activations are bf16: transformers' ``quant_method`` "mxfp4" quantises weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry, Format, plain_entry
from mxgemm.checkpoints.quark import require_e2m1
from mxgemm.checkpoints.scheme import EVERY, Given, Rule, Scheme, one_scheme
from mxgemm.checkpoints.store import Store
from mxgemm.mx.formats import BLOCK, ScaleRounding
from mxgemm.mx.tensor import MXTensor
from mxgemm.quantize import quantize

BLOCKS: Final = "_blocks"
SCALES: Final = "_scales"
_SUFFIXES: Final = ((BLOCKS, SCALES), (".blocks", ".scales"))
_BYTES: Final = BLOCK // 2
_SCHEME: Final = Scheme("bf16", None, "quant_method mxfp4, which leaves activations as they are")


class GptOss(Format):
    """See the module."""

    name = "gpt-oss"

    def detects(self, store: Store) -> bool:
        """By ``quant_method``, or by names that no other format has."""
        method = store.quantization.get("quant_method")
        return method == "mxfp4" or (
            method is None and any(_scales_of(name) in store.tensors for name in store.tensors)
        )

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield blocks with their scales as one, and the rest."""
        del given
        taken = {_scales_of(name) for name in store.tensors if _scales_of(name) in store.tensors}
        for name, stored in store.tensors.items():
            if name in taken:
                continue
            if not _scales_of(name):
                if name.endswith(tuple(scales for _, scales in _SUFFIXES)):
                    raise store.error(name, "has no blocks beside it")
                yield plain_entry(name, store)
                continue
            yield _entry(name, _scales_of(name), stored.shape, store, _SCHEME)

    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """Make rows of the blocks, without a copy."""
        blocks, scales = (store.read(part) for part in entry.parts)
        return MXTensor.wrap(blocks.flatten(-2), scales)

    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Make blocks of the rows, without a copy.

        Raises:
            ValueError: not e2m1.
        """
        require_e2m1(name, weight, self.name)
        blocks = weight.data.reshape(*weight.scales.shape, _BYTES)
        return {name + BLOCKS: blocks, name + SCALES: weight.scales}

    def rules(self, config: Mapping[str, Any]) -> Iterator[Rule]:
        """Yield the one scheme: weights alone are quantised."""
        del config
        yield Rule(EVERY, "quant_method", _SCHEME)

    def excluded(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield all: it is the weights of experts that are quantised, and they are no linear layers."""
        del config
        yield EVERY

    def quantization_config(self, schemes: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
        """Return transformers' configuration.

        Raises:
            ValueError: activations are not bf16.
        """
        scheme = one_scheme(schemes, self.name)
        if scheme.a_format != "bf16":
            raise ValueError(f"a_format: got {scheme.a_format}, want bf16: {self.name} files quantise weights alone")
        return {"quant_method": "mxfp4", "modules_to_not_convert": list(plain)}


def split_gate_up(weight: MXTensor) -> tuple[MXTensor, MXTensor]:
    """Return gate and up of ``gate_up_proj`` ``[E, 2 N, K]``: views of ``[E, N, K]``, every other row.

    Raises:
        ValueError: an odd number of rows, or one dimension.
    """
    if len(weight.shape) < 2 or weight.shape[-2] % 2:
        raise ValueError(f"weight: got shape {weight.shape}, want an even number of rows, gate and up in turn")
    whole = (slice(None),) * (len(weight.shape) - 2)
    gate, up = (*whole, slice(0, None, 2)), (*whole, slice(1, None, 2))
    return weight[gate], weight[up]


def join_gate_up(gate: MXTensor, up: MXTensor) -> MXTensor:
    """Return ``gate_up_proj`` of two weights ``[..., N, K]``: their rows in turn.

    Raises:
        ValueError: they differ in shape or format.
    """
    if gate.shape != up.shape or gate.format is not up.format or len(gate.shape) < 2:
        raise ValueError(f"up: got {up.format} of shape {up.shape}, want {gate.format} of shape {gate.shape} as gate")
    gate, up = gate.row_major(), up.row_major()
    data = torch.stack((gate.data, up.data), dim=-2).flatten(-3, -2)
    scales = torch.stack((gate.scales, up.scales), dim=-2).flatten(-3, -2)
    return MXTensor.wrap(data, scales, format=gate.format.name)


def to_dense(weight: MXTensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return the parameter of the dense model, ``[E, K, N]``, of a stack ``[E, N, K]``: the transpose, contiguous."""
    return weight.dequantize(dtype).transpose(-1, -2).contiguous()


def from_dense(parameter: Tensor, *, scale_rounding: ScaleRounding = "even") -> MXTensor:
    """Quantise a parameter of the dense model, ``[E, K, N]``, along K, to a stack ``[E, N, K]``, one after the other.

    Raises:
        TypeError, ValueError: as :func:`mxgemm.quantize`; no three dimensions, or no expert.
    """
    if not isinstance(parameter, Tensor) or parameter.dim() != 3 or not len(parameter):
        shape = tuple(parameter.shape) if isinstance(parameter, Tensor) else type(parameter).__name__
        raise ValueError(f"parameter: got {shape}, want [E, K, N], E at least 1")
    experts = [quantize(expert.T, scale_rounding=scale_rounding) for expert in parameter]
    return MXTensor.wrap(torch.stack([e.data for e in experts]), torch.stack([e.scales for e in experts]))


def _scales_of(name: str) -> str:
    """Return the name of the scales of blocks; "" for a name that says no blocks."""
    for blocks, scales in _SUFFIXES:
        if name.endswith(blocks):
            return name.removesuffix(blocks) + scales
    return ""


def _entry(blocks: str, scales: str, shape: tuple[int, ...], store: Store, scheme: Scheme) -> Entry:
    its = store.tensors.get(scales)
    if its is None:
        raise store.error(blocks, f"has no {scales} beside it")
    for part, type in ((blocks, store.tensors[blocks].type), (scales, its.type)):
        if type != "U8":
            raise store.error(part, f"got dtype {type}, want U8")
    if len(shape) < 2 or shape[-1] != _BYTES:
        raise store.error(blocks, f"got shape {list(shape)}, want [..., K/{BLOCK}, {_BYTES}]")
    if its.shape != shape[:-1]:
        raise store.error(scales, f"got shape {list(its.shape)}, want {list(shape[:-1])} for {blocks} {list(shape)}")
    logical = (*shape[:-2], shape[-2] * BLOCK)
    size = store.tensors[blocks].nbytes + its.nbytes
    return Entry(blocks[: -len(BLOCKS)], "mx", logical, "e2m1", (blocks, scales), size, "blocks of 16 bytes", scheme)
