"""Which configuration of w4_mma for which problem: an estimate of its time, by which candidates are ordered.

The estimate's parts are instructions that the busiest multiprocessor issues, lookups of A in its L1, what one warp
takes times how often a multiprocessor is filled with warps, memory's and L2's bandwidth, and launches. Their squares
add up. Its constants are those that order best what an H200 measured (docs/lab-notes.md), so they are not those of a
data sheet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mxgemm.cuda.operands import ARCH, CHUNK, SHARED_BYTES, chunks, fragments
from mxgemm.cuda.w4_mma import (
    GRAIN,
    LANES,
    MAX_CHUNKS,
    MAX_RESIDENT,
    MAX_WARPS,
    REGISTERS,
    TILE_M,
    TILE_N,
    TILES,
    MmaConfig,
    at_once,
    grid,
    mma_refusal,
    registers_needed,
    shared_bytes,
    tiles_m,
)
from mxgemm.device import KNOWN_MACHINES
from mxgemm.problem import Problem

CLOCKS_A_US: Final = 2320.0
MEMORY_BYTES_A_US: Final = 4.71e6
L2_BYTES_A_US: Final = 6.75e6
LAUNCH_US: Final = 2.05
"""Until a workgroup begins and after the last one has ended."""
OVERLAPPED_US: Final = 0.07
"""Of it, where the launch may begin before earlier ones have ended."""
PREFETCHED_US: Final = 0.05
"""And where the weight has been called to L2 by then."""
SECOND_LAUNCH_US: Final = 1.11
SPLIT_US: Final = 0.68
"""For a cluster's barriers."""
EXCHANGED_US: Final = 0.00145
"""For a warp's share of the results, each of which a workgroup adds and passes on."""
TOGETHER: Final = 0.185
"""What a cluster's workgroups, which wait for each other, take longer than memory does."""
MANY: Final = 16
MANY_US: Final = 0.04
"""For each warp above so many: what every warp does once, and its sums, which are added last."""
TURNS: Final = 2
"""Of a warp of bf16 activations, up to which it is as well to call for the first ones four warps at a time."""
FEW: Final = 4
IN_TURN_US: Final = 0.1
"""What that gives where warps have such a second turn."""
IN_CLUSTERS: Final = 0.895
"""Of the multiprocessors: those that clusters of three or more find places on at once."""
LATENCY_US: Final = {False: 0.071, True: 0.059}
"""Of a weight as it lies and in fragment order; loads of A behind it take :data:`BEHIND` times as long again."""
BEHIND: Final = 5.0
ROUNDING: Final = 181
"""Instructions that round a block of A in registers, and those that load one."""
LOADING_A: Final = 20
LOADING_CODES: Final = 143
"""Of codes, which are decoded."""
LOADING_ROUNDED: Final = 35
ROUNDING_SHARED: Final = 202
"""To copy a block of A to shared memory, round it there and load it."""
SHARED_BF16: Final = 60
"""The same where it keeps its values."""
LOOKUPS: Final = {False: 141, True: 32}
"""Clocks of the L1 for 8 rows of A and a chunk: as they lie, a block of a row a lane, and in the order of lanes."""
LOOKUPS_SHARED: Final = 8
DECODING: Final = {False: 620, True: 179}
"""Those that load, test and decode a tile of 16 weight rows a chunk: as it lies, in fragment order."""
MULTIPLYING: Final = 63
CLOCKS_A_PRODUCT: Final = 17.2
ADDING: Final = 178
"""Instructions for four results of a lane."""
MAX_WAVES: Final = 64
"""Warps of a multiprocessor."""
_SCHEDULERS: Final = KNOWN_MACHINES[ARCH].simds
MOST_PREFETCHED: Final = 3e7
"""Elements of a weight that is called to L2 before it is waited for: so much has room there."""
MAX_WHOLE: Final = 4
"""Chunks of A of a warp that are all kept in shared memory; of more there are :data:`FEW_SLOTS` at a time."""
FEW_SLOTS: Final = 2
MAX_ROWS_TILES: Final = 8
"""Tiles of 16 weight rows of a workgroup, or of as many workgroups as share K."""
MAX_AHEAD: Final = 8
"""And those that a warp has in flight."""
SPLITS: Final = (2, 3, 4)
"""Workgroups that may share K."""
CLUSTERED_ALONG_K: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Warps of each along K."""


def candidates(p: Problem) -> Sequence[MmaConfig]:
    """Return legal configurations, the one that should be fastest first."""
    legal = [c for c in itertools.chain(_considered(p), _in_clusters(p)) if mma_refusal(p, c) is None]
    return sorted(legal, key=lambda c: (estimate_us(p, c), c.depth, c.warps_n))


def _considered(p: Problem) -> Iterator[MmaConfig]:
    most = chunks(p)
    along_k = sorted(
        {min(w, most) for w in (1, 2, 4, 7, 8, 12, 14, 16, _most_along_k(most))} | {-(-most // MAX_CHUNKS)}
    )
    along_m = [w for w in (1, 2, 4) if w <= tiles_m(p)]
    befores = [(False, False), (True, False)] + [(True, True)] * (p.a_format == "e2m1")
    calls = _called_to_l2(p)
    for tiles, warps_n, warps_m, warps_k in itertools.product(TILES, (1, 2, 3, 4, 6), along_m, along_k):
        if not min(4, most) <= warps_n * warps_m * warps_k <= MAX_WARPS or warps_n * tiles > MAX_ROWS_TILES:
            continue
        slots = -(-most // warps_k)
        for depth in (1, 2, 4):
            if depth > max(1, slots) or depth * tiles > MAX_AHEAD:
                continue
            for a_ahead, before in itertools.product((False, True), befores):
                config = MmaConfig(tiles, warps_n, warps_k, depth, a_ahead, False, warps_m, *before, prefetch=calls)
                yield replace(config, resident=_resident(p, config))
            config = MmaConfig(tiles, warps_n, warps_k, depth, warps_m=warps_m, prefetch=calls)
            config = replace(config, a_slots=slots if slots <= MAX_WHOLE else FEW_SLOTS)
            config = replace(config, resident=_resident(p, config))
            alone = warps_n == 1 and at_once(p, replace(config, depth=TURNS))
            turn = alone and config.warps > MANY and at_once(p, config)
            yield replace(config, in_turn=turn)
            if alone and not turn and config.warps > FEW and p.a_format == "bf16":
                yield replace(config, in_turn=True)


def _most_along_k(most: int) -> int:
    """Return the most warps that share chunks with none left over, or as few as may be."""
    return -(-most // -(-most // MAX_WARPS))


def _in_clusters(p: Problem) -> Iterator[MmaConfig]:
    """Yield those whose workgroups share K, where all of them run at once."""
    for splits, tiles, warps_n in itertools.product(SPLITS, TILES, (1, 2, 3, 4, 6)):
        of_each = -(-chunks(p) // splits)
        for warps_k, depth in itertools.product(sorted({min(w, of_each) for w in CLUSTERED_ALONG_K}), (1, 2)):
            slots = -(-of_each // warps_k)
            if (
                depth > slots
                or not min(4, of_each) <= warps_n * warps_k <= MAX_WARPS
                or warps_n * tiles > MAX_ROWS_TILES
            ):
                continue
            config = MmaConfig(tiles, warps_n, warps_k, depth, prefetch=_called_to_l2(p), splits=splits)
            config = replace(config, a_slots=slots if slots <= MAX_WHOLE else FEW_SLOTS)
            config = replace(config, resident=_resident(p, config))
            if _turns(p, config) == 1:
                yield config


def _called_to_l2(p: Problem) -> bool:
    """Say whether the weight is called to L2 before it is waited for."""
    return fragments(p) and p.n * p.k <= MOST_PREFETCHED


def _turns(p: Problem, c: MmaConfig) -> int:
    """Return how often multiprocessors are filled with workgroups."""
    units = max(1, int(p.machine.cu_count * (IN_CLUSTERS if c.splits > 2 else 1.0)))
    return -(-grid(p, c)[0] // (units * max(1, c.resident)))


def _resident(p: Problem, c: MmaConfig) -> int:
    """Return how many workgroups a multiprocessor may hold with nothing spilled, no more than it gets."""
    registers = -(-registers_needed(p, c) // GRAIN) * GRAIN
    of_registers = REGISTERS // (LANES * -(-c.warps // _SCHEDULERS) * _SCHEDULERS * registers)
    most = min(of_registers, MAX_WAVES // c.warps, SHARED_BYTES // shared_bytes(p, c), MAX_RESIDENT)
    return max(0, min(most, -(-grid(p, c)[0] // max(1, p.machine.cu_count))))


def estimate_us(p: Problem, c: MmaConfig) -> float:
    """Return about how long the device takes."""
    units = max(1, p.machine.cu_count)
    rows_of_a, of_warp, workgroups = tiles_m(p) // c.warps_m, -(-chunks(p) // c.along_k), grid(p, c)[0]
    waves, ordered = -(-workgroups // units), fragments(p)
    issued = rows_of_a * _instructions_of_a(p, c) + c.tiles * (DECODING[ordered] + MULTIPLYING * rows_of_a)
    results = -(-TILE_N * c.tiles * c.warps_n * p.m // (4 * LANES * c.warps))
    clocks = ADDING * results + of_warp * max(issued, c.tiles * rows_of_a * 8 * CLOCKS_A_PRODUCT)
    resident = max(1, c.resident, _resident(p, c))
    issue_us = waves * c.warps / _SCHEDULERS * clocks / CLOCKS_A_US
    lookups = LOOKUPS_SHARED if c.a_slots or c.a_codes else LOOKUPS[c.a_before] * min(p.m, TILE_M) / TILE_M
    lookup_us = waves * c.warps * of_warp * rows_of_a * lookups / CLOCKS_A_US
    rounds = of_warp if c.a_slots else -(-of_warp // c.depth)  # A's chunks come one by one
    loads_us = rounds * LATENCY_US[ordered] * (1.0 if c.a_ahead else 1.0 + BEHIND)
    chain_us = -(-workgroups // (units * resident)) * (loads_us + clocks / CLOCKS_A_US)
    weight = p.n * p.k * 17 / 32
    memory_us = weight / MEMORY_BYTES_A_US * max(1.0, 0.75 * waves * units / workgroups)
    passed = weight + workgroups * p.m * CHUNK * chunks(p) / c.splits * (17 / 32 if c.a_codes else 2)
    launches_us = LAUNCH_US + SECOND_LAUNCH_US * c.a_before - OVERLAPPED_US * c.overlap - PREFETCHED_US * c.prefetch
    launches_us += MANY_US * max(0, c.warps - MANY) - IN_TURN_US * (c.in_turn and not at_once(p, c))
    if c.splits > 1:
        of_a_warp = TILE_N * c.tiles * c.warps_n * p.m / c.warps
        launches_us += SPLIT_US + EXCHANGED_US * of_a_warp + TOGETHER * weight / MEMORY_BYTES_A_US
    return launches_us + math.hypot(issue_us, lookup_us, chain_us, memory_us, passed / L2_BYTES_A_US)


def _instructions_of_a(p: Problem, c: MmaConfig) -> int:
    """Return those of a warp that make a chunk and a tile of A ready."""
    if c.a_slots:
        return SHARED_BF16 + (0 if p.a_format == "bf16" else (ROUNDING_SHARED - SHARED_BF16) // c.warps_n)
    if c.a_before:
        return LOADING_CODES if c.a_codes else LOADING_ROUNDED
    return LOADING_A + (0 if p.a_format == "bf16" else ROUNDING)
