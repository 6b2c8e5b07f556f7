"""The fused MFMA GEMM of ``kernels/fused_gemm.hip``: its configuration, what is legal and why, its macros and grid.

No tensors and no compiler here: a problem and a configuration become macros, a grid and a layout of arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.hip.prepared import (
    ARCH,
    TILE,
    TILE_K,
    result_clauses,
    result_defines,
    result_row_bytes,
    weight_clauses,
)
from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.problem import Config, Problem, contiguity_refusal

SOURCE: Final = "fused_gemm.hip"
KERNEL: Final = "fused_gemm"
ARGUMENTS: Final = "PPPPPIIIPP"
"""a, weight, scales, bias, c; m, and the bytes between rows of A and of C; partial sums and counters, which only a
``split_k`` above 1 looks at (letters of ``mxgemm.hip.kernarg``). The hardware can preload what lies before those."""

XCDS: Final = KNOWN_MACHINES[ARCH].xcds
"""Dies among which the kernel deals the blocks along N."""
LANES: Final = KNOWN_MACHINES[ARCH].wave_size
SIMDS: Final = KNOWN_MACHINES[ARCH].simds

BLOCKS_M: Final = (16, 32, 64)
BLOCKS_N: Final = (16, 32, 48, 64, 96, 128, 192)
BLOCKS_K: Final = (128, 256)
MAX_WAVES: Final = 16
MAX_UNROLL: Final = 4
MAX_SPLIT_K: Final = 16
"""Workgroups that share a block: the last one holds a register of each at a time."""
LDS_BYTES: Final = KNOWN_MACHINES[ARCH].lds_bytes
"""What a workgroup may declare: all that a CU has. AITER's kernels for gfx950 declare it too, without asking."""
MAX_GRID_YZ: Final = 65535
"""Workgroups along y, and along z, that the driver takes."""
REGISTERS: Final = KNOWN_MACHINES[ARCH].registers
"""Of a SIMD lane, for all its waves; one wave gets at most half of them."""
MAX_LOADS: Final = 63
"""Of a wave in flight: vmcnt has six bits."""
_OTHER_REGISTERS: Final = 32
"""Scales and what a quantisation needs, besides 8 for each tile of rows: seen in compiled code."""


@dataclass(frozen=True, slots=True)
class FusedConfig(Config):
    """How a workgroup divides its work.

    Attributes:
        block_m: rows of A and C of a workgroup.
        block_n: columns of C of a workgroup.
        block_k: elements along K of a wave's step; 256 is what one dword of shuffled scales covers.
        waves: waves of a workgroup, which share K.
        unroll: steps of a wave whose loads are in flight together.
        split_k: workgroups that share a block of C, each with a part of K; the last adds the sums, in order.
    """

    block_m: int = 16
    block_n: int = 16
    block_k: int = 256
    waves: int = 4
    unroll: int = 1
    split_k: int = 1


def fused_refusal(problem: Problem, config: FusedConfig | None = None) -> Refusal | None:
    """Say why the kernel cannot take ``problem`` (with ``config``, if one is given), or None if it can.

    The machine and its compiler are not asked about: see ``mxgemm.routes.hip_fused``.
    """
    refusal = next(_problem_clauses(problem), None) or contiguity_refusal(problem)
    return refusal or (config_refusal(problem, config) if config else None)


def config_refusal(problem: Problem, config: FusedConfig) -> Refusal | None:
    """Say why ``config`` is illegal for a problem that the kernel can take, or None if it is legal."""
    return next(_config_clauses(problem, config), None)


