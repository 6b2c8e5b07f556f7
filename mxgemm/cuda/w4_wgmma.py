"""The MXFP4 GEMM of ``kernels/w4_wgmma.cu``, for more rows of A than ``w4_mma``: configuration, what is legal, macros.

No tensors and no compiler here: a problem and a configuration become macros, a grid and the constant part of the
arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mxgemm.cuda import operands
from mxgemm.cuda.operands import (
    CHUNK,
    SHARED_BYTES,
    a_vector,
    chunks,
    fragments,
    macros_of_a,
    operand_clauses,
    out_vector,
    round_refusal,
    rounded_values,
    weight_vector,
)
from mxgemm.cuda.warpgroups import (
    COLUMNS,
    GROUP,
    MAX_GROUPS,
    MAX_SPLITS,
    MAX_STAGES,
    TILE_N,
    grid_clauses,
    padded_rows,
    size_clauses,
)
from mxgemm.errors import Refusal
from mxgemm.hip.kernarg import Layout
from mxgemm.problem import Config, Problem, contiguity_refusal

SOURCE: Final = "w4_wgmma.cu"
KERNEL: Final = "w4_wgmma"
ROUND_SOURCE: Final = "w4_wgmma_round.cu"
ROUND_KERNEL: Final = "round_slabs"

POINTERS: Final = Layout("PPPPP")
"""rounded a, weight, scales, bias, out."""
TILES: Final = (1, 2, 4)
MAX_SUMS: Final = 128
"""Sums of a lane, in registers."""
MAX_DEPTH: Final = 4
_REGISTERS_OF: Final = {1: 255, 2: 240, 3: 160, 4: 112}
"""A lane's, by warpgroups that multiply; see the kernel."""
_OTHER_REGISTERS: Final = 52
"""Two sets of decoded weights, factors, counters, addresses."""


@dataclass(frozen=True, slots=True)
class WgmmaConfig(Config):
    """How a workgroup divides its work.

    Attributes:
        tiles: tiles of 64 weight rows of a warpgroup, whose warps decode them one after the other.
        columns: rows of A of a workgroup.
        groups_n: warpgroups along N.
        groups_k: warpgroups that take chunks of K in turn; their sums are added in order.
        stages: chunks of A that shared memory holds.
        depth: chunks of the weight that a warp has in flight.
        splits: workgroups that share K, a cluster; each adds the sums of all for some rows of A, in order.
    """

    tiles: int = 1
    columns: int = 64
    groups_n: int = 2
    groups_k: int = 1
    stages: int = 4
    depth: int = 2
    splits: int = 1

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return self.groups_n * self.groups_k

    @property
    def rows(self) -> int:
        """Weight rows of a workgroup."""
        return TILE_N * self.tiles * self.groups_n

    @property
    def threads(self) -> int:
        """Lanes of a workgroup: one of those after the groups' copies A."""
        return GROUP * self.groups + (GROUP if self.groups > 1 else 32)


def wgmma_refusal(problem: Problem, config: WgmmaConfig | None = None) -> Refusal | None:
    """Say why the kernel cannot take ``problem`` (with ``config``, if one is given), or None if it can.

    The machine and its compiler are not asked about: see ``mxgemm.routes.w4_wgmma``.
    """
    refusal = next(_problem_clauses(problem), None) or contiguity_refusal(problem)
    if refusal is None and config is not None:
        refusal = config_refusal(problem, config)
    return refusal


def config_refusal(problem: Problem, config: WgmmaConfig) -> Refusal | None:
    """Say why a configuration is not legal for a problem that the kernel takes, or None."""
    return next(_config_clauses(problem, config), None)


