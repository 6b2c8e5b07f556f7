"""Tiles of the Triton kernels of ``quant_gemm``: what is legal, and which one a problem gets.

Depths follow from the scheme: a step of the loop over K lies within one group. The sizes are rules of thumb, measured
on an H200 (bench/results/quant_gemm_h200.json).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from mxgemm.errors import Refusal
from mxgemm.scaled.problem import QuantProblem
from mxgemm.triton.support import INT32_MAX, MAX_SIZE, is_power_of_two, next_power_of_two

Dot = Literal["fp8", "e4m3", "bf16"]
Kind = Literal["plain", "scaled", "converted", "bf16"]

NATIVE: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx950"), ("e4m3", "e5m2")),
    "gfx942": ("e4m3fnuz", "e5m2fnuz"),
}
"""fp8 formats that an architecture's matrix unit multiplies; all others are multiplied as bf16, which holds them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of one program and how it is compiled.

    Attributes:
        block_m: rows of A.
        block_n: rows of B.
        block_k: elements of one step along K.
        split_k: programs that share a tile, each with a part of K.
        swapped: the matrix unit computes the transposed tile.
        num_warps: warps (waves) of a program.
        num_stages: software pipeline depth of the K loop.
        run: tiles down a column that follow one another.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    swapped: bool = False
    num_warps: int = 4
    num_stages: int = 3
    run: int = 8


def dot_of(problem: QuantProblem) -> Dot:
    """Return what the matrix unit multiplies: see ``triton/kernels/scaled_sums.py``."""
    native = NATIVE.get(problem.arch, ())
    formats = (problem.a_format, problem.b_format)
    if problem.scheme.b_powers or not native:
        return "bf16"
    if all(name in native for name in formats):
        return "fp8"
    if "e4m3" in native and all(name in (*native, "int4", "e2m1") for name in formats):
        return "e4m3"
    return "bf16"


def depth_of(problem: QuantProblem) -> int:
    """Return the elements of a step along K: a power of two that divides every group."""
    s = problem.scheme
    wanted = 64 if dot_of(problem) == "bf16" else 128
    if s.a_kind != "group" and s.b_kind != "group":
        return wanted
    if s.b_powers and s.b_group[1] < wanted:  # scales are applied to elements: a step may span groups
        return wanted
    groups = math.gcd(s.a_group if s.a_kind == "group" else 0, s.b_group[1] if s.b_kind == "group" else 0)
    return min(wanted, groups & -groups)


def kind_of(problem: QuantProblem) -> Kind:
    """Return what a step of the loop over K does besides multiplying, which decides how large a tile pays."""
    dot = dot_of(problem)
    if dot != "fp8":
        return "converted" if dot == "e4m3" else "bf16"
    grouped = "group" in (problem.scheme.a_kind, problem.scheme.b_kind)
    return "scaled" if grouped else "plain"


MIDDLE: Final = 512
LARGE_TILES: Final[dict[str, dict[Kind, tuple[int, int, int, int]]]] = {
    "middle": {
        "plain": (64, 128, 4, 4),
        "scaled": (64, 64, 4, 3),
        "converted": (128, 64, 8, 3),
        "bf16": (128, 64, 8, 3),
    },
    "large": {
        "plain": (128, 128, 4, 3),
        "scaled": (64, 128, 4, 3),
        "converted": (128, 64, 4, 3),
        "bf16": (128, 128, 4, 3),
    },
}
"""(block_m, block_n, num_warps, num_stages) on NVIDIA, to M = 512 and from there on: the quickest of eight on an H200
at M = 256 and 1024 (7168, 2048)."""


