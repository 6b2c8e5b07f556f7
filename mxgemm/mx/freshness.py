"""Notice that bytes were changed after something had been derived from them.

torch counts the changes that pass through it: every in-place operation on a tensor, on a view of it or on another
tensor of the same memory, also under ``no_grad`` and inference mode, raises ``_version`` of all of them; assigning
``.data`` or moving the memory changes the address. A :class:`Stamp` is both at one moment. A slice shares its count
with the whole, so a write beside it counts too.

What goes round torch is not seen: writes through ``tensor.data`` (``w.data.data.copy_()``), through numpy or another
library that shares the memory, through the storage, by kernels launched on the address, and what a replayed CUDA graph
writes.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Stamp:
    """The state of bytes, and of what was made of them, at one moment; for tensors that :func:`countable` returns."""

    __slots__ = ("_addresses", "_data", "_made", "_scales", "_versions")

    def __init__(self, data: Tensor, scales: Tensor, made: tuple[Tensor, ...] = ()) -> None:
        """Note the state."""
        self._data, self._scales, self._made = data, scales, made
        self._versions = data._version + scales._version + sum(tensor._version for tensor in made)
        self._addresses = data.data_ptr(), scales.data_ptr()

    @property
    def counted(self) -> tuple[tuple[Tensor, ...], int]:
        """The tensors whose changes are counted, and the sum of their counts at that moment."""
        return (self._data, self._scales, *self._made), self._versions

    def fresh(self) -> bool:
        """Say whether nothing has changed. On the path of every call."""
        data, scales = self._data, self._scales
        versions = data._version + scales._version
        for tensor in self._made:
            versions += tensor._version
        at_data, at_scales = self._addresses
        return versions == self._versions and data.data_ptr() == at_data and scales.data_ptr() == at_scales


def stale(name: str) -> RuntimeError:
    """Return the error of a weight whose derived data is out of date."""
    return RuntimeError(
        f"{name}: its bytes were changed after prepare(); call prepare() again (and compile or export again what holds "
        "the old one)"
    )


# Derived tensor -> its version when made, and the stamp of what it was made of.
_sources: Final[MutableMapping[Tensor, tuple[int, Stamp]]] = WeakTensorKeyDictionary()


def remember(derived: Iterable[Tensor], source: Stamp) -> None:
    """Note on derived tensors what they were made of, for :func:`check_sources`."""
    for tensor in derived:
        _sources[tensor] = (tensor._version, source)


def check_sources(name: str, tensors: Iterable[Tensor]) -> None:
    """Check tensors that come without their MXTensor, from a compiled graph; those that nothing is known of pass.

    Raises:
        RuntimeError: one of them, or what it was made of, has changed.
    """
    for tensor in tensors:
        known = _sources.get(tensor)
        if known is not None and not (tensor._version == known[0] and known[1].fresh()):
            raise stale(name)


def countable(tensor: Tensor) -> Tensor:
    """Return the tensor, or, where torch does not count its changes (made under inference mode), a copy that it counts.

    Call it outside inference mode.
    """
    return tensor.clone() if tensor.is_inference() else tensor


def mark_written(tensor: Tensor) -> None:
    """Tell torch that a kernel wrote into this tensor, as its own in-place operations do."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
