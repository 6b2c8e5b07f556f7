"""What processes send each other: quantised rows, and sums in fp32.

Only calls of ``torch.distributed`` that torch.compile knows are used, so that a sharded layer is traced as any other.
"""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist
from torch import Tensor

from mxgemm.mx.tensor import MXTensor
from mxgemm.parallel.ranks import Ranks

_newer: Final[Any] = dist
_gather: Final = _newer.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
_scatter: Final = _newer.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
"""What torch calls these from 2.13 on, and before."""


def gather(x: Tensor, ranks: Ranks) -> Tensor:
    """Return the rows of all ranks in their order, ``[size * M, ...]`` of ``[M, ...]``."""
    if ranks.size == 1:
        return x
    out = x.new_empty((ranks.size * x.shape[0], *x.shape[1:]))
    _gather(out, x.contiguous(), group=ranks.group)
    return out


def gather_columns(x: Tensor, ranks: Ranks) -> Tensor:
    """Return the last dimensions of all ranks beside each other, ``[..., size * N]`` of ``[..., N]``."""
    if ranks.size == 1:
        return x
    rows = x.reshape(-1, x.shape[-1])
    parts = gather(rows, ranks).reshape(ranks.size, *rows.shape)
    return parts.transpose(0, 1).reshape(*x.shape[:-1], ranks.size * x.shape[-1])


def gather_mx(x: MXTensor, ranks: Ranks) -> MXTensor:
    """Return the rows ``[M, K]`` of all ranks, sent as the bytes that they are: 4.25 bits an element of e2m1, not 16.

    ``M`` is the same on each rank, which nothing here can see.
    """
    if ranks.size == 1:
        return x
    return MXTensor.wrap(gather(x.data, ranks), gather(x.scales, ranks), format=x.format.name)


def send_rows(x: Tensor, there: list[int], back: list[int], ranks: Ranks) -> Tensor:
    """Send ``there[r]`` rows to rank r, those of rank 0 first, and return the ``back[r]`` rows that each sent here."""
    if ranks.size == 1:
        return x
    out = x.new_empty((sum(back), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), back, there, group=ranks.group)
    return out


def add_up(partial: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum over all ranks of an fp32 tensor, which is overwritten."""
    if ranks.size > 1:
        dist.all_reduce(partial, group=ranks.group)
    return partial


def add_up_rows(partial: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's rows of the sum over all ranks of an fp32 ``[M, N]``.

    Raises:
        ValueError: M cannot be divided evenly.
    """
    rows = ranks.part("x", partial.shape[0])
    if ranks.size == 1:
        return partial
    out = partial.new_empty((rows.stop - rows.start, *partial.shape[1:]))
    _scatter(out, partial, group=ranks.group)
    return out
