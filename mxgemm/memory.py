"""What a tensor's memory is: whether a kernel may read it as it lies, and whether two tensors have bytes in common."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

LOWEST_ADDRESS: Final = 1 << 40
"""Below lie few tensors and all whose storage was freed: their address is no more than their offset in it."""

_MAX_WORK: Final = 100_000
"""Steps of the search for a common byte, some milliseconds; the strides of real views take a few."""


def check_memory(name: str, tensor: Tensor, *, as_it_lies: bool = False) -> None:
    """Refuse a tensor that is not (address, shape, strides) in memory of its own.

    Args:
        name: of the argument.
        tensor: any tensor; of subclasses and while torch.compile traces only the kind is looked at.
        as_it_lies: refuse lazily negated views too, for a caller that does not resolve them.

    Raises:
        TypeError: a sparse, nested, mkldnn or quantised tensor, or one without storage.
        ValueError: its storage was freed, or is smaller than its shape and strides; or it is lazily negated.
    """
    kind = _other_kind(tensor)
    if kind:
        raise TypeError(f"{name}: got {kind}, want a dense tensor (strided, with memory of its own)")
    if torch.compiler.is_compiling() or type(tensor) not in (Tensor, Parameter) or tensor.device.type == "meta":
        return
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except RuntimeError:  # torch's answer where there is no storage
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # the operator's kernel asks what is within
            return
        raise TypeError(f"{name}: got a tensor without storage, want a dense tensor with memory of its own") from None
    needed = (tensor.storage_offset() + _span(tensor)) * tensor.element_size()
    if tensor.numel() and (address == 0 or needed > size):
        raise ValueError(f"{name}: got {size} bytes of storage, want {needed}: it was freed or resized")
    if as_it_lies and tensor.is_neg():
        raise ValueError(f"{name}: got a lazily negated view, want its values in memory (resolve_neg())")


def freed(tensor: Tensor) -> bool:
    """Say whether a tensor with elements has no storage any more; worth asking below ``LOWEST_ADDRESS`` only."""
    return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() == 0


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the one behind its last; both 0 if it has none."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    return start, start + _span(tensor) * tensor.element_size()


def overlap(left: Tensor, right: Tensor) -> bool:
    """Say whether two tensors on one device have a byte in common, whatever their storages.

    Byte ranges are compared first; where they meet, the elements themselves: interleaved views of one buffer do not
    overlap. The answer is exact, but for four and more irregular strides where the search is given up and it is "yes".
    Tensors on the meta device have no memory and never do.
    """
    if left.is_meta or right.is_meta:
        return False
    (start, stop), (first, last) = extent(left), extent(right)
    return start < last and first < stop and _meet(_addresses(left), _addresses(right))


def overlaps_itself(tensor: Tensor) -> bool:
    """Say whether two elements of a tensor share memory; exact with the same reservation as :func:`overlap`."""
    reach = 0  # of the dimensions with smaller strides, in elements
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride == 0:
                return tensor.numel() > 0
            if stride <= reach:
                break
            reach += stride * (size - 1)
    else:
        return False  # each dimension steps over all that the smaller ones reach: no two elements meet
    if tensor.numel() == 0:
        return False
    elements = _addresses(tensor)
    # Two elements that meet differ in some dimension first: there one has index 0 and the other a later one, both
    # shifted to the start of the dimensions before.
    for dimension in range(elements.ndim):
        first = elements[(0,) * dimension]
        if len(first) > 1 and _meet(first[:1], first[1:]):
            return True
    return False


def _other_kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    return "a quantised tensor" if tensor.is_quantized else ""


def _span(tensor: Tensor) -> int:
    """Return the elements from the first to the last one in memory, both included."""
    if tensor.numel() == 0:
        return 0
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1


class _Addresses:
    """Addresses dressed as an array, which nothing reads or writes: device memory will do."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        # Dimensions that repeat or hold one element add no address.
        steps = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and step]
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "typestr": f"|V{size}",
            "shape": tuple(n for n, _ in steps),
            "strides": tuple(step * size for _, step in steps),
        }


def _addresses(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(_Addresses(tensor))


def _meet(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(left, right, max_work=_MAX_WORK)  # type: ignore[arg-type]  # numpy's stub knows 0 and -1
    except (RuntimeError, OverflowError):  # numpy's TooHardError, and offsets beyond 64 bits
        return True
