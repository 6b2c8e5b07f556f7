"""Where a tensor's Python object keeps its handle, and the handle's object the dispatch keys; found by trial.

Both have moved between releases of torch, so nothing is taken for granted: tensors of many kinds are made, whose handle
and keys torch tells, and an offset counts only if all of them have theirs there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from mxgemm.errors import BuildError

_WORD: Final = 8
_OBJECT_BYTES: Final = object.__basicsize__
_KEYS_BYTES: Final = 192
"""Of torch's object that are looked through; it has more in every release."""


class Offsets(NamedTuple):
    """Bytes from the beginning of the object.

    Attributes:
        handle: in the Python object, the pointer to torch's own.
        borrowed: in the Python object, a byte that is 0 where it owns this; -1 where there is none.
        keys: in torch's object, the 64-bit set of dispatch keys.
    """

    handle: int
    borrowed: int
    keys: int


def find() -> Offsets:
    """Return the offsets.

    Raises:
        BuildError: they are not the same for all tensors.
    """
    tensors = _kinds()
    handle = _only(
        "handle",
        range(_OBJECT_BYTES, Tensor.__basicsize__ - _WORD + 1, _WORD),
        lambda at: all(_word(id(tensor) + at) == _handle(tensor) for tensor in tensors),
    )
    flag = handle - _WORD
    borrowed = -1
    if flag >= _OBJECT_BYTES:  # a flag lies before the pointer
        if any(_word(id(tensor) + flag) & 0xFF for tensor in tensors):
            raise BuildError("a tensor does not own its handle")
        borrowed = flag
    keys = _only(
        "dispatch keys",
        range(_WORD, _KEYS_BYTES, _WORD),
        lambda at: all(_word(_handle(tensor) + at) == _keys(tensor) for tensor in tensors),
    )
    return Offsets(handle, borrowed, keys)


def _kinds() -> list[Tensor]:
    plain = torch.zeros((2, 3), dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        inference = torch.zeros((3,), dtype=torch.float32, device="cpu")
    found = [
        *(plain, plain[1:], plain.t(), torch._neg_view(plain), inference, Parameter(plain.clone())),
        *(torch.zeros((2,), dtype=torch.uint8, device="meta"), plain.to_sparse(), plain.to(torch.complex64).conj()),
    ]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append(torch.zeros((1,), dtype=torch.uint8, device="cuda"))
    return found


def _only(what: str, places: range, fits: Callable[[int], bool]) -> int:
    found = [at for at in places if fits(at)]
    if len(found) != 1:
        raise BuildError(f"torch {torch.__version__}: the {what} of a tensor lie in {len(found)} places")
    return found[0]


def _handle(tensor: Tensor) -> int:
    return int(tensor._cdata)


def _keys(tensor: Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
