"""Which configuration of w4_fp8 for which problem: an estimate of its time, by which candidates are ordered.

Its constants are those that come nearest to what an H200 measured (docs/lab-notes.md), so they are not a data sheet's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mxgemm.cuda.operands import SHARED_BYTES
from mxgemm.cuda.w4_fp8 import Fp8Config, config_refusal, registers_needed, shared_bytes, steps
from mxgemm.cuda.warpgroups import COLUMNS, MAX_GROUPS, grid, norm, tiles_m
from mxgemm.problem import Problem

CLOCKS_A_US: Final = 1700.0
MEMORY_BYTES_A_US: Final = 4.2e6
"""Of the weight, as these copies bring it."""
L2_BYTES_A_US: Final = 12.3e6
LAUNCHES_US: Final = 1.83
BATCH_US: Final = 1.27
"""Of a workgroup, before its first step and after its last."""
BESIDE: Final = 0.34
"""Of that, what is left for later ones where another of the multiprocessor works meanwhile."""
IN_TURN: Final = 0.79
"""Of the last batch, where not all places of a multiprocessor are filled: what then is not waited for."""
SUM_BYTES_A_CLOCK: Final = 9.8
"""Of sums, through shared memory and out."""
SPLIT_US: Final = 1.71
"""For a cluster's barriers."""
IN_CLUSTERS: Final = 0.895
"""Of the multiprocessors: those that clusters of three or more found places on at once."""
PART: Final = 64
"""Columns of a product."""
ALONE: Final = 2000.0, 21.0
"""Clocks of a warpgroup's step, and of each part of it, where it has the multiprocessor for itself."""
TOGETHER: Final = 299.0, 488.0
"""The same of each of many."""
AHEAD: Final = 0.929
"""Of that, where the next chunk is decoded meanwhile."""
MAX_USEFUL_STAGES: Final = 6
_REGISTERS: Final = 1 << 16


def candidates(p: Problem) -> Sequence[Fp8Config]:
    """Return legal configurations, the one that should be fastest first; the problem is one that the kernel takes."""
    return sorted(_legal(p), key=lambda c: estimate_us(p, c))


def _legal(p: Problem) -> Iterator[Fp8Config]:
    most = steps(p)
    for columns, groups_n, groups_k, resident in itertools.product(COLUMNS, (1, 2, 3, 4), (1, 2, 4), (1, 2)):
        groups = groups_n * groups_k
        if (columns >= p.m + COLUMNS[0] and columns > COLUMNS[0]) or groups > MAX_GROUPS or groups_k > most:
            continue
        ahead = groups * resident < 3 and (columns == COLUMNS[0] or groups_k == 1)
        for splits, depth in itertools.product((1, 2, 3, 4, 5, 6, 8), (3, 4)):
            bare = Fp8Config(columns, groups_n, groups_k, 0, depth, splits, resident, ahead)
            config = _with_stages(bare)
            if splits * groups_k <= most and config_refusal(p, config) is None:
                yield config


def _with_stages(c: Fp8Config) -> Fp8Config:
    """Return a configuration with as many stages as shared memory holds, up to what is useful."""
    room = (SHARED_BYTES + 1024) // c.resident - 1024
    stages = (n for n in range(MAX_USEFUL_STAGES, 0, -1) if shared_bytes(replace(c, stages=n)) <= room)
    return replace(c, stages=next(stages, 0))


def estimate_us(p: Problem, c: Fp8Config) -> float:
    """Return about how long the device takes."""
    units = max(1, int(p.machine.cu_count * (IN_CLUSTERS if c.splits > 2 else 1.0)))
    room = min(_REGISTERS // (c.threads * registers_needed(c)), (SHARED_BYTES + 1024) // (shared_bytes(c) + 1024))
    of_unit = -(-grid(p, c)[0] // units)
    together = min(of_unit, max(1, room))
    batches = -(-of_unit // together)
    parts = c.columns // PART
    alone, of_all = ALONE[0] + ALONE[1] * parts, c.groups * together * (TOGETHER[0] + TOGETHER[1] * parts)
    of_all *= AHEAD if c.ahead else 1.0
    clocks = norm((alone, of_all), 5.5)
    of_group = -(-steps(p) // (c.splits * c.groups_k))
    sums = together * 4 * c.groups_k * c.columns * c.rows / SUM_BYTES_A_CLOCK
    weight = p.n * p.k * 17 / 32
    passed = tiles_m(p, c) * (p.n / c.rows * c.columns * p.k * 1.06 + weight)
    ends = BATCH_US * (1 + (batches - 1) * (1.0 if together == 1 else BESIDE))
    filled = batches if together == 1 else batches - IN_TURN * (batches - max(1.0, of_unit / together))
    issue = filled * (of_group * clocks + sums) / CLOCKS_A_US + ends
    bounds = issue, weight / MEMORY_BYTES_A_US, passed / L2_BYTES_A_US
    return LAUNCHES_US + SPLIT_US * (c.splits > 1) + norm(bounds, 2.69)