def tile_for(problem: QuantProblem) -> Tile:
    """Return the tile of a problem."""
    m, depth = problem.m, depth_of(problem)
    if problem.groups:
        m = max(1, m // problem.groups)  # what a group has if all have the same
    nvidia = problem.arch.startswith("sm_")
    if m <= 32:
        tile = Tile(16 if m <= 16 else 32, 64, depth, swapped=nvidia, num_stages=4 if nvidia else 2)
    elif m <= 64 or not nvidia:
        tile = Tile(64, 64, depth, num_stages=4 if nvidia else 2)
    else:
        sizes = LARGE_TILES["middle" if m <= MIDDLE else "large"][kind_of(problem)]
        block_m, block_n, warps, stages = sizes
        return Tile(block_m, block_n, depth, num_warps=warps, num_stages=stages)
    return tile if problem.groups else replace(tile, split_k=_split(problem, tile))


def _split(problem: QuantProblem, tile: Tile) -> int:
    """Return how many programs share a tile: as many as fill the machine, each with four steps at least.

    Where a step waits for its sum to be scaled, two programs a multiprocessor are quicker than one.
    """
    fill = 1 if kind_of(problem) == "plain" else 2
    count, blocks = tiles(problem, tile), -(-problem.k // tile.block_k)
    split = max(1, min(fill * problem.machine.cu_count // max(count, 1), blocks // 4))
    steps = -(-blocks // split)
    return -(-blocks // steps) if blocks else 1


def tiles(problem: QuantProblem, tile: Tile) -> int:
    """Return the number of output tiles of one problem."""
    return -(-problem.m // tile.block_m) * -(-problem.n // tile.block_n)


def programs(problem: QuantProblem, tile: Tile) -> int:
    """Return the programs of a launch; of the grouped form as many as any offsets could need."""
    if problem.groups:
        return (problem.m // tile.block_m + problem.groups + 1) * -(-problem.n // tile.block_n)
    return tiles(problem, tile) * tile.split_k


def tile_refusal(problem: QuantProblem, tile: Tile) -> Refusal | None:
    """Say why a tile is illegal for a problem, or None."""
    for field, least, most in (("block_m", 16, 256), ("block_n", 16, 256), ("block_k", 32, 256), ("num_warps", 1, 16)):
        value = getattr(tile, field)
        if not is_power_of_two(value) or not least <= value <= most:
            return Refusal(field, value, f"a power of two from {least} to {most}")
    s = problem.scheme
    for kind, group in ((s.a_kind, s.a_group), (s.b_kind, s.b_group[1])):
        if kind == "group" and not s.b_powers and group % tile.block_k:
            return Refusal("block_k", tile.block_k, f"a divisor of the group of {group} elements")
    blocks = -(-problem.k // tile.block_k)
    if tile.split_k < 1 or (tile.split_k > 1 and -(-blocks // -(-blocks // tile.split_k)) != tile.split_k):
        return Refusal("split_k", tile.split_k, f"splits that each have work (K = {problem.k})")
    if programs(problem, tile) > INT32_MAX:
        return Refusal("m", problem.m, f"at most {INT32_MAX} programs, here {programs(problem, tile)}")
    return None


def size_refusal(problem: QuantProblem) -> Refusal | None:
    """Refuse what the kernels cannot count."""
    for name in ("m", "n", "k"):
        size = getattr(problem, name)
        if size > MAX_SIZE:
            return Refusal(name, size, f"at most {MAX_SIZE}, what the kernels count in 32 bits")
    return None


def wide_offsets(problem: QuantProblem) -> bool:
    """Say whether an offset into some operand can pass 2**31 - 1 elements."""
    st, m, n, k = problem.strides, problem.m, problem.n, problem.k
    spans = (
        (m, st.a[0], k, st.a[1]),
        (n, st.b[0], k, st.b[1]),
        (m, st.a_scales[0], k, st.a_scales[1]),
        (n, st.b_scales[0], k, st.b_scales[1]),
        (m, st.out[0], n, st.out[1]),
        (n, st.bias, 0, 0),
    )
    # The masked tail of a tile is computed too: 512 more rows and columns are an upper bound of any block.
    return any((rows + 512) * rs + (columns + 512) * cs > INT32_MAX for rows, rs, columns, cs in spans)


def group_block(groups: int) -> int:
    """Return how many groups a program of the grouped form looks at: all, and the rows behind the last one."""
    return next_power_of_two(groups + 1)
