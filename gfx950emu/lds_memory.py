"""The bytes of LDS: every workgroup of a batch has its own part of one array."""

from __future__ import annotations

import numpy as np

from gfx950emu.device_memory import gather, scatter
from gfx950emu.errors import MemoryFault
from gfx950emu.numeric import Array
from gfx950emu.waves import Group


def place(g: Group, addresses: Array, size: int, lanes: Array | None) -> Array:
    """Return where in the array of all LDS each lane's access begins, after the bounds check.

    Args:
        g: the waves.
        addresses: byte addresses of all lanes, flat int64; they wrap at 32 bits.
        size: bytes of a lane.
        lanes: flat indices of the lanes that take part, None for all.
    """
    addresses = addresses & 0xFFFFFFFF
    if lanes is None:
        base = np.repeat(g.lds_base, 64)
    else:
        base, addresses = g.lds_base[lanes // 64], addresses[lanes]
    if addresses.size and int(addresses.max()) + size > g.run.lds_bytes:
        bad = int(np.nonzero(addresses + size > g.run.lds_bytes)[0][0])
        g.lanes = lanes
        raise MemoryFault(
            f"LDS access of {size} bytes at {int(addresses[bad])}; the workgroup has {g.run.lds_bytes} bytes", bad
        )
    return addresses + base


def load(g: Group, addresses: Array, size: int, lanes: Array | None, *, again: bool = False) -> Array:
    """Read dwords of the lanes that take part; ``again``: a second look at what the race checker has seen."""
    where = place(g, addresses, size, lanes)
    if not again:
        _observe(g, addresses, size, lanes, writes=False)
        if g.run.races is not None:
            g.run.races.read(g, where, size, lanes)
    return gather(g.run.lds, g.run.lds_dwords, where, size)


def store(g: Group, addresses: Array, values: Array, size: int, lanes: Array | None) -> None:
    """Write dwords ``[all lanes, n]`` of the lanes that take part."""
    where = place(g, addresses, size, lanes)
    _observe(g, addresses, size, lanes, writes=True)
    if g.run.races is not None:
        g.run.races.write(g, where, size, lanes)
    scatter(g.run.lds, g.run.lds_dwords, where, values if lanes is None else values[lanes], size)


def _observe(g: Group, addresses: Array, size: int, lanes: Array | None, *, writes: bool) -> None:
    run = g.run
    if run.observer is not None:
        run.observer.lds(
            addresses, size, lanes, writes=writes, waves=g.wave_ids, waves_per_group=run.waves_per_group
        )  # fmt: skip
