"""Releases of Triton before 3.6 on gfx950, as data: what their compilers make of the GEMM kernels' tiles.

torch 2.8 and 2.9 for ROCm bring 3.4 and 3.5. Both compile the kernels to scaled matrix instructions, and what they
compile is right in the emulator; but a scale reaches its lane through LDS, which takes registers, and asked to leave
room for more waves than that they spill. Counts: bench/results/older_tritons_gfx950.json, by evidence/older_tritons.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mxgemm.triton import support


@dataclass(frozen=True, slots=True)
class OldRelease:
    """What is known of one release.

    Attributes:
        waves_per_eu: the most that a tile may ask for; with more it spills. 0: only the compiler knows.
        num_stages: of the K loop of ``a16wfp4``, whose prediction is the best.
    """

    waves_per_eu: int
    num_stages: int


FIRST_KNOWN: Final = (3, 6)
"""The first release for which the tiles of the routing tables were compiled."""
GFX950: Final[dict[tuple[int, int], OldRelease]] = {
    (3, 4): OldRelease(waves_per_eu=0, num_stages=1),
    (3, 5): OldRelease(waves_per_eu=0, num_stages=1),
}


def old_release(arch: str) -> OldRelease | None:
    """Return what is known of the triton that is installed, None for one that needs no exception on ``arch``."""
    version = support.triton_version()
    return GFX950.get(version) if arch == "gfx950" and version is not None else None
