"""Which configuration of w4_mma for which problem: an estimate of its time, by which candidates are ordered.

The estimate's parts are instructions that the busiest multiprocessor issues, what one warp takes times how often a
multiprocessor is filled with warps, memory's and L2's bandwidth, and launches. Their squares add up. Its constants are
those that order best what an H200 measured (docs/lab-notes.md), so they are not those of a data sheet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mxgemm.cuda.w4_mma import (
    ARCH,
    CHUNK,
    GRAIN,
    LANES,
    MAX_CHUNKS,
    MAX_RESIDENT,
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
MEMORY_BYTES_A_US: Final = 4.8e6
L2_BYTES_A_US: Final = 8.4e6
LAUNCH_US: Final = 2.5
"""Until a workgroup begins and after the last one has ended."""
OVERLAPPED_US: Final = 0.56
"""Of it, where the launch may begin before earlier ones have ended."""
SECOND_LAUNCH_US: Final = 1.32
LATENCY_US: Final = {False: 0.15, True: 0.12}
"""Of a weight as it lies and in fragment order; loads of A behind it add :data:`BEHIND`."""
BEHIND: Final = 0.25
ROUNDING: Final = 167
"""Instructions that round a block of A."""
LOADING_A: Final = 68
LOADING_CODES: Final = 122
"""Instead, of codes, which are decoded."""
DECODING: Final = {False: 292, True: 145}
"""Those that load, test and decode a tile of 16 weight rows a chunk: as it lies, in fragment order."""
MULTIPLYING: Final = 73
CLOCKS_A_PRODUCT: Final = 3.2
AROUND: Final = 208
"""Instructions around a warp's chunks."""
MAX_WAVES: Final = 64
"""Warps of a multiprocessor."""
_SCHEDULERS: Final = KNOWN_MACHINES[ARCH].simds


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
                config = MmaConfig(tiles, warps_n, warps_k, depth, a_ahead, False, warps_m, *before)
                yield replace(config, resident=_resident(p, config))


def _resident(p: Problem, c: MmaConfig) -> int:
    """Return how many workgroups a multiprocessor may hold with nothing spilled, no more than it gets."""
    registers = -(-registers_needed(p, c) // GRAIN) * GRAIN
    of_registers = REGISTERS // (LANES * -(-c.warps // _SCHEDULERS) * _SCHEDULERS * registers)
    most = min(of_registers, MAX_WAVES // c.warps, SHARED_BYTES // shared_bytes(p, c), MAX_RESIDENT)
    return max(0, min(most, -(-grid(p, c)[0] // max(1, p.machine.cu_count))))


def estimate_us(p: Problem, c: MmaConfig) -> float:
    """Return about how long the device takes."""
    units = max(1, p.machine.cu_count)
    rows_of_a, of_warp, workgroups = tiles_m(p) // c.warps_m, -(-chunks(p) // c.warps_k), grid(p, c)[0]
    rounding = 0 if p.a_format == "bf16" or c.a_before else ROUNDING
    loading = LOADING_CODES if c.a_codes else LOADING_A
    issued = rows_of_a * (rounding + loading) + c.tiles * (DECODING[fragments(p)] + MULTIPLYING * rows_of_a)
    clocks = AROUND + of_warp * max(issued, c.tiles * rows_of_a * 8 * CLOCKS_A_PRODUCT)
    resident = max(1, c.resident, _resident(p, c))
    issue_us = -(-workgroups // units) * c.warps / _SCHEDULERS * clocks / CLOCKS_A_US
    loads_us = -(-of_warp // c.depth) * LATENCY_US[fragments(p)] * (1.0 if c.a_ahead else 1.0 + BEHIND)
    chain_us = -(-workgroups // (units * resident)) * (loads_us + clocks / CLOCKS_A_US)
    weight = p.n * p.k * 17 / 32
    passed = weight + workgroups * p.m * CHUNK * chunks(p) * (17 / 32 if c.a_codes else 2)
    parts = issue_us, chain_us, weight / MEMORY_BYTES_A_US, passed / L2_BYTES_A_US
    launches_us = LAUNCH_US + SECOND_LAUNCH_US * c.a_before - OVERLAPPED_US * c.overlap
    return launches_us + math.hypot(*parts)
