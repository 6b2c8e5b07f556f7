"""The grouped MXFP4 product of ``kernels/grouped_mma.cu``: its configuration, what is legal and why, macros, arguments.

No tensors and no compiler here. A row's sums have one order whatever else is in a call: K is divided over
:data:`WARPS_K` warps for every problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from mxgemm.cuda.operands import CHUNK, DTYPES, FORMATS
from mxgemm.errors import Refusal
from mxgemm.experts.mma_around import routing_constants
from mxgemm.experts.problem import GroupedProblem, Routing
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.formats import FORMATS as ELEMENT_FORMATS
from mxgemm.mx.formats import scale_addend

SOURCE: Final = "grouped_mma.cu"
KERNEL: Final = "grouped_mma"
STREAM_SOURCE: Final = "grouped_stream.cu"
STREAM_KERNEL: Final = "grouped_stream"
"""For configurations with slots."""

POINTERS: Final = Layout("P" * 9)
"""a, its scales, weight, scales, bias, out, its scales, tile list or ids, index or map; 0 for what there is not."""
CONSTANTS: Final = Layout("q" + "i" * 10 + "q" * 11 + "i" * 4 + "fff" + "i" * 3)
"""The rest of the kernel's ``Arguments``."""

LANES: Final = 32
TILE_M: Final = 8
TILE_N: Final = 16
GATED_ROWS: Final = 64
"""Weight rows of a workgroup where they are gate and up: of a block of 32 results."""
WARPS_K: Final = 4
MAX_CHUNKS: Final = 32
"""Of a warp: a bit each says whether it is left to the kernel's second loop."""
MAX_K: Final = CHUNK * MAX_CHUNKS * WARPS_K
MAX_EXPERTS: Final = 1024
MAX_GRID: Final = (1 << 31) - 1
SLOTS: Final = 2
MAX_SHARED_BYTES: Final = 227 * 1024 // 2 - 1024
"""Of a workgroup of the kernel with slots, of which a multiprocessor holds two."""
FEW_PAIRS: Final = LANES
"""Pairs of a token and an expert that every warp sorts by itself: one a lane."""
MOST_A_TILE: Final = 3
"""Rows of an expert in the mean up to which tiles of 8 rows are enough: most experts have no more."""
MOST_STREAMED: Final = 8
"""And up to which the kernel with slots was faster than tiles of 16 rows: it reads few experts twice."""
MAX_ROUTED: Final = 512
"""Pairs, and experts, that ``kernels/grouped_route.cu`` sorts: one a thread."""


@dataclass(frozen=True, slots=True)
class GroupedConfig:
    """How a workgroup divides its work.

    Attributes:
        tiles_m: tiles of 8 rows of a group.
        tiles: tiles of 16 weight rows of a warp.
        warps_n: warps along N.
        depth: chunks of the weight that a warp has in flight.
        resident: workgroups that a multiprocessor holds: its registers must do for them.
        warps_k: warps that share K. The order of sums: one number for all calls whose bits are to agree.
        ahead: the next tile is begun before the last one's sums are stored.
        slots: chunks of a prepared weight that a warp has on their way through shared memory, by
            ``kernels/grouped_stream.cu``; 0 for ``depth`` of them in registers, by ``kernels/grouped_mma.cu``.
    """

    tiles_m: int = 1
    tiles: int = 4
    warps_n: int = 1
    depth: int = 1
    resident: int = 3
    warps_k: int = WARPS_K
    ahead: bool = True
    slots: int = 0

    @property
    def rows(self) -> int:
        """Rows of a group in a tile."""
        return TILE_M * self.tiles_m

    @property
    def columns(self) -> int:
        """Weight rows of a workgroup."""
        return TILE_N * self.tiles * self.warps_n

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return LANES * self.warps_n * self.warps_k


def grouped_refusal(p: GroupedProblem) -> Refusal | None:
    """Say why the kernel cannot take ``p``, or None if it can. The machine is not asked about."""
    if p.k > MAX_K:
        return Refusal("k", p.k, f"at most {MAX_K}: {WARPS_K} warps of {MAX_CHUNKS} chunks of {CHUNK}")
    if p.experts > MAX_EXPERTS:
        return Refusal("experts", p.experts, f"at most {MAX_EXPERTS}")
    return operand_refusal(p)


