"""Which barriers of a launch order nothing: a kernel without one is equivalent, and no test can tell.

    trace = LdsTrace()
    run_code_object(..., strict=True, observer=trace)      # which sees a write when it lands
    trace.idle_barriers()

A barrier orders nothing where, of all that is touched in LDS between the one before and the one behind it, no byte has
two waves of which one writes. Compilers put barriers around each exchange through LDS, also where the layouts make it
one among the lanes of a wave, whose LDS operations are in order anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gfx950emu.numeric import Array

_Touched = tuple[Array, Array, bool]
"""Bytes of a workgroup's LDS, with the workgroup above bit 32; the wave of each; whether they are written."""


@dataclass
class LdsTrace:
    """An observer that remembers who touches which bytes of LDS between barriers.

    Attributes:
        barriers: pc of each that opened.
    """

    barriers: list[int] = field(default_factory=list)
    _epochs: list[list[_Touched]] = field(default_factory=lambda: [[]])

    def device(self, kind: str, size: int, addresses: Array, lanes: Array | None) -> None:
        """Device memory has no barriers."""

    def lds(
        self, addresses: Array, size: int, lanes: Array | None, *, writes: bool, waves: Array, waves_per_group: int
    ) -> None:
        """Note an access."""
        which = np.arange(addresses.size) if lanes is None else lanes
        wave = waves[which // 64].astype(np.int64)
        places = (addresses[which, None] & 0xFFFFFFFF) + np.arange(size) | (wave // waves_per_group << 32)[:, None]
        self._epochs[-1].append((places.reshape(-1), wave.repeat(size), writes))

    def barrier(self, pc: int) -> None:
        """Note a barrier that opens."""
        self.barriers.append(pc)
        self._epochs.append([])

    def idle_barriers(self) -> set[int]:
        """Return the pcs of the barriers that ordered nothing whenever they opened."""
        found: dict[int, bool] = {}
        for index, pc in enumerate(self.barriers):
            touched = [*self._epochs[index], *self._epochs[index + 1]]
            found[pc] = found.get(pc, True) and not _contended(touched)
        return {pc for pc, idle in found.items() if idle}


def _contended(touched: list[_Touched]) -> bool:
    if not touched:
        return False
    bytes_, waves = (np.concatenate([part[i] for part in touched]) for i in (0, 1))
    written = np.concatenate([np.full(part[0].size, part[2]) for part in touched])
    unique, inverse = np.unique(bytes_, return_inverse=True)
    least, most = np.full(unique.size, waves.max()), np.zeros(unique.size, waves.dtype)
    np.minimum.at(least, inverse, waves)
    np.maximum.at(most, inverse, waves)
    return bool((written & (least < most)[inverse]).any())
