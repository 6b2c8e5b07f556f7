"""Device memory: numpy buffers at made-up 64-bit addresses, every access checked against its buffer's bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gfx950emu.errors import MemoryFault

Array = NDArray[Any]
U32 = np.uint32
U64 = np.uint64

SLOT_BITS: Final = 36
BASE: Final = 1 << 44
LEAD: Final = 1 << 20
"""A buffer starts this far into its slot, so that a small negative offset still finds its name."""


class Buffer:
    """One allocation; ``data`` is exactly its bytes."""

    def __init__(self, name: str, address: int, size: int, writable: bool) -> None:
        self.name, self.address, self.size, self.writable = name, address, size, writable
        self.raw = np.zeros((size + 31) // 16 * 16, np.uint8)
        self.dwords = self.raw.view(U32)
        self.data = self.raw[:size]


class Memory:
    """All buffers of a launch.

    memory = Memory()
    address = memory.add("a", array)
    memory.get("a", np.float32, (16, 64))
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.by_name: dict[str, Buffer] = {}

    def add(self, name: str, array: Array, writable: bool = True) -> int:
        """Copy an array to the device and return its address."""
        contiguous = np.ascontiguousarray(array)
        buffer = Buffer(name, BASE + (len(self.buffers) << SLOT_BITS) + LEAD, contiguous.nbytes, writable)
        buffer.data[:] = contiguous.reshape(-1).view(np.uint8)
        self.buffers.append(buffer)
        self.by_name[name] = buffer
        return buffer.address

    def get(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
        """Return a copy of a buffer's contents."""
        return np.array(self.by_name[name].data.view(dtype).reshape(shape))

    def load(self, addresses: Array, size: int, what: str = "load") -> Array:
        """Read ``size`` bytes at each address (uint64 ``[n]``) as dwords ``[n, ceil(size / 4)]``, zero-extended."""
        whole = np.zeros((addresses.size, (size + 3) // 4), U32)
        for buffer, chosen, offsets in self._find(addresses, size, what):
            values = gather(buffer.raw, buffer.dwords, offsets, size)
            if chosen is None:
                return values
            whole[chosen] = values
        return whole

    def store(self, addresses: Array, values: Array, size: int, what: str = "store") -> None:
        """Write the first ``size`` bytes of dwords ``[n, ...]`` at each address; of equal addresses the last wins."""
        for buffer, chosen, offsets in self._find(addresses, size, what):
            if not buffer.writable:
                first = 0 if chosen is None else int(chosen[0])
                raise MemoryFault(f"{what} to read-only buffer {buffer.name!r} at offset {int(offsets[0])}", first)
            scatter(buffer.raw, buffer.dwords, offsets, values if chosen is None else values[chosen], size)

    def _find(self, addresses: Array, size: int, what: str) -> Iterator[tuple[Buffer, Array | None, Array]]:
        """Yield (buffer, positions of the addresses in it or None for all, offsets)."""
        if not addresses.size:
            return
        slots = (addresses - U64(BASE)) >> U64(SLOT_BITS)
        low, high = int(slots.min()), int(slots.max())
        for slot in [low] if low == high else [int(s) for s in np.unique(slots)]:
            chosen = None if low == high else np.nonzero(slots == U64(slot))[0]
            mine = addresses if chosen is None else addresses[chosen]
            if slot >= len(self.buffers):
                first = 0 if chosen is None else int(chosen[0])
                raise MemoryFault(f"{what} of {size} bytes at address 0x{int(mine[0]):x}, in no buffer", first)
            buffer = self.buffers[slot]
            offsets = (mine - U64(buffer.address)).view(np.int64)
            if int(offsets.min()) < 0 or int(offsets.max()) + size > buffer.size:
                bad = int(np.nonzero((offsets < 0) | (offsets + size > buffer.size))[0][0])
                raise MemoryFault(
                    f"{what} of {size} bytes at offset {int(offsets[bad])} of buffer {buffer.name!r} "
                    f"({buffer.size} bytes)",
                    bad if chosen is None else int(chosen[bad]),
                )
            yield buffer, chosen, offsets


def gather(raw: Array, dwords: Array, offsets: Array, size: int) -> Array:
    """Read ``size`` bytes at each byte offset as dwords ``[n, ceil(size / 4)]``; aligned accesses go by dwords."""
    if size == 1:
        return raw[offsets].astype(U32)[:, None]
    if size == 2:
        return (raw[offsets].astype(U32) | (raw[offsets + 1].astype(U32) << U32(8)))[:, None]
    count = size // 4
    if (offsets & 3).any():
        return np.ascontiguousarray(raw[offsets[:, None] + np.arange(size)]).view(U32)
    index = offsets >> 2
    if count == 1:
        return dwords[index][:, None]
    if count in (2, 4) and not (index & (count - 1)).any():
        rows = dwords[: dwords.size // count * count].reshape(-1, count)
        return np.take(rows, index >> (1 if count == 2 else 2), axis=0)
    return dwords[index[:, None] + np.arange(count)]


def scatter(raw: Array, dwords: Array, offsets: Array, values: Array, size: int) -> None:
    """Write the first ``size`` bytes of ``values`` (dwords ``[n, ...]``) at each byte offset."""
    count = size // 4
    if size < 4 or (offsets & 3).any():
        as_bytes = np.ascontiguousarray(values).view(np.uint8)
        for j in range(size):
            raw[offsets + j] = as_bytes[:, j]
        return
    index = offsets >> 2
    if count in (2, 4) and not (index & (count - 1)).any():
        dwords[: dwords.size // count * count].reshape(-1, count)[index >> (1 if count == 2 else 2)] = values[:, :count]
        return
    for j in range(count):
        dwords[index + j] = values[:, j]
