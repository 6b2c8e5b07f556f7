"""The sizes that commands measure: read from their options, and refused where the machine cannot hold them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import torch
import typer

from mxgemm import measure

Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="M,N,K; repeat for more; default: the leaderboard's six")
]


def sizes_for(
    device: torch.device, shapes: Sequence[str] | None, sets: Sequence[str] | None = None
) -> list[measure.Shape]:
    """Return the sizes of ``--set`` and ``--shape``.

    Raises:
        ValueError: an unknown set, a text that is no size, or operands that the device cannot hold.
    """
    sizes = measure.select(sets or [], shapes or [])
    memory = _memory(device)
    for m, n, k in sizes:
        needed = 2 * (m * k + n * k + m * n)  # A, B before it is quantised, and C, in bf16
        if needed > memory:
            raise ValueError(
                f"--shape: got {m},{n},{k}, whose operands take {needed / 2**30:.4g} GiB; want no more than "
                f"the {memory / 2**30:.4g} GiB of {device}"
            )
    return sizes


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
