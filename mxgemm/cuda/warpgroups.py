"""What the kernels of warpgroups, w4_wgmma.cu and w4_fp8.cu, have alike: products, sizes, arguments, grids, results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Protocol

from mxgemm.cuda import operands
from mxgemm.errors import Refusal
from mxgemm.hip.kernarg import Layout
from mxgemm.problem import Problem

CONSTANTS: Final = Layout("q" * 13 + "i" * 6)
"""The rest of a kernel's ``Arguments`` after its pointers: strides, then sizes and dtypes."""
GROUP: Final = 128
"""Lanes of a warpgroup."""
TILE_N: Final = 64
"""Rows of a warpgroup's product, here of the weight."""
COLUMNS: Final = (64, 128, 192, 256)
"""Its columns, here rows of A."""
MAX_GROUPS: Final = 4
MAX_STAGES: Final = 12
MAX_SPLITS: Final = 8
"""Workgroups that any Hopper GPU can run as a cluster."""
MAX_M: Final = 1 << 22
MAX_N: Final = 1 << 30
MAX_K: Final = 1 << 24


class Division(Protocol):
    """How a workgroup divides its work: columns of a product, weight rows, lanes, workgroups that share K."""

    @property
    def columns(self) -> int: ...  # noqa: D102
    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def threads(self) -> int: ...  # noqa: D102
    @property
    def splits(self) -> int: ...  # noqa: D102


def size_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what is too large for any configuration."""
    for name, value, most in (("m", p.m, MAX_M), ("n", p.n, MAX_N), ("k", p.k, MAX_K)):
        if value > most:
            yield Refusal(name, value, f"at most {most}: it is counted in 32 bits")


def grid_clauses(p: Problem, c: Division) -> Iterator[Refusal]:
    """Yield what makes a grid that no driver takes."""
    if grid(p, c)[0] >= 1 << 31:
        yield Refusal("n * m", p.n * p.m, "fewer than 2^31 workgroups")


def tiles_m(p: Problem, c: Division) -> int:
    """Return the workgroups along M."""
    return -(-p.m // c.columns)


def padded_rows(p: Problem, columns: int) -> int:
    """Return the rows of A as a launch before the product makes them: M padded to whole workgroups."""
    return -(-p.m // columns) * columns


def grid(p: Problem, c: Division) -> tuple[int, int, int]:
    """Return the workgroups: clusters that share K, of the same weights side by side."""
    return -(-p.n // c.rows) * tiles_m(p, c) * c.splits, 1, 1


def block(c: Division) -> tuple[int, int, int]:
    """Return the threads of a workgroup."""
    return c.threads, 1, 1


def constants(p: Problem) -> bytes:
    """Return all arguments but the pointers."""
    return CONSTANTS.pack(*operands.constants(p))


def norm(parts: tuple[float, ...], power: float) -> float:
    """Return a sum in which the largest part counts most: of times that partly overlap."""
    return math.pow(math.fsum(math.pow(part, power) for part in parts), 1 / power)
