"""How many copies of a weight it takes so that none is still in a cache when its turn comes again."""

from __future__ import annotations

import math
from typing import Final

import torch

from mxgemm.device import machine_of

FACTOR: Final = 2
"""Copies together exceed the last cache by this factor."""


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last cache before memory, 0 on a CPU, where weights are not rotated."""
    if device.type != "cuda":
        return 0
    l2 = int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(l2, machine_of(device).infinity_cache_bytes)


def copies_needed(weight_bytes: int, cache: int) -> int:
    """Return how many copies of a weight exceed ``cache`` bytes by :data:`FACTOR`, at least two; one without a cache.

    Args:
        weight_bytes: what one call reads of one copy.
        cache: bytes of the last cache, 0 for "do not rotate".
    """
    if cache == 0:
        return 1
    return max(2, math.floor(FACTOR * cache / max(1, weight_bytes)) + 1)