def _problem_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what no configuration can change."""
    if p.a_quantized:
        yield Refusal("a", "quantised already", "bf16 activations: the kernel quantises them")
    if p.a_format != "e2m1":
        yield Refusal("a_format", p.a_format, '"e2m1"')
    if p.a_dtype != torch.bfloat16:
        yield Refusal("a.dtype", p.a_dtype, "torch.bfloat16: a dword of the kernel is two of them")
    yield from weight_clauses(p)
    yield from result_clauses(p)
    s = p.strides
    if s is not None and (s.a[1] != 1 or (p.m > 1 and s.a[0] % 8)):
        yield Refusal("strides of a", s.a, "(a multiple of 8, 1): 16-byte loads along K")


def _config_clauses(p: Problem, c: FusedConfig) -> Iterator[Refusal]:
    for field, choices in (("block_m", BLOCKS_M), ("block_n", BLOCKS_N), ("block_k", BLOCKS_K)):
        value = getattr(c, field)
        if value not in choices:
            yield Refusal(field, value, f"one of {', '.join(map(str, choices))}")
            return
    if p.k % c.block_k:
        yield Refusal("block_k", c.block_k, f"a divisor of K = {p.k}")
    if not 1 <= c.split_k <= MAX_SPLIT_K or p.k // c.block_k % c.split_k:
        yield Refusal("split_k", c.split_k, f"a divisor of K / {c.block_k} = {p.k // c.block_k}, at most {MAX_SPLIT_K}")
        return
    steps = p.k // c.block_k // c.split_k
    most = min(MAX_WAVES, steps)
    if not 1 <= c.waves <= most:
        yield Refusal(
            "waves", c.waves, f"1 to {most}: a workgroup has at most {MAX_WAVES}, each with a step of its part of K"
        )
        return
    most = min(MAX_UNROLL, steps // c.waves)
    if not 1 <= c.unroll <= most:
        yield Refusal("unroll", c.unroll, f"1 to {most}: at most {MAX_UNROLL} steps, and no more than a wave has")
        return
    if lds_bytes(c) > LDS_BYTES:
        yield Refusal(
            "lds", f"{lds_bytes(c)} bytes", f"at most {LDS_BYTES}: a wave's codes, then its sums of the block"
        )
    registers = min(REGISTERS // 2, REGISTERS // -(-c.waves // SIMDS))
    if registers_needed(p, c) > registers:
        yield Refusal(
            "registers", registers_needed(p, c), f"at most {registers} a lane with {c.waves} waves: what is in flight"
        )
    if -(-p.m // c.block_m) > MAX_GRID_YZ:
        yield Refusal(
            "m", p.m, f"at most {MAX_GRID_YZ * c.block_m} with block_m = {c.block_m}: the grid's second dimension"
        )
    if -(-p.n // c.block_n) > XCDS * (MAX_GRID_YZ // c.split_k):
        most = XCDS * (MAX_GRID_YZ // c.split_k) * c.block_n
        yield Refusal("n", p.n, f"at most {most} with block_n = {c.block_n}: the grid's third dimension")
    if c.block_n * p.k >= 2**31:
        yield Refusal(
            "k", p.k, f"less than {2**31 // c.block_n} with block_n = {c.block_n}: offsets in a block have 32 bits"
        )
    for name, row in (("a", row_bytes(p)[0]), ("out", row_bytes(p)[1])):
        if c.block_m * row >= 2**31:
            yield Refusal(
                f"strides of {name}", f"{row} bytes a row", "blocks within 2 GiB: offsets in one have 32 bits"
            )


def lds_bytes(c: FusedConfig) -> int:
    """Return the bytes of LDS that a workgroup declares: for each wave the codes of a round, then its sums, if more."""
    tiles_m = c.block_m // TILE
    return 1024 * c.waves * tiles_m * max(c.unroll * c.block_k // TILE_K, c.block_n // TILE)


def rounds(k: int, c: FusedConfig) -> int:
    """Return how often a wave loads ``unroll`` steps; with more than one, two rounds are held at a time."""
    return k // c.block_k // c.split_k // (c.waves * c.unroll)


def registers_needed(p: Problem, c: FusedConfig) -> int:
    """Return a bound of the vector registers of a lane.

    A round in flight; or its sums and the weight, for A's registers are free by then; or, of several rounds, the sums
    and two of them; or in the end the parts' sums.
    """
    tiles_m, tiles_n, tiles_k = c.block_m // TILE, c.block_n // TILE, c.block_k // TILE_K
    sums, a = 4 * tiles_m * tiles_n, c.unroll * tiles_m * tiles_k * 16
    weight = c.unroll * (tiles_n * tiles_k * 4 + tiles_n // 2 + 1)
    several = rounds(p.k, c) > 1
    held = sums + 2 * (a + weight) if several else weight + max(a, sums)
    parts = 4 * -(-tiles_m * tiles_n // c.waves) * c.split_k if c.split_k > 1 else 0
    return max(held, parts) + 8 * tiles_m + _OTHER_REGISTERS


def loads_in_flight(c: FusedConfig) -> int:
    """Return how many loads of a wave a round is; the hardware counts to ``MAX_LOADS``, and then waits."""
    tiles_m, tiles_n, tiles_k = c.block_m // TILE, c.block_n // TILE, c.block_k // TILE_K
    return c.unroll * (tiles_k * (4 * tiles_m + tiles_n) + -(-tiles_n // 2))


def row_bytes(p: Problem) -> tuple[int, int]:
    """Return the bytes from a row of A to the next, and from a row of the result to the next; 0 for a single row."""
    a = 0 if p.m == 1 else p.k if p.strides is None else p.strides.a[0]
    return 2 * a, result_row_bytes(p)


def defines(p: Problem, c: FusedConfig) -> dict[str, int | str]:
    """Return the macros that make the kernel of one weight, one configuration and one set of dtypes."""
    return {
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "WAVES": c.waves,
        "UNROLL": c.unroll,
        "SPLIT_K": c.split_k,
        "XCDS": XCDS,
        # The fp32 rule on the upper half of the bits: the lower half of a bf16 is zero and cannot carry.
        "SCALE_ADDEND": scale_addend(E2M1, p.scale_rounding) >> 16,
        **result_defines(p),
    }


def grid(p: Problem, c: FusedConfig) -> tuple[int, int, int]:
    """Return the workgroups: XCDs, blocks along M, and along N of one XCD times parts of K. They go round the XCDs."""
    return XCDS, -(-p.m // c.block_m), -(-blocks_n(p, c) // XCDS) * c.split_k


def block(c: FusedConfig) -> tuple[int, int, int]:
    """Return the work items of a workgroup."""
    return LANES * c.waves, 1, 1


def blocks_n(p: Problem, c: FusedConfig) -> int:
    """Return the blocks along N, the last of which may be partly empty."""
    return -(-p.n // c.block_n)


def blocks(p: Problem, c: FusedConfig) -> int:
    """Return the blocks of C."""
    return -(-p.m // c.block_m) * blocks_n(p, c)


def workspace(p: Problem, c: FusedConfig) -> tuple[int, int]:
    """Return the bytes of partial sums that a launch needs, and its counters (int32, zero, left zero)."""
    if c.split_k == 1:
        return 0, 0
    tiles = (c.block_m // TILE) * (c.block_n // TILE)
    return blocks(p, c) * c.split_k * tiles * TILE * TILE * 4, blocks(p, c) * min(c.waves, tiles)
