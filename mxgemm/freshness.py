"""Notice that bytes were changed after something had been derived from them.

torch counts the changes that pass through it: every in-place operation on a tensor, on a view of it or on another
tensor of the same memory, also under ``no_grad`` and inference mode, raises ``_version`` of all of them; assigning
``.data`` or moving the memory changes the address. A :class:`Stamp` is both at one moment.

What goes round torch is not seen: writes through ``tensor.data`` (``w.data.data.copy_()``), through numpy or another
library that shares the memory, through the storage, by kernels launched on the address, and what a replayed CUDA graph
writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_version = attrgetter("_version")
_WANTED: Final = (
    "its bytes were changed after prepare(); call prepare() again, and compile or export anew what holds it"
)


class Stamp:
    """The state of some tensors' memory when the stamp was made. Not of inference tensors: torch does not count them.

    The first two are those that a caller changes, so their addresses are watched as well.
    """

    __slots__ = ("_first", "_second", "_state", "_tensors")

    def __init__(self, first: Tensor, second: Tensor, *more: Tensor) -> None:
        self._first, self._second, self._tensors = first, second, (first, second, *more)
        self._state = self._read()

    @property
    def fresh(self) -> bool:
        """Nothing has changed."""
        return self._read() == self._state

    def check(self, name: str) -> None:
        """Check that nothing has changed.

        Raises:
            RuntimeError: something has; the message begins with ``name`` and says to call ``prepare()``.
        """
        if self._read() != self._state:
            raise RuntimeError(f"{name}: {_WANTED}")

    def _read(self) -> list[int]:
        return [self._first.data_ptr(), self._second.data_ptr(), *map(_version, self._tensors)]


_sources: Final = WeakTensorKeyDictionary()  # derived tensor -> its version when made, the stamp of what it was made of


def remember(derived: Iterable[Tensor], source: Stamp) -> None:
    """Note on derived tensors what they were made of, for :func:`check_sources`."""
    for tensor in derived:
        _sources[tensor] = (tensor._version, source)


def check_sources(name: str, tensors: Iterable[Tensor]) -> None:
    """Check tensors that come without their MXTensor, from a compiled graph; those that nothing is known of pass.

    Raises:
        RuntimeError: as :meth:`Stamp.check`.
    """
    for tensor in tensors:
        version, source = _sources.get(tensor, (0, None))
        if source is not None:
            source.check(name)
            if not tensor.is_inference() and tensor._version != version:
                raise RuntimeError(f"{name}: {_WANTED}")


def countable(tensor: Tensor) -> Tensor:
    """Return the tensor, or, where torch does not count its changes (made under inference mode), a copy that it counts.

    Call it outside inference mode.
    """
    return tensor.clone() if tensor.is_inference() else tensor


def mark_written(tensor: Tensor) -> None:
    """Tell torch that a kernel wrote into this tensor, as its own in-place operations do."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
