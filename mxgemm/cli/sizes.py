"""Sizes of a command, and the refusal of those that the machine cannot hold."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from mxgemm import measure
from mxgemm.device import default_device, device_of
from mxgemm.measure import Shape


def device_for(name: str | None) -> torch.device:
    """Return the device of ``--device``, or the default one.

    Raises:
        ValueError: there is no such device.
    """
    return default_device() if name is None else device_of(name, "--device")


def sizes_of(shapes: Sequence[Shape], sets: Sequence[str] = ()) -> list[Shape]:
    """Return the sizes of ``--shape`` and ``--set``, each once; the leaderboard's where nothing is named."""
    named = [shape for name in sets for shape in measure.SETS[name].shapes]
    return list(dict.fromkeys((*shapes, *named))) or list(measure.LEADERBOARD)


def sizes_for(device: torch.device, shapes: Sequence[Shape], sets: Sequence[str] = ()) -> list[Shape]:
    """Return the sizes of ``--shape`` and ``--set`` for a device.

    Raises:
        ValueError: the device cannot hold the operands.
    """
    return fitting(device, sizes_of(shapes, sets))


def fitting(device: torch.device, sizes: list[Shape]) -> list[Shape]:
    """Return sizes whose operands a device can hold.

    Raises:
        ValueError: it cannot hold one.
    """
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