def operand_refusal(p: GroupedProblem) -> Refusal | None:
    """Say what is wrong with a problem's operands for every kernel here, or None."""
    return next(_clauses(p), None)


def _clauses(p: GroupedProblem) -> Iterator[Refusal]:
    if p.a_format not in FORMATS:
        yield Refusal("a_format", p.a_format, '"e2m1", "e4m3" or "bf16"')
    if p.b_format != "e2m1":
        yield Refusal("w.format", p.b_format, "e2m1")
    if not p.a_rows:
        yield Refusal("a", "no rows", "at least one")
    if not p.aligned:
        yield Refusal("a, w", "not aligned", "operands that begin at multiples of 16 bytes")
    s = p.strides
    if not p.fragments and (s.w[2] != 1 or s.w[1] % 16 or s.w[0] % 16):
        yield Refusal("w", f"strides {s.w}", "contiguous rows that begin at multiples of 16 bytes")
    if s.w_scales[2] != 1:
        yield Refusal("w.scales", f"strides {s.w_scales}", "contiguous rows")
    if p.a is not None and (s.a[1] != 1 or s.a[0] % 16 or s.a_scales[1] != 1):
        yield Refusal("a", f"strides {s.a} and {s.a_scales}", "contiguous rows that begin at multiples of 16 bytes")
    if p.activation is not None and p.n % GATED_ROWS:
        yield Refusal("n", p.n, f"a multiple of {GATED_ROWS} where rows are gate and up")
    if p.out_format not in ("", p.a_format):
        yield Refusal("out_format", p.out_format, p.a_format)


def config_for(p: GroupedProblem) -> GroupedConfig:
    """Return the configuration of a problem: what was fastest on an H200 (docs/lab-notes.md)."""
    stream = GroupedConfig(1, tiles=1, warps_n=4, resident=2, slots=SLOTS)
    some = MOST_A_TILE * p.experts < p.rows <= MOST_STREAMED * p.experts
    return stream if some and takes_slots(p, stream) else registers_for(p)


