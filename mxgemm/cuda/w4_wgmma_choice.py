"""Which configuration of w4_wgmma for which problem: an estimate of its time, by which candidates are ordered.

Its constants are those that order best what an H200 measured (docs/lab-notes.md), so they are not a data sheet's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from mxgemm.cuda.operands import CHUNK, SHARED_BYTES, chunks
from mxgemm.cuda.w4_wgmma import TILES, WgmmaConfig, config_refusal
from mxgemm.cuda.warpgroups import COLUMNS, grid, norm, tiles_m
from mxgemm.problem import Problem

CLOCKS_A_US: Final = 1700.0
MEMORY_BYTES_A_US: Final = 4.6e6
L2_BYTES_A_US: Final = 11.3e6
INTO_BYTES_A_CLOCK: Final = 49
"""Of A and of the weight, into a multiprocessor."""
SUM_BYTES_A_CLOCK: Final = 18
"""Of sums, through shared memory and out."""
LAUNCHES_US: Final = 2.0
MAX_USEFUL_STAGES: Final = 8
MAX_SPLITS_OF_MANY: Final = 4
"""Larger clusters are for few workgroups."""
PRODUCTS: Final = 1.06
"""Clocks of the tensor cores over what they take at least."""
DECODING: Final = 320
"""Clocks in which a warpgroup decodes a tile's words for two products, with others beside it."""
LATENCY: Final = 250
"""Clocks that a warpgroup waits for a chunk's weights."""
IN_CLUSTERS: Final = 0.895
"""Of the multiprocessors: those that clusters of three or more found places on at once."""
SPLIT_US: Final = 2.0
"""For a cluster's barriers."""


def candidates(p: Problem) -> Sequence[WgmmaConfig]:
    """Return legal configurations, the one that should be fastest first; the problem is one that the kernel takes."""
    return sorted(_legal(p), key=lambda c: estimate_us(p, c))


def _legal(p: Problem) -> Iterator[WgmmaConfig]:
    most = chunks(p)
    for tiles, columns, groups_n, groups_k in itertools.product(TILES, COLUMNS, (1, 2, 3, 4), (1, 2, 4)):
        if (columns >= 2 * p.m and columns > COLUMNS[0]) or not 2 <= groups_n * groups_k <= 4 or groups_k > most:
            continue
        stages = min(MAX_USEFUL_STAGES, SHARED_BYTES // (2 * CHUNK * columns + 16))
        for splits, depth in itertools.product((1, 2, 3, 4, 6, 8), (1, 2)):
            config = WgmmaConfig(tiles, columns, groups_n, groups_k, stages, depth, splits)
            if splits > MAX_SPLITS_OF_MANY and grid(p, config)[0] > p.machine.cu_count > 0:
                continue
            if splits * groups_k <= most and config_refusal(p, config) is None:
                yield config


def estimate_us(p: Problem, c: WgmmaConfig) -> float:
    """Return about how long the device takes."""
    slots = max(1, int(p.machine.cu_count * (IN_CLUSTERS if c.splits > 2 else 1.0)))
    waves = -(-grid(p, c)[0] // slots)
    of_group = -(-chunks(p) // (c.splits * c.groups_k))
    products = 4 * c.tiles * c.columns * c.groups * PRODUCTS
    alone = 4 * c.tiles * (c.columns / 10 + DECODING) + LATENCY / c.depth
    issue_us = waves * of_group * norm((products, alone), 3.9) / CLOCKS_A_US
    into_us = waves * (256 * c.columns + 68 * c.rows) * chunks(p) / c.splits / INTO_BYTES_A_CLOCK / CLOCKS_A_US
    weight = p.n * p.k * 17 / 32
    passed = tiles_m(p, c) * (p.n / c.rows * c.columns * p.k * 2 + weight)
    sums_us = waves * 4 * c.groups_k * c.columns * c.rows / SUM_BYTES_A_CLOCK / CLOCKS_A_US
    parts = issue_us, into_us, weight / MEMORY_BYTES_A_US, passed / L2_BYTES_A_US
    return LAUNCHES_US + SPLIT_US * (c.splits > 1) + norm(parts, 3.2) + sums_us
