"""The grouped MXFP4 product of ``kernels/grouped_wgmma.cu``, for groups of many rows: configuration, macros, arguments.

No tensors and no compiler here. K is not divided, so a row's sums have one order whatever else is in a call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from mxgemm.cuda.operands import CHUNK, DTYPES, FORMATS, SHARED_BYTES
from mxgemm.errors import Refusal
from mxgemm.experts.mma import MAX_EXPERTS, operand_refusal
from mxgemm.experts.problem import GroupedProblem, tile_list_rows
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.formats import FORMATS as ELEMENT_FORMATS
from mxgemm.mx.formats import scale_addend

SOURCE: Final = "grouped_wgmma.cu"
KERNEL: Final = "grouped_wgmma"
POINTERS: Final = Layout("P" * 8)
"""Slabs, weight, scales, bias, out, its scales, tile list, index; 0 for what there is not."""
CONSTANTS: Final = Layout("q" * 8 + "i" * 4 + "fff" + "i")
"""The rest of the kernel's ``Arguments``."""

SLAB_SOURCE: Final = "grouped_slabs.cu"
SLAB_KERNEL: Final = "grouped_slabs"
SLAB_POINTERS: Final = Layout("P" * 5)
"""a, its scales, slabs, tile list, index; 0 for what there is not."""
_SLAB_CONSTANTS: Final = Layout("qqqiiii")
SLAB_THREADS: Final = 128
_VALUES: Final = 8
"""Of a lane that makes slabs."""

MAX_SUMS: Final = 64
"""Of a lane, in registers."""
GROUP: Final = 128
"""Lanes of a warpgroup."""
MAX_GRID: Final = (1 << 31) - 1
_UNUSED: Final = {"A_BEFORE": 0, "A_CODES": 0, "A_SLOTS": 0, "WARPS_M": 1, "W_VECTOR": 1}


@dataclass(frozen=True, slots=True)
class GroupedWgmmaConfig:
    """How a workgroup divides its work.

    Attributes:
        columns: rows of a group in a tile, 64 or 128.
        tiles: tiles of 64 weight rows of a warpgroup.
        groups: warpgroups that multiply, along N.
        stages: chunks of A that shared memory holds.
        depth: chunks of the weight that a warp has in flight.
    """

    columns: int = 64
    tiles: int = 1
    groups: int = 4
    stages: int = 4
    depth: int = 2

    @property
    def rows(self) -> int:
        """Weight rows of a workgroup."""
        return 64 * self.tiles * self.groups

    @property
    def threads(self) -> int:
        """Lanes of a workgroup: one of those after the groups' copies A."""
        return GROUP * self.groups + (GROUP if self.groups > 1 else 32)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup: A's ring, in the end fp32 sums; barriers behind both."""
        sums = 4 * self.columns * (self.rows + 4)
        return max(self.stages * 2 * CHUNK * self.columns, sums) + 16 * self.stages


def wgmma_refusal(p: GroupedProblem) -> Refusal | None:
    """Say why the kernels cannot take ``p``, or None if they can. The machine is not asked about."""
    refusal = operand_refusal(p)
    if refusal is None and p.experts > MAX_EXPERTS:
        refusal = Refusal("experts", p.experts, f"at most {MAX_EXPERTS}")
    c = config_for(p)
    if refusal is None and max(grid(p, c)[0], slab_grid(p, c)[0]) > MAX_GRID:
        refusal = Refusal("rows", p.rows, f"at most {MAX_GRID} workgroups")
    return refusal


def config_for(p: GroupedProblem) -> GroupedWgmmaConfig:
    """Return the configuration of a problem: the fastest of those measured on an H200, of 2 to 32 rows an expert."""
    del p
    return GroupedWgmmaConfig()


