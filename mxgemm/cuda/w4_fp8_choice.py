"""Which configuration of w4_fp8 for which problem: an estimate of its time, by which candidates are ordered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mxgemm.cuda.operands import SHARED_BYTES
from mxgemm.cuda.w4_fp8 import (
    COLUMNS,
    MAX_GROUPS,
    Fp8Config,
    config_refusal,
    grid,
    shared_bytes,
    slab_bytes,
    steps,
    tiles_m,
)
from mxgemm.problem import Problem

CLOCKS_A_US: Final = 1700.0
MEMORY_BYTES_A_US: Final = 4.2e6
L2_BYTES_A_US: Final = 9e6
LAUNCHES_US: Final = 3.5
SPLIT_US: Final = 1.0
MAX_USEFUL_STAGES: Final = 6


def candidates(p: Problem) -> Sequence[Fp8Config]:
    """Return legal configurations, the one that should be fastest first; the problem is one that the kernel takes."""
    return sorted(_legal(p), key=lambda c: estimate_us(p, c))


def _legal(p: Problem) -> Iterator[Fp8Config]:
    most = steps(p)
    for columns, groups_n, groups_k, resident in itertools.product(COLUMNS, (1, 2, 3, 4), (1, 2, 4), (1, 2)):
        groups = groups_n * groups_k
        if (columns >= 2 * p.m and columns > COLUMNS[0]) or groups > MAX_GROUPS or groups_k > most:
            continue
        ahead = groups * resident < 3 and columns < COLUMNS[-1]
        for splits, depth in itertools.product((1, 2, 3, 4, 6, 8), (3, 4)):
            bare = Fp8Config(columns, groups_n, groups_k, 0, depth, splits, resident, ahead)
            room = (SHARED_BYTES + 1024) // resident - 1024 - shared_bytes(bare)
            stages = min(MAX_USEFUL_STAGES, room // (slab_bytes(bare) + 16))
            config = replace(bare, stages=stages)
            if splits * groups_k <= most and config_refusal(p, config) is None:
                yield config


def estimate_us(p: Problem, c: Fp8Config) -> float:
    """Return about how long the device takes."""
    slots = max(1, int(p.machine.cu_count * (0.895 if c.splits > 2 else 1.0)) * c.resident)
    waves = -(-grid(p, c)[0] // slots)
    of_group = 2 * -(-steps(p) // (c.splits * c.groups_k))
    together = c.groups * c.resident
    clocks = max(2 * c.columns * together, 60 * together + 1.6 * c.columns * together, 300 + 3 * c.columns)
    weight = p.n * p.k * 17 / 32
    passed = tiles_m(p, c) * (p.n / c.rows * c.columns * p.k * 1.06 + weight)
    sums = waves * 4 * c.groups_k * c.columns * c.rows / 18 / CLOCKS_A_US
    parts = waves * of_group * clocks / CLOCKS_A_US, weight / MEMORY_BYTES_A_US, passed / L2_BYTES_A_US
    spread = math.pow(math.fsum(math.pow(part, 3) for part in parts), 1 / 3)
    return LAUNCHES_US + SPLIT_US * (c.splits > 1) + sums + spread
