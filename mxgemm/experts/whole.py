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
"""Tokens, scales, w13, scales, b13, inner activations, scales, w2, scales, b2, pairs' results, tile list, places; the
router's weights, the result, or 0."""
_HALF: Final = "q" * 8 + "i" * 12
CONSTANTS: Final = Layout(2 * _HALF + "qq" + "fff" + "i" * 11)
"""The rest of the kernel's ``LayerArguments``."""

BEGIN_SOURCE: Final = "grouped_begin.cu"
BEGIN_KERNEL: Final = "grouped_begin"
BEGIN_POINTERS: Final = Layout("P" * 7)
"""Places, tiles, ids, map or 0; tokens, bytes, scales, or 0."""
BEGIN_CONSTANTS: Final = Layout("q" + "iiii" + "qq" + "i" * 6)

ALONG_N: Final = 4
"""Warps along N, of a tile of 16 weight rows each: a unit has 64."""
STORING: Final = 4
"""Warps that add up and store."""
DECODING: Final = 3
"""Warps that bring rows of A."""
QUEUE: Final = 4
"""Tiles of rows that are asked for."""
SHARES: Final = 4
"""Shares of a product for each workgroup, where a new tile's rows of A come ahead; else one."""
MAX_SHARED_BYTES: Final = 227 * 1024
LEAST_SLOTS: Final = 4
MOST_SLOTS: Final = 16
MOST_OF_EIGHT: Final = 5
"""Rows of an expert in the mean up to which tiles have 8: most experts have no more."""
MOST_ROWS: Final = 16
"""And up to which a layer may be one launch."""


