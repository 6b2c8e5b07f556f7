"""Scratch memory between the launches of a call: lent to that call alone, and kept for the next one.

A call takes an arena from the free list of its device and stream, and gives it back once its last launch is enqueued.
Until then nobody can be handed it: no other thread, no greenlet, no call that runs inside this one (from a signal
handler, a finaliser or a dispatch mode). Whoever takes it next enqueues behind those launches, on the same stream.
Taking and giving are one list operation each, which Python does whole: there is no lock to wait for, none to inherit.

    with workspace.take(nbytes, device) as arena:
        first(a, arena.memory)
        second(arena.memory, out)

A call that raises leaves its arena to torch's allocator, in stream order: nobody knows what its counters hold. Only
scratch is kept, never a result. While a graph is captured, an arena is plain memory from the graph's own pool, which
keeps it alive for replays, and its counters are zeroed inside the graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Final

import torch
from torch import Tensor

LIMIT_BYTES: Final = 1 << 30
"""What is kept for one stream at most; a larger request gets memory of its own, which is not kept."""
MAX_STREAMS: Final = 256
"""Free lists kept; past this many they start over, so that streams that are gone keep no memory."""

MAX_VIEWS: Final = 256
"""Kinds of views that an arena keeps."""

_View = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
_Key = tuple[torch.device, int]
"""A device and a stream's handle: what torch's allocator keeps its free blocks by, so handles may be used again."""


class Arena:
    """Scratch of one call. Leave its ``with`` block once everything that uses it is enqueued.

    Attributes:
        memory: uint8, uninitialised, at least as much as was asked for.
        counters: int32 zeros, at least as many as were asked for; the kernels that use them leave them zero.
        nbytes: of the memory.
        count: of the counters.
        address: of the memory.
        counters_address: of the counters.
        views: tensors in it, as :func:`views` made them, by their descriptions.
    """

    __slots__ = ("_key", "address", "count", "counters", "counters_address", "memory", "nbytes", "views")

    def __init__(self, key: _Key | None, memory: Tensor, counters: Tensor) -> None:
        # What a mode of torch's gave in place of a tensor (a fake one, say) serves this call only.
        real = type(memory) is Tensor and type(counters) is Tensor
        self._key = key if real else None
        self.memory, self.nbytes = memory, memory.numel()
        self.counters, self.count = counters, counters.numel()
        self.views: dict[tuple[_View, ...], tuple[Tensor, ...]] = {}
        self.address, self.counters_address = (memory.data_ptr(), counters.data_ptr()) if real else (0, 0)

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._key is not None:
            free = _free.get(self._key)
            if free is not None:  # else the lists were cleared meanwhile
                free.append(self)
                if len(free) > 1:
                    _trim(free)


_free: dict[_Key, list[Arena]] = {}


def take(nbytes: int, device: torch.device, *, counters: int = 0) -> Arena:
    """Take an arena for the launches of one call on the current stream of a device, which must be the current device.

    Args:
        nbytes: scratch that the call needs, 0 for none.
        device: a device with its index.
        counters: int32 zeros that it needs.
    """
    if nbytes > LIMIT_BYTES or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return Arena(None, _make(torch.empty, nbytes, torch.uint8, device), _zeros(counters, device))
    key = device, raw_stream(device)
    free = _free.get(key)
    try:
        arena = (free if free is not None else _list_of(key)).pop()
    except IndexError:
        return Arena(key, _make(torch.empty, _rounded(nbytes), torch.uint8, device), _zeros(counters, device))
    if arena.nbytes >= nbytes and arena.count >= counters:
        return arena
    return _grown(key, arena, nbytes, counters)


def views(arena: Arena, wanted: tuple[_View, ...]) -> tuple[Tensor, ...]:
    """Return tensors in an arena's memory, made once for whoever takes it.

    Args:
        arena: taken, with room for them.
        wanted: of each, the offset in bytes, a multiple of its size, dtype, shape and strides in elements.
    """
    found = arena.views.get(wanted)
    if found is None:
        if len(arena.views) >= MAX_VIEWS:
            arena.views.clear()
        with torch.inference_mode(False):
            found = tuple(
                arena.memory[: arena.nbytes // dtype.itemsize * dtype.itemsize]
                .view(dtype)
                .as_strided(shape, strides, offset // dtype.itemsize)
                for offset, dtype, shape, strides in wanted
            )
        arena.views[wanted] = found
    return found


def clear() -> None:
    """Give scratch that no call has in use back to torch's allocator; ``mxgemm.clear_workspaces``.

    A call under way keeps its own, and what a captured graph uses is the graph's. ``torch.cuda.empty_cache()`` then
    gives the memory back to the device.
    """
    _free.clear()


def raw_stream(device: torch.device) -> int:
    """Return the handle of the current stream of a device, 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch._C._cuda_getCurrentRawStream(device.index)


def _list_of(key: _Key) -> list[Arena]:
    if len(_free) >= MAX_STREAMS:
        clear()
    return _free.setdefault(key, [])


def _grown(key: _Key, arena: Arena, nbytes: int, counters: int) -> Arena:
    if arena.nbytes < nbytes:
        del arena.memory  # back to the allocator before more is asked for
        arena.memory = _make(torch.empty, _rounded(nbytes), torch.uint8, key[0])
    if arena.count < counters:
        arena.counters = _zeros(counters, key[0])
    return Arena(key, arena.memory, arena.counters)


def _trim(free: list[Arena]) -> None:
    """Let those go that have lain longest, where calls at once left more than is kept."""
    kept = sum(arena.nbytes for arena in tuple(free))  # a copy: other threads take and give meanwhile
    while kept > LIMIT_BYTES:
        try:
            kept -= free.pop(0).nbytes
        except IndexError:  # they are all in use again
            return


def _rounded(size: int) -> int:
    """Return a power of two, so that a rising M reallocates seldom."""
    return 1 << max(size - 1, 4095).bit_length()


def _zeros(count: int, device: torch.device) -> Tensor:
    return _make(torch.zeros, _rounded(count) if count else 0, torch.int32, device)


def _make(make: Callable[..., Tensor], size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # what was made in that mode could not be written outside of it
        return make(size, dtype=dtype, device=device)


_inherited: list[dict[_Key, list[Arena]]] = []


def _leave_to_parent() -> None:
    """Forget, in a forked child, the parent's arenas, and never free them: its devices do not exist here."""
    global _free
    _inherited.append(_free)
    _free = {}


os.register_at_fork(after_in_child=_leave_to_parent)
