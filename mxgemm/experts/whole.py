"""A layer of experts of few rows by one launch behind a small one: ``kernels/grouped_layer.cu``.

No tensors and no compiler here: which layers it takes, its sizes, macros, arguments, and those of the launch before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from mxgemm.cuda.operands import CHUNK, DTYPES
from mxgemm.experts import mma
from mxgemm.experts import mma_around as around
from mxgemm.experts.mma import LANES, TILE_M, TILE_N, WARPS_K, GroupedConfig
from mxgemm.experts.problem import GroupedProblem, Routing, Tokens, tile_list_rows
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.formats import BLOCK

Problems = tuple[GroupedProblem, GroupedProblem]

SOURCE: Final = "grouped_layer.cu"
KERNEL: Final = "grouped_layer"
POINTERS: Final = Layout("P" * 15)
"""Tokens, scales, w13, scales, b13, inner activations, scales, w2, scales, b2, pairs' results, tile list, places, ids,
map or 0."""
_HALF: Final = "q" * 8 + "i" * 15 + "I"
CONSTANTS: Final = Layout(2 * _HALF + "fff" + "i" * 7 + "q")
"""The rest of the kernel's ``LayerArguments``."""

BEGIN_SOURCE: Final = "grouped_begin.cu"
BEGIN_KERNEL: Final = "grouped_begin"
BEGIN_POINTERS: Final = Layout("P" * 7)
"""Places, tiles, ids, map or 0; tokens, bytes, scales, or 0."""
BEGIN_CONSTANTS: Final = Layout("q" + "iiii" + "qq" + "iiii")

TEAMS: Final = 2
"""Places of 64 weight rows of a unit, each of which has warps of its own."""
ALONG_N: Final = 2
"""Warps along N of a team, of a pair of tiles of 16 weight rows each."""
TILES: Final = 2
STORING: Final = 2 * TEAMS
"""Warps that add up and store."""
QUEUE: Final = 4
"""Tiles of rows that are asked for."""
SHARES: Final = (2, 0), (1, 2)
"""Shares for each workgroup, of some units and of one, which are the last: of the first product and of the second."""
MAX_SHARED_BYTES: Final = 227 * 1024
LEAST_SLOTS: Final = 2
LEAST_THREADS: Final = 64
"""Of a workgroup of the launch before."""
MOST_SLOTS: Final = 16
FINE_SHARES: Final = (2, 1), (1, 2)
"""The same up to so many tokens, whose rows are brought quickly."""
FEW_TOKENS: Final = 4
FINEST_SHARES: Final = (0, 0), (0, 0)
"""The same where one unit more is much: all are shares of one, and those of the second product two of a place each."""
FEWEST_TOKENS: Final = 2
"""Tokens up to which that is so."""
MOST_ROWS: Final = 8
"""Rows of an expert in the mean up to which a layer may be one launch."""
LEAST_UNITS: Final = 3
"""Units of both products for each multiprocessor from which on it may: with fewer some have one more than others."""


