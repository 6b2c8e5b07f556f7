"""Tiles of the Triton GEMM kernels: the configuration, the one statement of what is legal, and split-K."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

from mxgemm.errors import Refusal
from mxgemm.mx.layouts import SCALE_PAD_ROWS
from mxgemm.problem import Problem
from mxgemm.triton.releases import old_release
from mxgemm.triton.scaled_dot import scaled_dot_of
from mxgemm.triton.support import grid_refusal, interpreting, is_power_of_two, wide_offsets
from mxgemm.triton.tile_config import TileConfig

REDUCE_BLOCK_N: Final = 256
"""Columns of a program of the kernel that adds the partial sums of split-K."""


def tile_refusal(problem: Problem, c: TileConfig) -> Refusal | None:
    """Say why a tile is illegal for a problem, or None. Router, tuner and tests all ask here."""
    for field, least, most, why in (
        ("block_m", 16, SCALE_PAD_ROWS, "an MFMA has 16 rows; shuffled scales are padded to 256"),
        ("block_n", 16, SCALE_PAD_ROWS, "an MFMA has 16 columns; shuffled scales are padded to 256"),
        ("block_k", 64, 1024, "a preshuffled tile is 64 wide; more than 1024 does not fit registers"),
        ("num_warps", 1, 16, "the hardware's workgroups"),
    ):
        value = getattr(c, field)
        if not is_power_of_two(value) or not least <= value <= most:
            return Refusal(field, value, f"a power of two from {least} to {most} ({why})")
    if c.cache not in ("", ".cg"):
        return Refusal("cache", c.cache, '"" or ".cg"')
    if not 1 <= c.num_stages <= 8:
        return Refusal("num_stages", c.num_stages, "1 to 8")
    if not 0 <= c.waves_per_eu <= 8:
        return Refusal("waves_per_eu", c.waves_per_eu, "0 to 8, a SIMD holds 8 waves")
    if c.split_k < 1 or split_steps(problem, c)[0] != c.split_k:
        return Refusal(
            "split_k", c.split_k, f"at most one split per block of K, with none left empty (K = {problem.k})"
        )
    old = old_release(problem.arch)
    if old is not None:
        for limit in old.limits:
            value = getattr(c, limit.field)
            if value > limit.most:
                needed = f"at most {limit.most} with triton {old.version}: {limit.why}"
                return Refusal(limit.field, value, needed, "installation")
    refusal = _decoding_refusal(problem, c)
    if refusal:
        return refusal
    refusal = grid_refusal(problem, (tiles(problem, c) * c.split_k, 1, 1), c.num_warps, ("m", "n"))
    if refusal is None and c.split_k > 1 and not c.one_launch:
        refusal = grid_refusal(problem, (problem.m, -(-problem.n // REDUCE_BLOCK_N), 1), 4, ("m", "n"))
    return refusal


def _decoding_refusal(problem: Problem, c: TileConfig) -> Refusal | None:
    """Say why a tile would not get the machine's scaled matrix instruction where the problem can have it, or None."""
    if c.transposed and problem.a_format == "bf16":
        return Refusal("transposed", True, "quantised activations: Triton's scaled dot takes bf16 on the left alone")
    found = scaled_dot_of(problem)
    if found is None:
        return None
    rows = "block_n" if c.transposed else "block_m"
    for field, least in ((rows, found.rows), ("block_k", found.depth), ("num_warps", found.warps)):
        value = getattr(c, field)
        if value < least:
            turned = " (or transposed)" if field == "block_m" and c.block_n >= least else ""
            needed = f"at least {least} on {problem.arch}{turned}: below, Triton does without {found.instruction}"
            return Refusal(field, value, needed)
    return None


def tile_candidates(problem: Problem) -> list[TileConfig]:
    """Return the tiles that tuning tries; those that cut K into parts only where tiles are too few for the machine."""
    found, dot = [], scaled_dot_of(problem)
    depths = (2, 3) if old_release(problem.arch) is None else (1, 2)
    for block_m, block_n, block_k in product((16, 32, 64, 128), (32, 64, 128), (128, 256)):
        if block_m > 16 and block_m >= 2 * problem.m:
            continue
        whole = TileConfig(
            block_m, block_n, block_k, num_warps=8 if block_m * block_n >= 64 * 128 else 4,
            transposed=dot is not None and block_m < dot.rows,
        )  # fmt: skip
        few = tiles(problem, whole) < problem.machine.cu_count
        found += [replace(whole, num_stages=stages) for stages in depths]
        found += [replace(whole, split_k=split, one_launch=one) for split in (2, 4, 8) for one in (False, True) if few]
    return found


def fill(problem: Problem, tile: TileConfig) -> TileConfig:
    """Return a tile with K in as many parts as give each CU a program, or whole where there are tiles enough."""
    blocks = -(-problem.k // tile.block_k)
    # Two blocks of K a split at least: one alone leaves nothing to overlap its loads with.
    split = min(problem.machine.cu_count // max(1, tiles(problem, tile)), blocks // 2)
    while split > 1:
        candidate = replace(tile, split_k=split)
        if tile_refusal(problem, candidate) is None:
            return candidate
        split -= 1
    return tile


def split_steps(problem: Problem, c: TileConfig) -> tuple[int, int]:
    """Return how many splits have work, and how many blocks of K each takes."""
    blocks = -(-problem.k // c.block_k)
    steps = -(-blocks // c.split_k)
    return -(-blocks // steps), steps


def tile_constants(problem: Problem, c: TileConfig) -> dict[str, Any]:
    """Return the constants that every tiled GEMM kernel ends with, in their order."""
    p = problem
    return {
        "PRESHUFFLED": p.weight_layout == "preshuffled",
        "SCALE_ORDER": p.scale_layout,
        "HAS_BIAS": p.has_bias,
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "SPLIT_K": c.split_k,
        "STEPS": split_steps(p, c)[1] if c.split_k > 1 else 0,
        "ONE_LAUNCH": c.one_launch,
        "EVEN_M": p.m % c.block_m == 0,
        "EVEN_N": p.n % c.block_n == 0,
        "EVEN_K": p.k % c.block_k == 0,
        "WIDE": wide_offsets(p),
        # Renumbering pays where several tiles share a weight; alone, it only costs scalar instructions.
        "XCDS": p.machine.xcds if p.m > c.block_m else 1,
        "CACHE": c.cache,
        "AMD": p.arch.startswith("gfx"),
        "INTERPRETED": interpreting(),
        "TRANSPOSED": c.transposed,
    }


def compiler_options(problem: Problem, c: TileConfig) -> dict[str, int]:
    """Return the compiler's options for a tile."""
    options = {"num_warps": c.num_warps, "num_stages": c.num_stages}
    if problem.arch.startswith("gfx"):
        options |= {"waves_per_eu": c.waves_per_eu, "matrix_instr_nonkdim": 16}
    return options


def tiles(problem: Problem, c: TileConfig) -> int:
    """Return the number of output tiles."""
    return -(-problem.m // c.block_m) * -(-problem.n // c.block_n)
