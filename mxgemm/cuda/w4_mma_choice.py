"""Which configuration of w4_mma for which problem: an estimate of its time, by which candidates are ordered.

The estimate has the parts that measurements on an H200 told apart (bench/w4_mma.py): instructions of the busiest
multiprocessor, the chain of loads of one warp, memory's and L2's bandwidth, and launches. Their squares add up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from mxgemm.cuda.w4_mma import (
    ARCH,
    CHUNK,
    LANES,
    MAX_CHUNKS,
    MAX_WARPS,
    REGISTERS,
    SHARED_BYTES,
    TILES,
    MmaConfig,
    chunks,
    fragments,
    grid,
    mma_refusal,
    registers_needed,
    shared_bytes,
    tiles_m,
)
from mxgemm.device import KNOWN_MACHINES
from mxgemm.problem import Problem

CLOCKS_A_US: Final = 1750.0
MEMORY_BYTES_A_US: Final = 4.3e6
L2_BYTES_A_US: Final = 5.5e6
LAUNCH_US: Final = 1.6
"""Until a workgroup begins and after the last one has ended."""
SECOND_LAUNCH_US: Final = 1.2
LATENCY_US: Final = 0.45
"""Of a load from memory; loads of A behind it add :data:`BEHIND`."""
BEHIND: Final = 0.6
ROUNDING: Final = 130
"""Instructions that round a block of A."""
LOADING_A: Final = 24
LOADING_CODES: Final = 75
"""Instead, of codes, which are decoded."""
DECODING: Final = {False: 170, True: 140}
"""Those that load, test and decode a tile of 16 weight rows a chunk: as it lies, in fragment order."""
MULTIPLYING: Final = 10
CLOCKS_A_PRODUCT: Final = 4.5
AROUND: Final = 400
"""Instructions around a warp's chunks."""
MAX_WAVES: Final = 64
"""Warps of a multiprocessor."""


def candidates(p: Problem) -> Sequence[MmaConfig]:
    """Return legal configurations, the one that should be fastest first."""
    legal = [c for c in _considered(p) if mma_refusal(p, c) is None]
    return sorted(legal, key=lambda c: (estimate_us(p, c), c.depth, c.warps_n))


def _considered(p: Problem) -> Iterator[MmaConfig]:
    most = chunks(p)
    along_k = sorted({min(w, most) for w in (1, 2, 4, 7, 8, 12, 14, 16)} | {-(-most // MAX_CHUNKS)})
    along_m = [w for w in (1, 2, 4) if w <= tiles_m(p)]
    befores = [(False, False), (True, False)] + [(True, True)] * (p.a_format == "e2m1")
    for tiles, warps_n, warps_m, warps_k in itertools.product(TILES, (1, 2, 4), along_m, along_k):
        if not min(4, most) <= warps_n * warps_m * warps_k <= MAX_WARPS:
            continue
        for depth, a_ahead, before in itertools.product((1, 2, 4), (False, True), befores):
            if depth <= max(1, -(-most // warps_k)):
                yield MmaConfig(tiles, warps_n, warps_k, depth, a_ahead, False, warps_m, *before)


def estimate_us(p: Problem, c: MmaConfig) -> float:
    """Return about how long the device takes."""
    units = max(1, p.machine.cu_count)
    rows_of_a, of_warp, workgroups = tiles_m(p) // c.warps_m, -(-chunks(p) // c.warps_k), grid(p, c)[0]
    rounding = 0 if p.a_format == "bf16" or c.a_before else ROUNDING
    loading = LOADING_CODES if c.a_codes else LOADING_A
    issued = rows_of_a * (rounding + loading) + c.tiles * (DECODING[fragments(p)] + MULTIPLYING * rows_of_a)
    chunk = max(issued, c.tiles * rows_of_a * 8 * CLOCKS_A_PRODUCT)
    clocks = AROUND + of_warp * chunk
    registers = LANES * c.warps * registers_needed(p, c)
    resident = max(1, min(REGISTERS // registers, MAX_WAVES // c.warps, SHARED_BYTES // shared_bytes(p, c)))
    on_one = -(-workgroups // units)
    schedulers = KNOWN_MACHINES[ARCH].simds
    issue_us = on_one * c.warps / schedulers * clocks / CLOCKS_A_US
    crowd = max(1.0, c.warps * min(resident, on_one) / schedulers)
    loads_us = -(-of_warp // c.depth) * LATENCY_US * (1.0 if c.a_ahead else 1.0 + BEHIND)
    chain_us = -(-workgroups // (units * resident)) * (loads_us + clocks / CLOCKS_A_US * math.sqrt(crowd))
    weight = p.n * p.k * 17 / 32
    passed = weight + workgroups * p.m * CHUNK * chunks(p) * (17 / 32 if c.a_codes else 2)
    parts = issue_us, chain_us, weight / MEMORY_BYTES_A_US, passed / L2_BYTES_A_US
    return LAUNCH_US + (SECOND_LAUNCH_US if c.a_before else 0.0) + math.hypot(*parts)
