"""Sizes of a checkpoint's weights, from its headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mxgemm import checkpoints
from mxgemm.measure.shapes import DECODE_AND_PREFILL, Shape
from mxgemm.mx.formats import E2M1


def model_sizes(folder: Path, rows: Sequence[int] = ()) -> list[Shape]:
    """Return the sizes of a model: each weight (N, K) of an MX format, of experts (E, N, K) that of one, at each M.

    Args:
        folder: the checkpoint, as ``mxgemm inspect`` takes it.
        rows: of A; by default those of decoding and prefill.

    Raises:
        FileError: it is no checkpoint.
        ValueError: it holds no such weight.
    """
    try:
        checkpoint = checkpoints.open(folder)
    except ImportError as error:
        raise ValueError(f"--model: {error}") from error
    weights = dict.fromkeys(
        (entry.shape[-2], entry.shape[-1])
        for entry in checkpoint.entries.values()
        if entry.kind == "mx" and entry.type == E2M1.name and len(entry.shape) in (2, 3)
    )
    if not weights:
        raise ValueError(f"--model: got {folder}, which holds no MXFP4 weight; want one that does, or --shape")
    return [(m, n, k) for n, k in weights for m in dict.fromkeys(rows or DECODE_AND_PREFILL)]