@dataclass(frozen=True, slots=True)
class WholeConfig:
    """How a layer's one launch divides its work.

    Attributes:
        rows: of A in a tile: a power of two up to 8.
        slots: rounds of chunks that are on their way, or wait, in shared memory.
        warps_k: warps that share K, the order of sums: see :class:`mxgemm.experts.mma.GroupedConfig`.
        shares: see :data:`SHARES`.
        buffers: tiles of A in shared memory.
        split: shares of one unit are two of a place each, of the first product and of the second.
        decoding: warps that bring rows of A.
        watched: lanes of a warp meet and arrive at barriers as a sanitizer wants it.
    """

    rows: int
    slots: int
    warps_k: int = WARPS_K
    shares: tuple[tuple[int, int], tuple[int, int]] = SHARES
    buffers: int = 2
    split: tuple[bool, bool] = (False, False)
    decoding: int = 3
    watched: bool = False

    @property
    def multiplying(self) -> int:
        """Warps that multiply."""
        return TEAMS * ALONG_N * self.warps_k

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return LANES * (self.multiplying + STORING + self.decoding + 1)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a round of chunks of a unit: codes and scales."""
        return self.warps_k * TEAMS * ALONG_N * (TILES * TILE_N * CHUNK // 2 + LANES * 4)


def config_for(problems: Problems, warps_k: int = WARPS_K) -> WholeConfig | None:
    """Return the configuration of a layer: all shared memory; None where that is too little.

    A tile has 8 rows, or 4 where few experts have more, or as many as there are tokens: an expert has most tokens once.
    Long rows leave room for fewer.
    """
    most = TILE_M if problems[0].rows > problems[0].experts else TILE_M // 2
    tokens = tokens_of(problems)
    rows = min(most, 1 << (tokens - 1).bit_length())
    shares = FINE_SHARES if tokens <= FEW_TOKENS else SHARES
    fewest = tokens <= FEWEST_TOKENS
    if fewest:
        shares = FINEST_SHARES
    while rows:
        found = filled(problems, WholeConfig(rows, 0, warps_k, shares, split=(False, fewest)))
        if found is not None:
            return found
        rows //= 2
    return None


def filled(problems: Problems, c: WholeConfig) -> WholeConfig | None:
    """Return a configuration with as many slots as there is room for; None where that is too little."""
    empty = replace(c, slots=0)
    slots = min(MOST_SLOTS, (MAX_SHARED_BYTES - shared_bytes(problems, empty)) // (c.stage_bytes + 16 + 32))
    return replace(c, slots=slots) if slots >= LEAST_SLOTS else None


def tokens_of(problems: Problems) -> int:
    """Return how many tokens a layer has."""
    return problems[0].rows // problems[0].divisor


def takes(problems: Problems, routing: Routing, tokens: Tokens | None, *, least_units: int = LEAST_UNITS) -> bool:
    """Say whether a layer is one launch, or, of 0 units at least, can be; without ``tokens`` they are bytes."""
    one, two = problems
    listed = max(routing.pairs, routing.experts) <= mma.MAX_ROUTED
    some = one.rows <= MOST_ROWS * one.experts
    ordered = one.fragments and two.fragments and not one.zeros and not two.zeros
    floats = tokens is None or tokens.a_format != "bf16" or _is_vector(tokens)
    small = max(one.k, two.k) <= CHUNK * mma.MAX_CHUNKS * WARPS_K
    config = config_for(problems)
    if config is None or not (listed and some and ordered and floats and small):
        return False
    return sum(most_units(p, config) for p in problems) >= least_units * one.machine.cu_count


def _is_vector(t: Tokens) -> bool:
    return t.aligned and t.dtype == torch.bfloat16 and t.strides[1] == 1 and t.strides[0] % 8 == 0


def shared_bytes(problems: Problems, c: WholeConfig) -> int:
    """Return the shared memory of a workgroup."""
    of_sums = c.multiplying * TILE_M * (TILES * TILE_N + 4) * 4
    barriers = 16 * c.slots + 64 + 16 * QUEUE
    listed = 16 * LANES if problems[0].rows <= mma.FEW_PAIRS else 0
    small = of_sums + barriers + 32 * (c.slots + 2 + QUEUE) + listed + c.buffers * 4 * LANES * c.warps_k
    return -(-small // 128) * 128 + c.slots * c.stage_bytes + c.buffers * rows_bytes(problems, c)


def rows_bytes(problems: Problems, c: WholeConfig) -> int:
    """Return the shared memory of a tile's rows of A."""
    return max(-(-p.k // CHUNK) for p in problems) * 2 * CHUNK * c.rows


def programs(problems: Problems, c: WholeConfig) -> int:
    """Return the workgroups: as many as there is room for, but no more than units."""
    return min(max(1, problems[0].machine.cu_count), most_units(problems[0], c))


def most_units(p: GroupedProblem, c: WholeConfig) -> int:
    """Return how many units a product has at most."""
    groups = min(p.experts, p.rows)
    return units(p) * (groups + (p.rows - groups) // c.rows)


def places(p: GroupedProblem) -> int:
    """Return the places of a product's weight."""
    return -(-p.n // (ALONG_N * TILES * TILE_N))


def units(p: GroupedProblem) -> int:
    """Return the units of a tile of rows."""
    return -(-places(p) // TEAMS)


def listed_words(c: WholeConfig, r: Routing) -> int:
    """Return where counts lie behind a tile list, in words."""
    return 3 * tile_list_rows(r.pairs, r.experts, c.rows)


def counts(c: WholeConfig, r: Routing) -> int:
    """Return how many counts there are: of shares taken, and of each tile."""
    return tile_list_rows(r.pairs, r.experts, c.rows)


def sizes(problems: Problems, c: WholeConfig, r: Routing) -> tuple[int, int, int, int, int]:
    """Return pairs, words of the tile list and counts, bytes of a row of inner activations, of its scales, columns."""
    one, two = problems
    row = one.strides.out[0] * one.out_dtype.itemsize
    of_scales = one.columns // BLOCK if one.out_format else 0
    return r.pairs, listed_words(c, r) + counts(c, r), row, of_scales, two.n


def defines(problems: Problems, c: WholeConfig) -> dict[str, int | str]:
    """Return the macros of a class of layers."""
    one, two = problems
    shape = GroupedConfig(1, TILES, ALONG_N, resident=1, warps_k=c.warps_k, slots=c.slots)
    return {
        **mma.defines(one, shape, by_ids=False, early=False),
        "A_ROWS": c.rows,
        "A_BUFFERS": c.buffers,
        "BRINGING": c.decoding,
        "WATCHED": int(c.watched),
        "FEW": int(one.rows <= mma.FEW_PAIRS),
        "TAIL": int(one.k % CHUNK != 0 or two.k % CHUNK != 0),
        "ROUNDS": 0,
        "A_VECTOR": 1,
        "A_TYPE": DTYPES[torch.bfloat16],
    }


def constants(problems: Problems, c: WholeConfig, r: Routing) -> bytes:
    """Return all arguments but the pointers."""
    one = problems[0]
    act = one.activation
    assert act is not None
    gate = act.alpha, math.inf if act.limit is None else act.limit, act.offset
    halves = (
        value
        for p, shares, split in zip(problems, c.shares, c.split, strict=True)
        for value in (
            *_half(p),
            *(programs(problems, c) * share for share in shares),
            int(split),
            _reciprocal(units(p)),
        )
    )
    listed = one.rows, one.experts, listed_words(c, r), rows_bytes(problems, c)
    found = *listed, r.id_dtype.itemsize, r.mapped, 0, r.first
    return CONSTANTS.pack(*halves, *gate, *found)


def _reciprocal(n: int) -> int:
    """Return 2^32 over ``n``, rounded up; of 1, which the kernel does not divide by, 0."""
    return -(-(1 << 32) // n) % (1 << 32)


def _half(p: GroupedProblem) -> tuple[int, ...]:
    s = p.strides
    return (
        *(s.a[0], s.a_scales[0], s.w[0], s.w_scales[0], *s.bias, *s.out),
        *(p.n, p.k, 0 if p.bias_dtype is None else DTYPES[p.bias_dtype], DTYPES.get(p.out_dtype, 0)),
        *(p.a_rows, p.divisor, int(p.reads_index), int(p.writes_index)),
        *(-(-p.k // CHUNK), places(p), -(-p.n // (2 * TILE_N)) * 2, units(p)),
    )


def begin_threads(r: Routing) -> int:
    """Return the threads of a workgroup of the launch before: one for each pair, and for each expert."""
    return max(LEAST_THREADS, 1 << (max(r.pairs, r.experts) - 1).bit_length())


def begin_shared_bytes(r: Routing) -> int:
    """Return its shared memory."""
    return 4 * (2 * begin_threads(r) + 2 * begin_threads(r) // LANES)


def begin_defines(t: Tokens | None, c: WholeConfig, r: Routing) -> dict[str, int | str]:
    """Return its macros: without tokens where there is nothing to quantise."""
    own: dict[str, int | str] = {
        **{"COLUMNS": c.rows, "EARLY": 0, "ROUTING": begin_threads(r)},
        "QUANTISES": int(t is not None),
    }
    return own if t is None else {**own, **around.quantise_defines(t)}


def begin_grid(t: Tokens | None, r: Routing) -> tuple[int, int, int]:
    """Return its workgroups."""
    return 1 + (0 if t is None else -(-t.tokens * (t.hidden // 8) // begin_threads(r))), 1, 1


def begin_constants(c: WholeConfig, t: Tokens | None, r: Routing) -> bytes:
    """Return its arguments but the pointers."""
    strides, of_tokens = ((0, 0), (0, 0)) if t is None else (t.strides, (t.tokens, t.hidden))
    pairs = r.first, r.pairs, r.experts, r.id_dtype.itemsize, r.mapped
    return BEGIN_CONSTANTS.pack(*pairs, *strides, *of_tokens, listed_words(c, r), counts(c, r))
