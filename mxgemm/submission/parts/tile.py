"""Which tile a shape takes: the table's for the published ones, a rule for all others."""

from typing import NamedTuple

from mxgemm.submission.parts.table import TABLE

COMPUTE_UNITS = 256  # of an MI355X


class Tile(NamedTuple):
    """Rows of A, rows of B and elements of K that a program takes at a time, and how it is compiled.

    ``split_k`` programs share a tile of the result, each with a part of K; the partial sums are added in order, by the
    last of them (``one_launch``) or by a second kernel.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    one_launch: bool
    num_warps: int
    num_stages: int
    waves_per_eu: int
    cache: str


def ceil_divide(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def steps_of(k: int, block_k: int, split_k: int) -> int:
    """Return how many blocks of K each split takes."""
    return ceil_divide(ceil_divide(k, block_k), split_k)


def tile_for_gfx950(m: int, n: int, k: int) -> Tile:
    """Return the table's tile, or guess one as the library does."""
    row = TABLE.get((m, n, k))
    if row is not None:
        return Tile(*row)
    block_m = 16 if m <= 64 else 32
    block_k = 256 if k >= 256 else 128
    blocks = ceil_divide(k, block_k)
    tiles = ceil_divide(m, block_m) * ceil_divide(n, 128)
    split = max(1, min(COMPUTE_UNITS // tiles, blocks // 2))
    # As many splits as fill the machine, with two blocks each at least and none left empty.
    while ceil_divide(blocks, ceil_divide(blocks, split)) != split:
        split -= 1
    return Tile(block_m, 128, block_k, split, False, 4, 2, 4 if block_m == 16 else 3, "")


def tile_elsewhere(m: int, n: int, k: int) -> Tile:
    """Return a tile for a GPU without scaled matrix instructions, or for the interpreter, with gfx950's splits.

    Triton decodes both operands to bf16 there, which fills registers and shared memory: the tile is small.
    """
    tile = tile_for_gfx950(m, n, k)
    return tile._replace(block_m=16 if m <= 16 else 64, block_n=64, block_k=128, waves_per_eu=0)
