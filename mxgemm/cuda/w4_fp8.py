"""The MXFP4 GEMM of ``kernels/w4_fp8.cu`` by fp8 products: configuration, what is legal, macros.

No tensors and no compiler here: a problem and a configuration become macros, a grid and the constant part of the
arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mxgemm.cuda.operands import (
    ROUND_THREADS,
    SHARED_BYTES,
    a_vector,
    macros_of_a,
    operand_clauses,
    out_vector,
    round_refusal,
    strides_of,
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
    tiles_m,
)
from mxgemm.errors import Refusal
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.layouts import FRAGMENTS
from mxgemm.problem import Config, Problem, contiguity_refusal

SOURCE: Final = "w4_fp8.cu"
KERNEL: Final = "w4_fp8"
FOLD_SOURCE: Final = "w4_fp8_fold.cu"
FOLD_KERNEL: Final = "fold_slabs"

POINTERS: Final = Layout("PPPPPP")
"""slabs of A, weight, scales, bases of its rows, bias, out."""
BASES: Final = {"fp8_fold": 4, "fp8_fold_compact": 1}
"""Bytes of a row's base in the forms of a weight that folds (``mxgemm.routes.fold_forms``)."""
STEP: Final = 256
"""Elements along K that a warpgroup multiplies between two looks at what has come: two chunks."""
MAX_DEPTH: Final = 16
MAX_RESIDENT: Final = 2
MAX_BYTES: Final = 1 << 32
_REGISTERS: Final = 1 << 16
"""Of a multiprocessor."""
_REGISTERS_OF: Final = {
    (64, False): 128,
    (64, True): 192,
    (128, False): 248,
    (128, True): 248,
    (192, False): 248,
    (192, True): 248,
    (256, False): 248,
    (256, True): 248,
}
"""A lane's, by columns and whether it decodes ahead: as compiled."""
_VALUES: Final = 8
"""Of A that a lane of the launch before folds."""


@dataclass(frozen=True, slots=True)
class Fp8Config(Config):
    """How a workgroup divides its work.

    Attributes:
        columns: rows of A of a workgroup.
        groups_n: warpgroups along N, 64 rows of the weight each.
        groups_k: warpgroups that take steps along K in turn; their sums are added in order.
        stages: steps of A that shared memory holds.
        depth: steps of its rows of the weight that a warp has in shared memory.
        splits: workgroups that share K, a cluster; each adds the sums of all for some rows of A, in order.
        resident: workgroups that a multiprocessor has room for.
        ahead: a chunk is decoded while the one before is multiplied, in registers of its own.
    """

    columns: int = 64
    groups_n: int = 2
    groups_k: int = 1
    stages: int = 4
    depth: int = 3
    splits: int = 1
    resident: int = 1
    ahead: bool = True

    @property
    def groups(self) -> int:
        """Warpgroups."""
        return self.groups_n * self.groups_k

    @property
    def rows(self) -> int:
        """Weight rows of a workgroup."""
        return TILE_N * self.groups_n

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return GROUP * self.groups


def fp8_refusal(problem: Problem, config: Fp8Config | None = None) -> Refusal | None:
    """Say why the kernel cannot take ``problem`` (with ``config``, if one is given), or None if it can.

    The machine and its compiler are not asked about: see ``mxgemm.routes.w4_fp8``.
    """
    refusal = next(_problem_clauses(problem), None) or contiguity_refusal(problem)
    if refusal is None and config is not None:
        refusal = config_refusal(problem, config)
    return refusal


def config_refusal(problem: Problem, config: Fp8Config) -> Refusal | None:
    """Say why a configuration is not legal for a problem that the kernel takes, or None."""
    return next(_config_clauses(problem, config), None)