def registers_for(p: GroupedProblem) -> GroupedConfig:
    """Return it of the kernel that takes all problems: as many rows a tile as an expert is likely to have."""
    if p.rows > MOST_A_TILE * p.experts and p.rows > TILE_M:
        return GroupedConfig(2, resident=3 if p.a_format == "e2m1" else 2)
    few = p.rows <= FEW_PAIRS
    tiles = -(-p.n // GATED_ROWS) * min(p.rows, p.experts)
    if few and p.fragments and not p.zeros and p.activation is None and tiles <= 2 * p.machine.cu_count:
        return GroupedConfig(1, tiles=2, depth=3, resident=3)  # so few tiles that more and smaller ones are faster
    return GroupedConfig(1, resident=4 if p.fragments and not few else 3, ahead=few or not p.fragments)


def takes_slots(p: GroupedProblem, c: GroupedConfig) -> bool:
    """Say whether chunks can pass through shared memory: a warp has as many of each tile, and all tiles are wanted."""
    chunks = -(-p.k // CHUNK)
    return p.fragments and not p.zeros and chunks // WARPS_K >= c.slots and shared_bytes(p, c) <= MAX_SHARED_BYTES


def most_tiles(p: GroupedProblem, c: GroupedConfig) -> int:
    """Return how many tiles of rows the groups have at most: a part of a tile for each."""
    groups = min(p.experts + (2 if p.zeros else 0), p.rows)
    return groups + (p.rows - groups) // c.rows


def programs(p: GroupedProblem, c: GroupedConfig, by_ids: bool) -> int:
    """Return the workgroups: of few pairs one for each tile there may be, else as many as there is room for."""
    most = -(-p.n // c.columns) * most_tiles(p, c)
    return most if by_ids and not c.slots else min(most, max(1, p.machine.cu_count) * c.resident)


def grid(p: GroupedProblem, c: GroupedConfig, by_ids: bool) -> tuple[int, int, int]:
    """Return the workgroups."""
    return programs(p, c, by_ids), 1, 1


def kernel(c: GroupedConfig) -> tuple[str, str]:
    """Return the source and the name of a configuration's kernel."""
    return (STREAM_SOURCE, STREAM_KERNEL) if c.slots else (SOURCE, KERNEL)


def block(c: GroupedConfig) -> tuple[int, int, int]:
    """Return the threads of a workgroup."""
    return c.threads, 1, 1


def shared_bytes(p: GroupedProblem, c: GroupedConfig) -> int:
    """Return the shared memory of a workgroup: of each warp its sums, and with slots its chunks to come, and A."""
    warps = c.warps_n * c.warps_k
    of_sums = 4 * warps * c.rows * (TILE_N * c.tiles + 4)
    if not c.slots:
        return of_sums
    slot = TILE_N * c.tiles * CHUNK // 2 + -(-c.tiles // 2) * LANES * 4
    return (
        2 * of_sums + warps * c.slots * slot + -(-p.k // CHUNK) * 2 * CHUNK * a_rows(p) + 16 + 4 * MAX_CHUNKS * WARPS_K
    )


def a_rows(p: GroupedProblem) -> int:
    """Return the rows of A of a tile that there is room for: a power of two."""
    return min(TILE_M, 1 << (p.rows - 1).bit_length())


def defines(p: GroupedProblem, c: GroupedConfig, *, by_ids: bool, early: bool) -> dict[str, int | str]:
    """Return the macros of a class of problems and a configuration.

    Args:
        p: the product; of floats beside a format of A, the kernel rounds them.
        c: how.
        by_ids: groups are those of pairs, found by their ids.
        early: what groups are found by was written before the launch before this one began.
    """
    s, quantised = p.strides, ELEMENT_FORMATS.get(p.out_format)
    vector = p.a_dtype == torch.uint8 or (s.a[1] == 1 and s.a[0] * p.a_dtype.itemsize % 16 == 0)
    gated = 0 if p.activation is None else 1 if p.activation.interleaved else 2
    return {
        "A_TYPE": DTYPES.get(p.a_dtype, 0),
        "ROUNDS": int(p.a is not None and p.a_dtype != torch.uint8),
        "A_FORMAT": FORMATS[p.a_format],
        "A_VECTOR": int(vector),
        "SCALE_ADDEND": 0 if p.a is None else scale_addend(p.a, p.scale_rounding),
        "MT": c.tiles_m,
        "TILES": c.tiles,
        "WARPS_N": c.warps_n,
        "WARPS_K": c.warps_k,
        "DEPTH": c.depth,
        "SLOTS": c.slots,
        "A_ROWS": a_rows(p) if c.slots else 0,
        "FRAGMENTS": int(p.fragments),
        "TAIL": int(p.k % CHUNK != 0),
        "GATED": gated,
        "QUANTISES": int(quantised is not None),
        "BY_IDS": int(by_ids),
        "EARLY": int(early),
        "AHEAD": int(c.ahead),
        "RESIDENT": c.resident,
        **_UNUSED,
    }


_UNUSED: Final = {"A_BEFORE": 0, "A_CODES": 0, "A_SLOTS": 0, "WARPS_M": 1, "W_VECTOR": 1}
"""Of the headers that this kernel shares with w4_mma.cu, as it has them always."""


def constants(p: GroupedProblem, c: GroupedConfig, routing: Routing | None) -> bytes:
    """Return all arguments but the pointers; with a routing, groups are found by ids."""
    s, act = p.strides, p.activation
    if routing is None:
        flags = int(p.reads_index), int(p.writes_index)
        found: tuple[int, ...] = (0, p.rows, p.experts, p.a_rows, p.divisor, *flags, programs(p, c, False), 0, 0, 0)
    else:
        found = routing_constants(routing, p.rows, p.a_rows, p.divisor, programs(p, c, True))
    return CONSTANTS.pack(
        *found,
        *(*s.a, s.a_scales[0], *s.w[:2], *s.w_scales[:2], *s.bias, *s.out),
        *(p.n, p.k, 0 if p.bias_dtype is None else DTYPES[p.bias_dtype], DTYPES.get(p.out_dtype, 0)),
        *((0.0, 0.0, 0.0) if act is None else (act.alpha, math.inf if act.limit is None else act.limit, act.offset)),
        *(-(-p.k // CHUNK), -(-p.n // c.columns), -(-p.n // (2 * TILE_N)) * 2),
    )
