"""Which configuration of w4_wgmma for which problem: an estimate of its time, by which candidates are ordered.

Its constants are those that order best what an H200 measured (docs/lab-notes.md), so they are not those of a data sheet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mxgemm.cuda.w4_mma import chunks
from mxgemm.cuda.w4_wgmma import (
    COLUMNS,
    TILES,
    WgmmaConfig,
    grid,
    tiles_m,
    wgmma_refusal,
)
from mxgemm.problem import Problem

CLOCKS_A_US: Final = 1700.0
MEMORY_BYTES_A_US: Final = 4.6e6
L2_BYTES_A_US: Final = 20e6
INTO_BYTES_A_CLOCK: Final = 200
"""Of A and of the weight, into a multiprocessor."""
SUM_BYTES_A_CLOCK: Final = 6.7
"""Of sums, through shared memory and out."""
PRODUCTS: Final = 1.06
"""Clocks of the tensor cores over what they take at least."""
DECODING: Final = 202
"""Clocks in which a warpgroup decodes a tile's words for two products, with another one beside it."""
LATENCY: Final = 930
"""Clocks that a warpgroup waits for a chunk's weights."""
SPLIT_US: Final = 2.0
"""For a cluster's barriers."""


def candidates(p: Problem) -> Sequence[WgmmaConfig]:
    """Return legal configurations, the one that should be fastest first."""
    legal = [c for c in _considered(p) if wgmma_refusal(p, c) is None]
    return sorted(legal, key=lambda c: estimate_us(p, c))


def _considered(p: Problem) -> Iterator[WgmmaConfig]:
    most = chunks(p)
    for tiles, columns, groups_n, groups_k in itertools.product(TILES, COLUMNS, (1, 2, 3, 4), (1, 2, 4)):
        if (columns >= 2 * p.m and columns > COLUMNS[0]) or not 2 <= groups_n * groups_k <= 4 or groups_k > most:
            continue
        for splits, depth in itertools.product((1, 2, 3, 4, 6, 8), (1, 2)):
            if splits * groups_k > most:
                continue
            config = WgmmaConfig(tiles, columns, groups_n, groups_k, groups_k + 1, depth, splits)
            stages = next((s for s in (8, 6, 5, 4, 3, 2) if wgmma_refusal(p, replace(config, stages=s)) is None), None)
            if stages is not None:
                yield replace(config, stages=stages)


def estimate_us(p: Problem, c: WgmmaConfig) -> float:
    """Return about how long the device takes."""
    waves = -(-grid(p, c)[0] // max(1, p.machine.cu_count))
    of_group = -(-chunks(p) // (c.splits * c.groups_k))
    products = 4 * c.tiles * c.columns * c.groups * PRODUCTS
    alone = 4 * c.tiles * (c.columns / 10 + DECODING) + LATENCY / c.depth
    issue_us = waves * of_group * (products**6 + alone**6) ** (1 / 6) / CLOCKS_A_US
    into_us = waves * (256 * c.columns + 68 * c.rows) * chunks(p) / c.splits / INTO_BYTES_A_CLOCK / CLOCKS_A_US
    weight = p.n * p.k * 17 / 32
    passed = tiles_m(p, c) * (p.n / c.rows * c.columns * p.k * 2 + weight)
    sums_us = waves * 4 * c.groups_k * c.columns * c.rows / SUM_BYTES_A_CLOCK / CLOCKS_A_US
    parts = issue_us, into_us, weight / MEMORY_BYTES_A_US, passed / L2_BYTES_A_US
    return SPLIT_US * (c.splits > 1) + sum(part**1.7 for part in parts) ** (1 / 1.7) + sums_us