def _problem_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what no configuration can change."""
    yield from operand_clauses(p)
    if p.a_format != "e2m1":
        yield Refusal("a_format", p.a_format, '"e2m1": others do not fold to e4m3')
    if p.derived not in BASES:
        found = f"prepared as {p.derived}" if p.derived else "not prepared"
        yield Refusal("b", found, "an MXTensor after prepare(), whose rows all fold (mxgemm.mx.fold)")
    if p.weight_layout == FRAGMENTS:
        yield Refusal("weight_layout", FRAGMENTS, "the weight's own bytes")
    (row, column), (scales_row, scales_column) = strides_of(p).b, strides_of(p).b_scales
    tiled = p.weight_layout != "row_major"
    if not p.aligned:
        yield Refusal("data_ptr()", "not aligned", "operands that begin at multiples of 16 bytes")
    if column != 1 or scales_column != 1 or not (tiled or p.n == 1 or row % 16 == 0):
        yield Refusal("b", "not in aligned pieces of 16 bytes", "blocks that are read at once, scales side by side")
    yield from size_clauses(p)
    if p.n * max(p.k // 2, 0 if tiled else row, scales_row) >= MAX_BYTES:
        yield Refusal("n * k", p.n * p.k, f"a weight of fewer than {MAX_BYTES} bytes: they are counted in 32 bits")
    too_many = round_refusal(p, padded_rows(p, COLUMNS[-1]))
    if too_many is not None:
        yield too_many


def _config_clauses(p: Problem, c: Fp8Config) -> Iterator[Refusal]:
    if c.columns not in COLUMNS:
        yield Refusal("columns", c.columns, f"one of {', '.join(map(str, COLUMNS))}")
        return
    for field, value, least, most in (
        ("groups_n", c.groups_n, 1, MAX_GROUPS),
        ("groups_k", c.groups_k, 1, MAX_GROUPS),
        ("depth", c.depth, 1, MAX_DEPTH),
        ("splits", c.splits, 1, min(MAX_SPLITS, steps(p))),
        ("resident", c.resident, 1, MAX_RESIDENT),
    ):
        if not least <= value <= most:
            yield Refusal(field, value, f"{least} to {most}")
            return
    if c.ahead and c.columns > COLUMNS[0] and c.groups_k > 1:
        yield Refusal("ahead", c.ahead, f"False with {c.columns} columns where groups share K: registers are few")
    if c.columns == COLUMNS[-1] and (c.groups_n, c.groups_k) != (2, 1):
        yield Refusal(
            "groups", f"{c.groups_n} x {c.groups_k}", f"2 x 1 with {c.columns} columns: others spill registers"
        )
    if c.groups > MAX_GROUPS:
        yield Refusal("groups", c.groups, f"at most {MAX_GROUPS} of a workgroup")
        return
    if not c.groups_k < c.stages <= MAX_STAGES:
        yield Refusal("stages", c.stages, f"{c.groups_k + 1} to {MAX_STAGES}, more than warpgroups share K")
        return
    if registers_needed(c) > registers_allowed(c):
        wanted = f"at most {registers_allowed(c)} a lane with this many warps"
        yield Refusal("registers", registers_needed(c), wanted)
    if c.resident * (shared_bytes(c) + 1024) > SHARED_BYTES + 1024:
        yield Refusal("shared memory", f"{shared_bytes(c)} bytes", f"at most {SHARED_BYTES} of a multiprocessor")
    yield from grid_clauses(p, c)


def steps(p: Problem) -> int:
    """Return the steps along K, the last of which may be partly empty."""
    return -(-p.k // STEP)


def registers_needed(c: Fp8Config) -> int:
    """Return a bound of the registers of a lane."""
    return _REGISTERS_OF[c.columns, c.ahead]


def registers_allowed(c: Fp8Config) -> int:
    """Return how many registers a lane may have."""
    return min(255, _REGISTERS // (c.threads * c.resident) // 8 * 8)


def slab_bytes(c: Fp8Config) -> int:
    """Return the bytes of a step of A: elements, and for each row and chunk a power of two and what its blocks lack."""
    return (STEP + 16) * c.columns


def shared_bytes(c: Fp8Config) -> int:
    """Return a workgroup's bytes of shared memory: slabs, weights, tables, in the end sums; barriers behind all."""
    of_warp = c.depth * 2048 + 4 * 128  # words, and scales of four steps
    before = c.stages * slab_bytes(c) + 4 * c.groups * of_warp + 512 + 8 * c.columns
    sums = 4 * c.groups_k * c.columns * (c.rows + 4)
    return max(before, sums) + 16 * c.stages + 8


def folded_bytes(p: Problem, c: Fp8Config) -> int:
    """Return the scratch that folded A takes: slabs, and a power of two for each row."""
    return tiles_m(p, c) * steps(p) * slab_bytes(c) + 8 * padded_rows(p, c.columns)


def defines(p: Problem, c: Fp8Config) -> dict[str, int | str]:
    """Return the macros that make the kernel of a form, a class of strides and a configuration."""
    return {
        "W_BLOCK": 16 if p.weight_layout == "row_major" else 256,
        "S_FOURTH": 4 if p.scale_layout == "row_major" else 2,
        "BASES": BASES[p.derived],
        "TAIL": int(p.k % STEP != 0),
        "COLUMNS": c.columns,
        "WN": c.groups_n,
        "WK": c.groups_k,
        "STAGES": c.stages,
        "DEPTH": c.depth,
        "SPLITS": c.splits,
        "RESIDENT": c.resident,
        "AHEAD": int(c.ahead),
        "OUT_VECTOR": out_vector(p),
    }


def fold_defines(p: Problem, c: Fp8Config) -> dict[str, int | str]:
    """Return the macros of the launch that folds A."""
    return {
        **macros_of_a(p),
        "COLUMNS": c.columns,
        "A_VECTOR": int(a_vector(p)),
    }


def fold_grid(p: Problem, c: Fp8Config) -> tuple[int, int, int]:
    """Return the workgroups that fold A."""
    return -(-padded_rows(p, c.columns) * steps(p) * STEP // (_VALUES * ROUND_THREADS)), 1, 1