@dataclass(frozen=True, slots=True)
class WholeConfig:
    """How a layer's one launch divides its work.

    Attributes:
        rows: of A in a tile: 16, or a power of two up to 8.
        slots: rounds of chunks that are on their way, or wait, in shared memory.
        warps_k: warps that share K, the order of sums: see :class:`mxgemm.experts.mma.GroupedConfig`.
        resident: workgroups of a multiprocessor.
        shares: of a product for each workgroup, if it has as many units.
    """

    rows: int
    slots: int
    warps_k: int = WARPS_K
    resident: int = 1
    shares: int = SHARES

    @property
    def tiles_m(self) -> int:
        """Tiles of 8 rows of A."""
        return -(-self.rows // TILE_M)

    @property
    def buffers(self) -> int:
        """Tiles of A that there is room for."""
        return 2 if self.tiles_m == 1 else 1

    @property
    def multiplying(self) -> int:
        """Warps that multiply."""
        return ALONG_N * self.warps_k

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return LANES * (self.multiplying + STORING + DECODING + 1)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a round of chunks of a unit: codes and scales."""
        return self.warps_k * (ALONG_N * TILE_N * CHUNK // 2 + ALONG_N // 2 * LANES * 4)


def config_for(problems: Problems, warps_k: int = WARPS_K) -> WholeConfig | None:
    """Return the configuration of a layer: all shared memory; None where that is too little.

    A tile has 8 rows, or as many as there are tokens: an expert has most tokens once; 16 where many experts have more
    than 8. Long rows leave room for fewer.
    """
    rows = min(TILE_M, 1 << (tokens_of(problems) - 1).bit_length())
    if problems[0].rows > MOST_OF_EIGHT * problems[0].experts:
        rows = 2 * TILE_M
    while rows:
        least = WholeConfig(rows, 0, warps_k)
        each = least.stage_bytes + 16 + 32
        slots = min(MOST_SLOTS, (MAX_SHARED_BYTES - shared_bytes(problems, least)) // each)
        if slots >= LEAST_SLOTS:
            return replace(least, slots=slots, shares=SHARES if least.buffers > 1 else 1)
        rows //= 2
    return None


def tokens_of(problems: Problems) -> int:
    """Return how many tokens a layer has."""
    return problems[0].rows // problems[0].divisor


def takes(problems: Problems, routing: Routing, tokens: Tokens | None) -> bool:
    """Say whether a layer can be one launch; of tokens that are bytes already without ``tokens``."""
    one, two = problems
    listed = max(routing.pairs, routing.experts) <= mma.MAX_ROUTED
    some = one.rows <= MOST_ROWS * one.experts
    ordered = one.fragments and two.fragments and not one.zeros and not two.zeros
    floats = tokens is None or tokens.a_format != "bf16" or _is_vector(tokens)
    small = max(one.k, two.k) <= CHUNK * mma.MAX_CHUNKS * WARPS_K
    return listed and some and ordered and floats and small and config_for(problems) is not None


def _is_vector(t: Tokens) -> bool:
    return t.aligned and t.dtype == torch.bfloat16 and t.strides[1] == 1 and t.strides[0] % 8 == 0


def shared_bytes(problems: Problems, c: WholeConfig) -> int:
    """Return the shared memory of a workgroup."""
    of_sums = 2 * c.multiplying * TILE_M * c.tiles_m * (TILE_N + 4) * 4
    barriers = 16 * c.slots + 64 + 16 * QUEUE + 32 * c.tiles_m
    small = of_sums + barriers + 32 * (c.slots + 2 + QUEUE) + c.buffers * 4 * LANES * c.warps_k
    return -(-small // 128) * 128 + c.slots * c.stage_bytes + c.buffers * rows_bytes(problems, c)


def rows_bytes(problems: Problems, c: WholeConfig) -> int:
    """Return the shared memory of a tile's rows of A."""
    return max(-(-p.k // CHUNK) for p in problems) * 2 * CHUNK * c.rows


def programs(problems: Problems, c: WholeConfig) -> int:
    """Return the workgroups: as many as there is room for, but no more than units."""
    return min(max(1, problems[0].machine.cu_count) * c.resident, units(problems[0], c))


def units(p: GroupedProblem, c: WholeConfig) -> int:
    """Return how many units a product has at most."""
    groups = min(p.experts, p.rows)
    return places(p) * (groups + (p.rows - groups) // c.rows)


def places(p: GroupedProblem) -> int:
    """Return the units of a tile of rows."""
    return -(-p.n // (ALONG_N * TILE_N))


def listed_words(c: WholeConfig, r: Routing) -> int:
    """Return where counts lie behind a tile list, in words."""
    return 3 * tile_list_rows(r.pairs, r.experts, c.rows)


def masks_words(c: WholeConfig, r: Routing) -> int:
    """Return where the pairs that count lie of each token, in words: behind counts of shares taken and of each tile."""
    return 4 * tile_list_rows(r.pairs, r.experts, c.rows)


def counts(problems: Problems, c: WholeConfig, r: Routing, *, sums: bool) -> int:
    """Return how many words lie behind a tile list: counts, with sums each token's pairs and counts of its places."""
    return masks_words(c, r) - listed_words(c, r) + (r.tokens * (1 + places(problems[1])) if sums else 0)


def sizes(problems: Problems, c: WholeConfig, r: Routing, *, sums: bool) -> tuple[int, int, int, int, int]:
    """Return pairs, words of the tile list and counts, bytes of a row of inner activations, of its scales, columns."""
    one, two = problems
    row = one.strides.out[0] * one.out_dtype.itemsize
    return (
        r.pairs,
        listed_words(c, r) + counts(problems, c, r, sums=sums),
        row,
        one.columns // BLOCK if one.out_format else 0,
        two.n,
    )


def defines(problems: Problems, c: WholeConfig, r: Routing, *, sums: bool) -> dict[str, int | str]:
    """Return the macros of a class of layers; with sums, results are those of tokens."""
    one, two = problems
    shape = GroupedConfig(c.tiles_m, tiles=1, warps_n=ALONG_N, resident=c.resident, warps_k=c.warps_k, slots=c.slots)
    return {
        **mma.defines(one, shape, by_ids=False, early=False),
        "A_ROWS": c.rows,
        "A_BUFFERS": c.buffers,
        "TAIL": int(one.k % CHUNK != 0 or two.k % CHUNK != 0),
        "ROUNDS": 0,
        "A_VECTOR": 1,
        "A_TYPE": DTYPES[torch.bfloat16],
        "SUMS": int(sums),
        "TOP_K": r.top_k if sums else 1,
    }


def constants(problems: Problems, c: WholeConfig, r: Routing) -> bytes:
    """Return all arguments but the pointers."""
    one, two = problems
    act = one.activation
    assert act is not None
    gate = act.alpha, math.inf if act.limit is None else act.limit, act.offset
    workgroups = programs(problems, c)
    found = one.rows, one.experts, c.shares * workgroups, listed_words(c, r), rows_bytes(problems, c)
    types = DTYPES[r.weight_dtype], DTYPES[r.out_dtype]
    more = r.tokens, workgroups, *types, masks_words(c, r), 0
    return CONSTANTS.pack(*_half(one), *_half(two), *r.out_strides, *gate, *found, *more)


def _half(p: GroupedProblem) -> tuple[int, ...]:
    s = p.strides
    return (
        *(s.a[0], s.a_scales[0], s.w[0], s.w_scales[0], *s.bias, *s.out),
        *(p.n, p.k, 0 if p.bias_dtype is None else DTYPES[p.bias_dtype], DTYPES.get(p.out_dtype, 0)),
        *(p.a_rows, p.divisor, int(p.reads_index), int(p.writes_index)),
        *(-(-p.k // CHUNK), places(p), -(-p.n // (2 * TILE_N)) * 2, 0),
    )


def begin_defines(t: Tokens | None, c: WholeConfig) -> dict[str, int | str]:
    """Return the macros of the launch before: without tokens where there is nothing to quantise."""
    own: dict[str, int | str] = {"COLUMNS": c.rows, "EARLY": 0, "QUANTISES": int(t is not None)}
    return own if t is None else {**own, **around.quantise_defines(t)}


def begin_grid(t: Tokens | None) -> tuple[int, int, int]:
    """Return the workgroups of the launch before."""
    return 1 + (0 if t is None else -(-t.tokens * (t.hidden // 8) // around.ROUTE_THREADS)), 1, 1


def begin_constants(problems: Problems, c: WholeConfig, t: Tokens | None, r: Routing, *, sums: bool) -> bytes:
    """Return its arguments but the pointers."""
    strides, sizes = ((0, 0), (0, 0)) if t is None else (t.strides, (t.tokens, t.hidden))
    words = listed_words(c, r), counts(problems, c, r, sums=sums), masks_words(c, r), r.top_k
    pairs = r.first, r.pairs, r.experts, r.id_dtype.itemsize, r.mapped
    return BEGIN_CONSTANTS.pack(*pairs, *strides, *sizes, *words)
