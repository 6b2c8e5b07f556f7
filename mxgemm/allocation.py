"""Fresh memory for results, for which ``torch.empty`` takes longer than a steady call takes to find its plan.

torch.compile's own code allocates by two functions that read shape, strides and dtype and nothing else; where a release
of torch has them they are used, elsewhere ``torch.empty``. Memory comes from the same allocators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch._C._dynamo import guards

_Make = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]

_BY_DEVICE: Final[dict[str, _Make]] = {
    device: make for device in ("cpu", "cuda") if (make := getattr(guards, f"_empty_strided_{device}", None))
}


def allocator(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that makes uninitialised, contiguous memory; of a GPU's it must be the current device."""
    make = _BY_DEVICE.get(device.type)
    if make is None:
        return partial(torch.empty, shape, dtype=dtype, device=device)
    return partial(make, shape, _contiguous(shape), dtype)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