def _problem_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what no configuration can change."""
    yield from operand_clauses(p)
    yield from size_clauses(p)
    too_many = round_refusal(p, padded_rows(p, COLUMNS[-1]))
    if too_many is not None:
        yield too_many


def _config_clauses(p: Problem, c: WgmmaConfig) -> Iterator[Refusal]:
    for field, value, allowed in (("tiles", c.tiles, TILES), ("columns", c.columns, COLUMNS)):
        if value not in allowed:
            yield Refusal(field, value, f"one of {', '.join(map(str, allowed))}")
            return
    if c.tiles * c.columns // 2 > MAX_SUMS:
        yield Refusal("columns", c.columns, f"at most {2 * MAX_SUMS // c.tiles} with {c.tiles} tiles")
    for field, value in (("groups_n", c.groups_n), ("groups_k", c.groups_k)):
        if not 1 <= value <= MAX_GROUPS:
            yield Refusal(field, value, f"1 to {MAX_GROUPS}")
            return
    if c.groups > MAX_GROUPS:
        yield Refusal("groups", c.groups, f"at most {MAX_GROUPS} of a workgroup")
    if not c.groups_k < c.stages <= MAX_STAGES:
        yield Refusal("stages", c.stages, f"{c.groups_k + 1} to {MAX_STAGES}, more than warpgroups share K")
        return
    if not 1 <= c.depth <= MAX_DEPTH:
        yield Refusal("depth", c.depth, f"1 to {MAX_DEPTH}")
        return
    if not 1 <= c.splits <= min(MAX_SPLITS, chunks(p)):
        yield Refusal("splits", c.splits, f"1 to {min(MAX_SPLITS, chunks(p))}: each has a chunk of {CHUNK}")
        return
    if registers_needed(p, c) > registers_allowed(c):
        wanted = f"at most {registers_allowed(c)} a lane with this many warps"
        yield Refusal("registers", registers_needed(p, c), wanted)
    if shared_bytes(c) > SHARED_BYTES:
        yield Refusal("shared memory", f"{shared_bytes(c)} bytes", f"at most {SHARED_BYTES}")
    yield from grid_clauses(p, c)


def registers_needed(p: Problem, c: WgmmaConfig) -> int:
    """Return a bound of the registers of a lane: sums, weights in flight, their places, what is decoded."""
    if fragments(p):
        weights = c.depth * (c.tiles * 8 + (c.tiles + 1) // 2) + 2 * ((c.tiles + 1) // 2)
    else:
        weights = 10 * c.tiles * c.depth + 8 * c.tiles + 12
    return c.tiles * c.columns // 2 + weights + _OTHER_REGISTERS


def registers_allowed(c: WgmmaConfig) -> int:
    """Return how many registers a lane may have."""
    return _REGISTERS_OF[c.groups]


def shared_bytes(c: WgmmaConfig) -> int:
    """Return the bytes of shared memory of a workgroup: A's ring, in the end fp32 sums; barriers behind both."""
    sums = 4 * c.groups_k * c.columns * (c.rows + 4)
    return max(c.stages * 2 * CHUNK * c.columns, sums) + 16 * c.stages


def rounded_bytes(p: Problem, c: WgmmaConfig) -> int:
    """Return the scratch that rounded A takes."""
    return 2 * rounded_values(p, padded_rows(p, c.columns))


def defines(p: Problem, c: WgmmaConfig) -> dict[str, int | str]:
    """Return the macros that make the kernel of a format, a class of strides and a configuration."""
    return {
        **macros_of_a(p),
        "A_CODES": 0,
        "A_BEFORE": 1,
        "A_VECTOR": 1,
        "W_VECTOR": int(weight_vector(p)),
        "WARPS_M": 1,
        "FRAGMENTS": int(fragments(p)),
        "TAIL": int(p.k % CHUNK != 0),
        "TILES": c.tiles,
        "COLUMNS": c.columns,
        "WN": c.groups_n,
        "WK": c.groups_k,
        "STAGES": c.stages,
        "DEPTH": c.depth,
        "SPLITS": c.splits,
        "OUT_VECTOR": out_vector(p),
    }


def round_defines(p: Problem, c: WgmmaConfig) -> dict[str, int | str]:
    """Return the macros of the launch that rounds A."""
    return {
        **macros_of_a(p),
        "COLUMNS": c.columns,
        "A_VECTOR": int(a_vector(p)),
        "OVERLAP": 1,
        "NEIGHBOURS": int(fragments(p)),
        **dict.fromkeys(("TILES", "FRAGMENTS", "W_VECTOR", "WARPS_M", "A_BEFORE"), 1),
        "A_CODES": 0,
    }


def round_grid(p: Problem, c: WgmmaConfig) -> tuple[int, int, int]:
    """Return the workgroups that round A."""
    return operands.round_grid(p, padded_rows(p, c.columns))
