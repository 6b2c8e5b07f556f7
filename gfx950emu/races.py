"""Strict mode: two waves of a workgroup touch the same byte of LDS, one of them writes, and no barrier is between.

Every byte remembers who wrote it and who read it since the last barrier. Barriers are counted for the whole batch,
which is exact: the scheduler opens one only when every wave that lives has reached its own. Atomics are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gfx950emu.errors import RaceError
from gfx950emu.numeric import I32, Array
from gfx950emu.waves import Group

WAVE_BITS: Final = 13
SEVERAL: Final = (1 << WAVE_BITS) - 1
"""In place of a wave's number: more than one wave read the byte."""


class RaceChecker:
    """The shadow of a batch's LDS: for each byte, epoch << WAVE_BITS | wave + 1 of the last writer and reader."""

    def __init__(self, size: int) -> None:
        self.epoch = 1
        self.writers = np.zeros(size, I32)
        self.readers = np.zeros(size, I32)

    def barrier(self) -> None:
        """Forget what was before."""
        self.epoch += 1

    def read(self, g: Group, where: Array, size: int, lanes: Array | None) -> None:
        """Note a read of ``size`` bytes from each position on, and raise if another wave has just written one."""
        index, mine = self._mine(g, where, size, lanes)
        self._refuse(g, self._others(self.writers[index], mine), index, "reads LDS that {} wrote", lanes)
        others = self._others(self.readers[index], mine)
        self.readers[index] = np.where(others, self.epoch << WAVE_BITS | SEVERAL, mine)
        # Waves of one group read at once: where a byte does not hold what this wave put there, several did.
        shared = self.readers[index] != np.where(others, self.epoch << WAVE_BITS | SEVERAL, mine)
        if shared.any():
            self.readers[index[shared]] = self.epoch << WAVE_BITS | SEVERAL

    def write(self, g: Group, where: Array, size: int, lanes: Array | None) -> None:
        """Note a write, and raise if another wave has just written or read one of the bytes."""
        index, mine = self._mine(g, where, size, lanes)
        self._refuse(g, self._others(self.writers[index], mine), index, "writes LDS that {} wrote", lanes)
        self._refuse(g, self._others(self.readers[index], mine), index, "writes LDS that {} read", lanes)
        self.writers[index] = mine
        self._refuse(g, self.writers[index] != mine, index, "writes LDS that {} wrote", lanes)

    def _mine(self, g: Group, where: Array, size: int, lanes: Array | None) -> tuple[Array, Array]:
        waves = np.repeat(g.wave_ids, 64) if lanes is None else g.wave_ids[lanes // 64]
        tags = (self.epoch << WAVE_BITS | waves + 1).astype(I32)
        index = where[:, None] + np.arange(size)
        return index, np.broadcast_to(tags[:, None], index.shape)

    def _others(self, tags: Array, mine: Array) -> Array:
        """Bytes that a wave other than mine touched in this epoch."""
        now: Array = (tags >> WAVE_BITS == self.epoch) & (tags != mine)
        return now

    def _refuse(self, g: Group, bad: Array, index: Array, message: str, lanes: Array | None) -> None:
        if not bad.any():
            return
        g.lanes = lanes
        position, byte = (int(x[0]) for x in np.nonzero(bad))
        tags = self.writers if "wrote" in message else self.readers
        wave = (int(tags[index[position, byte]]) & SEVERAL) - 1
        flat = position if lanes is None else int(lanes[position])
        within = int(index[position, byte]) - int(g.lds_base[flat // 64])
        name = "others" if wave == SEVERAL - 1 else f"wave {wave % g.run.waves_per_group}"
        raise RaceError(f"{message.format(name)} since the last barrier: byte {within}", position)
