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
    round_refusal,
    rounded_values,
    strides_of,
    weight_vector,
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
CONSTANTS: Final = Layout("q" * 13 + "i" * 6)
"""The rest of the kernel's ``Arguments``: strides, then sizes and dtypes."""
GROUP: Final = 128
"""Lanes of a warpgroup."""
TILE_N: Final = 64
"""Rows of a warpgroup's product, here of the weight."""
COLUMNS: Final = (64, 128, 192, 256)
"""Its columns, here rows of A."""
TILES: Final = (1, 2, 4)
MAX_SUMS: Final = 128
"""Sums of a lane, in registers."""
MAX_GROUPS: Final = 4
MAX_STAGES: Final = 12
MAX_DEPTH: Final = 4
MAX_SPLITS: Final = 8
"""Workgroups that any Hopper GPU can run as a cluster."""
MAX_M: Final = 1 << 22
MAX_N: Final = 1 << 30
MAX_K: Final = 1 << 24
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
    for name, value, most in (("m", p.m, MAX_M), ("n", p.n, MAX_N), ("k", p.k, MAX_K)):
        if value > most:
            yield Refusal(name, value, f"at most {most}: it is counted in 32 bits")
    too_many = round_refusal(p, round_rows(p, COLUMNS[-1]))
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
    if grid(p, c)[0] >= 1 << 31:
        yield Refusal("n * m", p.n * p.m, "fewer than 2^31 workgroups")


def tiles_m(p: Problem, c: WgmmaConfig) -> int:
    """Return the workgroups along M."""
    return -(-p.m // c.columns)


def round_rows(p: Problem, columns: int) -> int:
    """Return the rows of rounded A: M padded to whole workgroups."""
    return -(-p.m // columns) * columns


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
    return 2 * rounded_values(p, round_rows(p, c.columns))


def defines(p: Problem, c: WgmmaConfig) -> dict[str, int | str]:
    """Return the macros that make the kernel of a format, a class of strides and a configuration."""
    s = strides_of(p)
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
        "OUT_VECTOR": int(p.aligned and s.out[1] == 1 and (p.m == 1 or s.out[0] % 4 == 0)),
    }


def round_defines(p: Problem, c: WgmmaConfig) -> dict[str, int | str]:
    """Return the macros of the launch that rounds A."""
    return {
        **macros_of_a(p),
        "COLUMNS": c.columns,
        "A_VECTOR": int(a_vector(p)),
        "OVERLAP": 1,
        **dict.fromkeys(("TILES", "FRAGMENTS", "W_VECTOR", "WARPS_M", "A_BEFORE"), 1),
        "A_CODES": 0,
    }


def constants(p: Problem) -> bytes:
    """Return all arguments but the pointers."""
    return CONSTANTS.pack(*operands.constants(p))


def grid(p: Problem, c: WgmmaConfig) -> tuple[int, int, int]:
    """Return the workgroups: clusters that share K, of the same weights side by side."""
    return -(-p.n // c.rows) * tiles_m(p, c) * c.splits, 1, 1


def block(c: WgmmaConfig) -> tuple[int, int, int]:
    """Return the threads of a workgroup."""
    return c.threads, 1, 1


def round_grid(p: Problem, c: WgmmaConfig) -> tuple[int, int, int]:
    """Return the workgroups that round A."""
    return operands.round_grid(p, round_rows(p, c.columns))
