"""Which configuration of w4_mma for which problem: an estimate of its time, by which candidates are ordered.

The estimate's parts are instructions that the busiest multiprocessor issues, lookups of A in its L1, what one warp
takes times how often a multiprocessor is filled with warps, memory's and L2's bandwidth, and launches. Their squares
add up. Its constants are those that order best what an H200 measured (docs/lab-notes.md), so they are not those of a
data sheet.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

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
    config_refusal,
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


class Group(NamedTuple):
    """Configurations that divide the work alike and have A the same way; they differ in what is in flight.

    Attributes:
        like: one that stands for all, so far as :func:`_work` asks.
        members: all of them, legal or not.
    """

    like: MmaConfig
    members: Callable[[], Iterator[MmaConfig]]


def candidates(p: Problem) -> Sequence[MmaConfig]:
    """Return legal configurations, the one that should be fastest first."""
    return list(ranked(p))


def ranked(p: Problem) -> Iterator[MmaConfig]:
    """Yield what :func:`candidates` returns, and look at no more of them than that takes.

    A group's least time is known before its members are: it is opened when no other thing can be faster.
    """
    if mma_refusal(p) is not None:
        return
    groups = enumerate(itertools.chain(_considered(p), _in_clusters(p)))
    waiting: list[tuple[float, tuple[int, ...], Group | MmaConfig]]
    waiting = [(_least_us(p, group.like), (0, number), group) for number, group in groups]
    heapq.heapify(waiting)
    while waiting:
        first = heapq.heappop(waiting)[-1]
        if isinstance(first, MmaConfig):
            yield first
            continue
        work = _work(p, first.like)
        for c in first.members():
            if config_refusal(p, c) is None:
                heapq.heappush(waiting, (_us(p, c, work), _among_equals(c), c))


def _among_equals(c: MmaConfig) -> tuple[int, ...]:
    """Return what orders configurations of the same time, behind all groups: few chunks in flight first."""
    return (
        *(c.depth, c.warps_n, c.splits, c.tiles, c.warps_m, c.warps_k),
        *(c.a_ahead, c.a_slots, c.a_before, c.a_codes, c.in_turn),
    )


def _considered(p: Problem) -> Iterator[Group]:
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
        division = partial(MmaConfig, tiles, warps_n, warps_k, 1, warps_m=warps_m, prefetch=calls)
        slots = -(-most // warps_k)
        depths = [depth for depth in (1, 2, 4) if depth <= max(1, slots) and depth * tiles <= MAX_AHEAD]
        for before, codes in befores:
            like = division(a_before=before, a_codes=codes)
            yield Group(like, partial(_without_slots, p, like, depths))
        like = division(a_slots=_slots(slots))
        yield Group(like, partial(_with_slots, p, like, depths))


def _without_slots(p: Problem, like: MmaConfig, depths: Sequence[int]) -> Iterator[MmaConfig]:
    for depth, a_ahead in itertools.product(depths, (False, True)):
        config = replace(like, depth=depth, a_ahead=a_ahead)
        yield replace(config, resident=_resident(p, config))


def _with_slots(p: Problem, like: MmaConfig, depths: Sequence[int]) -> Iterator[MmaConfig]:
    for depth in depths:
        config = replace(like, depth=depth)
        config = replace(config, resident=_resident(p, config))
        alone = config.warps_n == 1 and at_once(p, replace(config, depth=TURNS))
        turn = alone and config.warps > MANY and at_once(p, config)
        yield replace(config, in_turn=turn)
        if alone and not turn and config.warps > FEW and p.a_format == "bf16":
            yield replace(config, in_turn=True)


def _slots(needed: int) -> int:
    """Return how many of a warp's chunks of A are in shared memory at once."""
    return needed if needed <= MAX_WHOLE else FEW_SLOTS


