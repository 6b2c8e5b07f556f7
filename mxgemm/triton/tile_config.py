"""How one program of a tiled GEMM works and is compiled: the configuration that routing tables name."""

from __future__ import annotations

from dataclasses import dataclass

from mxgemm.problem import Config


@dataclass(frozen=True, slots=True)
class TileConfig(Config):
    """Tile of one program and how it is compiled.

    Attributes:
        block_m: rows of A.
        block_n: rows of B.
        block_k: elements of one step along K.
        split_k: programs that share a tile, each with a part of K; fp32 sums, added in order: runs agree to the bit.
        one_launch: the last of them adds the sums; otherwise a second kernel does.
        num_warps: warps (waves) of a program.
        num_stages: software pipeline depth of the K loop.
        waves_per_eu: AMD only, waves per SIMD that the compiler should leave registers for; 0 lets it choose.
        cache: cache modifier of the weight loads, "" or ".cg".
        transposed: compute the tile's transpose: rows of B stand where the matrix instruction wants many rows.
    """

    block_m: int = 16
    block_n: int = 64
    block_k: int = 256
    split_k: int = 1
    one_launch: bool = False
    num_warps: int = 4
    num_stages: int = 2
    waves_per_eu: int = 0
    cache: str = ""
    transposed: bool = False
