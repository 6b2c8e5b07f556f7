"""Releases of Triton before 3.6 on gfx950, as data: which tiles of the GEMM kernels they do not compile well.

torch 2.8 and 2.9 for ROCm bring 3.4 and 3.5. Both compile the kernels to scaled matrix instructions; what they compile
is right in the emulator within these limits. Figures: bench/results/older_tritons_gfx950.json, by
evidence/older_tritons.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mxgemm.triton import support


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a field of a tile may be, and why."""

    field: str
    most: int
    why: str


@dataclass(frozen=True, slots=True)
class OldRelease:
    """What is known of one release.

    Attributes:
        version: as people write it.
        limits: of the tiles that it may be given.
        num_stages: of the K loop where nothing is measured: what is predicted to be the faster one for most sizes.
        quantized_stages: the same where A is quantised already.
    """

    version: str
    limits: tuple[Limit, ...]
    num_stages: int
    quantized_stages: int

    def most(self, field: str, otherwise: int) -> int:
        """Return the limit of a field, or another value where that is less or there is none."""
        return min([limit.most for limit in self.limits if limit.field == field] + [otherwise])


# A scale reaches its lane through LDS in these releases, which takes registers: 57 to 171 are spilled for four waves a
# SIMD, none where the compiler is left to choose.
_NO_WAVES: Final = Limit("waves_per_eu", 0, "it spills registers to leave room for more waves")
GFX950: Final[dict[tuple[int, int], OldRelease]] = {
    (3, 4): OldRelease(
        "3.4",
        (
            _NO_WAVES,
            # 372 registers at 512, and for M < 16 a swap between lanes where some are off, which nothing public
            # describes: not executed.
            Limit("block_k", 256, "what it makes of more could not be executed in the emulator"),
            Limit("num_warps", 4, "it spills registers of 128 x 128 tiles by eight"),
        ),
        num_stages=2,
        quantized_stages=1,
    ),
    (3, 5): OldRelease("3.5", (_NO_WAVES,), num_stages=1, quantized_stages=1),
}
"""By (major, minor)."""


def old_release(arch: str) -> OldRelease | None:
    """Return what is known of the triton that is installed, None for one that needs no exception on ``arch``."""
    version = support.triton_version()
    return GFX950.get(version) if arch == "gfx950" and version is not None else None
