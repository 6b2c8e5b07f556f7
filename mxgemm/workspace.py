"""Scratch memory: one growing arena per (device, stream), so that two streams never share any.

Only scratch is kept between calls, never a result. Work on one stream is ordered, so every launch may use the arena
from its start. While a graph is captured, scratch is plain memory from the graph's own pool, which keeps it alive for
replays, and counters are zeroed inside the graph.
"""

from __future__ import annotations

import threading
from typing import Final

import torch
from torch import Tensor

LIMIT_BYTES: Final = 1 << 30
"""A larger request is served by memory of its own and not kept."""

_Key = tuple[torch.device, int]
_lock = threading.Lock()
_scratch: dict[_Key, Tensor] = {}
_counters: dict[_Key, Tensor] = {}


def scratch(nbytes: int, device: torch.device) -> Tensor:
    """Return at least ``nbytes`` of uninitialised memory, uint8, valid until the next request on this stream."""
    if nbytes > LIMIT_BYTES or _capturing(device):
        return torch.empty(nbytes, dtype=torch.uint8, device=device)
    return _grown(_scratch, nbytes, device, torch.empty)


def counters(count: int, device: torch.device) -> Tensor:
    """Return at least ``count`` int32 zeros; kernels that use them leave them zero."""
    nbytes = 4 * count
    if _capturing(device):
        return torch.zeros(count, dtype=torch.int32, device=device)
    return _grown(_counters, nbytes, device, torch.zeros).view(torch.int32)


def clear() -> None:
    """Give the memory back to torch's allocator."""
    with _lock:
        _scratch.clear()
        _counters.clear()


def raw_stream(device: torch.device) -> int:
    """Return the handle of the current stream of a device, 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch._C._cuda_getCurrentRawStream(device.index)


def _grown(arenas: dict[_Key, Tensor], nbytes: int, device: torch.device, make: object) -> Tensor:
    key = (device, raw_stream(device))
    found = arenas.get(key)
    if found is not None and found.numel() >= nbytes:
        return found
    with _lock:
        # Powers of two, so that a rising M reallocates seldom. The old arena returns to the allocator, in stream order.
        size = 1 << max(nbytes - 1, 4095).bit_length()
        arenas[key] = make(size, dtype=torch.uint8, device=device)  # type: ignore[operator]
        return arenas[key]


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
