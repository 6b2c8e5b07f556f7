"""Which configuration of w4_wgmma for which problem: an estimate of its time, by which candidates are ordered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    units = max(1, p.machine.cu_count)
    workgroups = grid(p, c)[0]
    waves = -(-workgroups // units)
    of_group = -(-chunks(p) // (c.splits * c.groups_k))
    # clocks a chunk: of the tensor cores for all groups, and what a warpgroup takes by itself
    products = 4 * c.tiles * c.columns * c.groups * 1.15
    alone = 4 * c.tiles * (c.columns + 190)
    clocks = waves * of_group * max(products, alone)
    ingest = waves * (c.columns * 256 + c.rows * 68) * chunks(p) / c.splits / 32
    weight = p.n * p.k * 17 / 32 / 4.4e6
    l2 = tiles_m(p, c) * (p.n / c.rows) * c.columns * p.k * 2 / 5.5e6
    sums = waves * c.groups_k * c.columns * c.rows * 4 / 30 / 1700
    return 4.0 + max(clocks / 1700, ingest / 1700, weight, l2) + sums + (1.0 if c.splits > 1 else 0.0)