def config_refusal(c: GroupedWgmmaConfig) -> Refusal | None:
    """Say why a configuration is not legal, or None.

    128 sums a lane give wrong results on an H200, although the text is right lane by lane (docs/lab-notes.md).
    """
    if c.columns not in (64, 128) or not 1 <= c.groups <= 4:
        return Refusal("columns, groups", f"{c.columns}, {c.groups}", "64 or 128, and 1 to 4")
    if c.tiles * c.columns // 2 > MAX_SUMS:
        return Refusal("tiles", c.tiles, f"at most {2 * MAX_SUMS // c.columns}: {MAX_SUMS} sums a lane")
    if c.shared_bytes > SHARED_BYTES:
        return Refusal("shared memory", f"{c.shared_bytes} bytes", f"at most {SHARED_BYTES}")
    return None


def most_tiles(p: GroupedProblem, c: GroupedWgmmaConfig) -> int:
    """Return how many tiles of rows a list may have."""
    return tile_list_rows(p.rows, p.experts, c.columns) - 1


def grid(p: GroupedProblem, c: GroupedWgmmaConfig) -> tuple[int, int, int]:
    """Return the workgroups, those along N first."""
    return -(-p.n // c.rows) * most_tiles(p, c), 1, 1


def defines(p: GroupedProblem, c: GroupedWgmmaConfig, *, early: bool) -> dict[str, int | str]:
    """Return the macros of a class of problems and a configuration; see ``mma.defines`` for ``early``."""
    quantised = ELEMENT_FORMATS.get(p.out_format)
    return {
        "A_TYPE": 0,
        "A_FORMAT": FORMATS[p.a_format],
        "SCALE_ADDEND": 0 if quantised is None else scale_addend(quantised, p.scale_rounding),
        "TILES": c.tiles,
        "COLUMNS": c.columns,
        "WN": c.groups,
        "STAGES": c.stages,
        "DEPTH": c.depth,
        "FRAGMENTS": int(p.fragments),
        "TAIL": int(p.k % CHUNK != 0),
        "GATED": 0 if p.activation is None else 1 if p.activation.interleaved else 2,
        "QUANTISES": int(quantised is not None),
        "EARLY": int(early),
        "A_VECTOR": 1,
        **_UNUSED,
    }


def constants(p: GroupedProblem) -> bytes:
    """Return the product's arguments but the pointers."""
    s, act = p.strides, p.activation
    limit = math.inf if act is None or act.limit is None else act.limit
    return CONSTANTS.pack(
        *(*s.w[:2], *s.w_scales[:2], *s.bias, *s.out),
        *(p.n, p.k, 0 if p.bias_dtype is None else DTYPES[p.bias_dtype], DTYPES.get(p.out_dtype, 0)),
        *((0.0, limit, 0.0) if act is None else (act.alpha, limit, act.offset)),
        0,
    )


def slab_bytes(p: GroupedProblem, c: GroupedWgmmaConfig) -> int:
    """Return the scratch that slabs of any routing take: bf16 of whole tiles and chunks."""
    return 2 * most_tiles(p, c) * c.columns * -(-p.k // CHUNK) * CHUNK


def slab_defines(p: GroupedProblem, c: GroupedWgmmaConfig) -> dict[str, int | str]:
    """Return the macros of the launch that makes slabs."""
    s = p.strides
    vector = p.a is None and s.a[1] == 1 and s.a[0] * p.a_dtype.itemsize % 16 == 0
    return {
        "A_TYPE": 0 if p.a is not None else DTYPES[p.a_dtype],
        "A_FORMAT": FORMATS[p.a_format],
        "A_VECTOR": int(vector),
        "COLUMNS": c.columns,
        "SCALE_ADDEND": 0,
        "TILES": 1,
        "FRAGMENTS": 0,
        **_UNUSED,
    }


def slab_constants(p: GroupedProblem) -> bytes:
    """Return the arguments of making slabs but the pointers."""
    return _SLAB_CONSTANTS.pack(*p.strides.a, p.strides.a_scales[0], p.a_rows, p.divisor, p.k, 0)


def slab_grid(p: GroupedProblem, c: GroupedWgmmaConfig) -> tuple[int, int, int]:
    """Return the workgroups that make slabs."""
    return slab_bytes(p, c) // (2 * _VALUES * SLAB_THREADS), 1, 1