def _most_along_k(most: int) -> int:
    """Return the most warps that share chunks with none left over, or as few as may be."""
    return -(-most // -(-most // MAX_WARPS))


def _in_clusters(p: Problem) -> Iterator[Group]:
    """Yield those whose workgroups share K, where all of them run at once."""
    for splits, tiles, warps_n in itertools.product(SPLITS, TILES, (1, 2, 3, 4, 6)):
        of_each = -(-chunks(p) // splits)
        for warps_k in sorted({min(w, of_each) for w in CLUSTERED_ALONG_K}):
            if not min(4, of_each) <= warps_n * warps_k <= MAX_WARPS or warps_n * tiles > MAX_ROWS_TILES:
                continue
            slots = -(-of_each // warps_k)
            like = MmaConfig(
                tiles, warps_n, warps_k, 1, a_slots=_slots(slots), prefetch=_called_to_l2(p), splits=splits
            )
            yield Group(like, partial(_clustered, p, like, [depth for depth in (1, 2) if depth <= slots]))


def _clustered(p: Problem, like: MmaConfig, depths: Sequence[int]) -> Iterator[MmaConfig]:
    for depth in depths:
        config = replace(like, depth=depth)
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
    return _us(p, c, _work(p, c))


class Work(NamedTuple):
    """What the division of the work and the way of A decide, whatever is in flight.

    Attributes:
        clocks: a warp's, were it alone.
        sizes_us: of what is issued, looked up, and read from memory and from L2.
        launches_us: what comes before and behind.
    """

    clocks: float
    sizes_us: tuple[float, float, float, float]
    launches_us: float


def _work(p: Problem, c: MmaConfig) -> Work:
    units = max(1, p.machine.cu_count)
    rows_of_a, of_warp, workgroups = tiles_m(p) // c.warps_m, -(-chunks(p) // c.along_k), grid(p, c)[0]
    waves, ordered = -(-workgroups // units), fragments(p)
    issued = rows_of_a * _instructions_of_a(p, c) + c.tiles * (DECODING[ordered] + MULTIPLYING * rows_of_a)
    results = -(-TILE_N * c.tiles * c.warps_n * p.m // (4 * LANES * c.warps))
    clocks = ADDING * results + of_warp * max(issued, c.tiles * rows_of_a * 8 * CLOCKS_A_PRODUCT)
    issue_us = waves * c.warps / _SCHEDULERS * clocks / CLOCKS_A_US
    lookups = LOOKUPS_SHARED if c.a_slots or c.a_codes else LOOKUPS[c.a_before] * min(p.m, TILE_M) / TILE_M
    lookup_us = waves * c.warps * of_warp * rows_of_a * lookups / CLOCKS_A_US
    weight = p.n * p.k * 17 / 32
    memory_us = weight / MEMORY_BYTES_A_US * max(1.0, 0.75 * waves * units / workgroups)
    passed = weight + workgroups * p.m * CHUNK * chunks(p) / c.splits * (17 / 32 if c.a_codes else 2)
    launches_us = LAUNCH_US + SECOND_LAUNCH_US * c.a_before - OVERLAPPED_US * c.overlap - PREFETCHED_US * c.prefetch
    launches_us += MANY_US * max(0, c.warps - MANY)
    if c.splits > 1:
        of_a_warp = TILE_N * c.tiles * c.warps_n * p.m / c.warps
        launches_us += SPLIT_US + EXCHANGED_US * of_a_warp + TOGETHER * weight / MEMORY_BYTES_A_US
    return Work(clocks, (issue_us, lookup_us, memory_us, passed / L2_BYTES_A_US), launches_us)


def _us(p: Problem, c: MmaConfig, work: Work) -> float:
    of_warp = -(-chunks(p) // c.along_k)
    rounds = of_warp if c.a_slots else -(-of_warp // c.depth)  # A's chunks come one by one
    loads_us = rounds * LATENCY_US[fragments(p)] * (1.0 if c.a_ahead else 1.0 + BEHIND)
    in_turn_us = IN_TURN_US * (c.in_turn and not at_once(p, c))
    return _in_all(p, c, work, max(1, c.resident, _resident(p, c)), loads_us) - in_turn_us


def _least_us(p: Problem, like: MmaConfig) -> float:
    """Return no more than :func:`estimate_us` of any configuration of a group."""
    resident = min(MAX_RESIDENT, MAX_WAVES // like.warps)
    return _in_all(p, like, _work(p, like), resident, LATENCY_US[fragments(p)]) - IN_TURN_US


def _in_all(p: Problem, c: MmaConfig, work: Work, resident: int, loads_us: float) -> float:
    turns = -(-grid(p, c)[0] // (max(1, p.machine.cu_count) * resident))
    return work.launches_us + math.hypot(turns * (loads_us + work.clocks / CLOCKS_A_US), *work.sizes_us)


def _instructions_of_a(p: Problem, c: MmaConfig) -> int:
    """Return those of a warp that make a chunk and a tile of A ready."""
    if c.a_slots:
        return SHARED_BF16 + (0 if p.a_format == "bf16" else (ROUNDING_SHARED - SHARED_BF16) // c.warps_n)
    if c.a_before:
        return LOADING_CODES if c.a_codes else LOADING_ROUNDED
    return LOADING_A + (0 if p.a_format == "bf16" else ROUNDING)
