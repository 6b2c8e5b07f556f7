"""What Triton makes of ``tl.dot_scaled`` on each machine, as data: below these sizes it decodes to bf16 without a word.

Found by compiling with triton 3.6 and 3.9 and reading the machine code (``evidence/machines_compile.py``, whose counts
are in ``bench/results/machines_compile.json``). Of the machines that have the instruction only gfx950's code was
executed, in the emulator; the first tiles of the others are guesses that nobody has timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mxgemm.problem import Problem
from mxgemm.triton.tile_config import TileConfig


@dataclass(frozen=True, slots=True)
class ScaledDot:
    """The matrix instruction of a machine that takes MX operands with their scales.

    Attributes:
        instruction: a part of its name that no other instruction of the machine's has.
        rows: least rows of the left operand: ``block_m``, or ``block_n`` of a transposed tile.
        depth: least ``block_k``.
        warps: least ``num_warps``.
        mixed: the operands' formats may differ.
        tiles: first guesses, (most rows of A, tile), the last for any number.
    """

    instruction: str
    rows: int
    depth: int
    warps: int
    mixed: bool = True
    tiles: tuple[tuple[int, TileConfig], ...] = ()


_ANY: Final = 1 << 62

SCALED_DOTS: Final[dict[str, ScaledDot]] = {
    # gfx950's tiles are chosen by what was counted of each: mxgemm/routes/triton_gemm.py
    "gfx950": ScaledDot("v_mfma_scale", rows=16, depth=128, warps=2),
    # of a step of 64 half the instruction would be padding
    "gfx1250": ScaledDot(
        "v_wmma_scale", rows=16, depth=128, warps=1,
        tiles=(
            (16, TileConfig(16, 64, 256)),
            (64, TileConfig(64, 64, 256)),
            (_ANY, TileConfig(128, 128, 256, num_warps=8)),
        ),
    ),
    # the 128 lanes of tensor memory; few rows of A stand on its other side
    "sm_100": ScaledDot(
        "block_scale", rows=128, depth=64, warps=4,
        tiles=(
            (16, TileConfig(16, 128, 256, transposed=True)),
            (32, TileConfig(32, 128, 256, transposed=True)),
            (64, TileConfig(64, 128, 256, transposed=True)),
            (_ANY, TileConfig(128, 128, 256)),
        ),
    ),
    # 99 KB of shared memory a block at most
    "sm_120": ScaledDot(
        "block_scale", rows=16, depth=64, warps=1, mixed=False,
        tiles=(
            (16, TileConfig(16, 64, 128)),
            (64, TileConfig(64, 64, 128)),
            (_ANY, TileConfig(128, 128, 128, num_warps=8)),
        ),
    ),
}  # fmt: skip
"""By architecture; on any other the kernels decode both operands to bf16, which the documents call upcast."""


def scaled_dot_of(problem: Problem) -> ScaledDot | None:
    """Return the instruction that a problem's formats can have on its machine, None where Triton decodes to bf16."""
    found = SCALED_DOTS.get(problem.arch)
    if found is None or problem.a_format == "bf16" or (problem.a_format != problem.b_format and not found.mixed):
        return None
    return found


def first_tile(problem: Problem) -> TileConfig | None:
    """Return the guess for a problem, None where there is none."""
    found = scaled_dot_of(problem)
    return next((tile for most, tile in found.tiles if problem.m <= most), None) if found else None
