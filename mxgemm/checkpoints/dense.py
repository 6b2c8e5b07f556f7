"""A checkpoint that is not quantised: every tensor as it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry, Format, plain_entry
from mxgemm.checkpoints.scheme import Given
from mxgemm.checkpoints.store import Store
from mxgemm.mx.tensor import MXTensor


class Dense(Format):
    """See the module."""

    name = "dense"

    def detects(self, store: Store) -> bool:
        """By what is missing: a ``quantization_config``, and bytes that something would have to explain."""
        return not store.quantization and not any(stored.type == "U8" for stored in store.tensors.values())

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield the tensors."""
        del given
        for name in store.tensors:
            yield plain_entry(name, store)

    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """There is nothing to decode."""
        raise AssertionError(entry.name)

    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Give the values in bf16, exact but for scales below 2**-126 and above 2**125."""
        if weight.device.type == "meta":
            return {name: torch.empty(weight.shape, dtype=torch.bfloat16, device="meta")}
        return {name: weight.dequantize(torch.bfloat16)}
