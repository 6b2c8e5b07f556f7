"""Rows of activations that processes have apart, brought together as bytes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mxgemm.mx.formats import ScaleRounding
from mxgemm.mx.tensor import MXTensor
from mxgemm.parallel.exchange import gather_mx
from mxgemm.parallel.ranks import ranks_of
from mxgemm.quantize import quantize


def gather_quantized(
    x: Tensor, group: Any = None, *, format: str = "e2m1", scale_rounding: ScaleRounding = "even"
) -> MXTensor:
    """Quantise this process's rows and return those of all, for :func:`mxgemm.gemm_mx`.

    Bytes and scales are sent, 4.25 bits an element of e2m1 instead of 16. Blocks lie within a row, so the result is
    byte for byte that of quantising all rows in one process.

    Args:
        x: ``[M, K]``, bf16, fp16 or fp32, K % 32 == 0, M the same in each process, which nothing here can see.
        group: a ``ProcessGroup``, a ``DeviceMesh`` of one dimension, or None for all processes.
        format: "e2m1", "e4m3" or "e5m2".
        scale_rounding: as in :func:`mxgemm.quantize`.

    Returns:
        ``(size * M, K)``, in the order of the ranks.

    Raises:
        TypeError, ValueError: as :func:`mxgemm.quantize`; ``x`` is no matrix.
        RuntimeError: torch.distributed is not initialised.
    """
    ranks = ranks_of(group)
    if isinstance(x, Tensor) and x.dim() != 2:
        raise ValueError(f"x: got shape {tuple(x.shape)}, want [M, K]")
    return gather_mx(quantize(x, format=format, scale_rounding=scale_rounding), ranks)  # type: ignore[arg-type]
