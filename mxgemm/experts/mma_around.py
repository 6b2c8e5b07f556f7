"""The small launches around grouped products on Hopper: tokens to MX bytes before, a token's results added up behind.

Both overlap the launches beside them and wait for what they read. No tensors and no compiler here.
"""

from __future__ import annotations

from typing import Final

from mxgemm.cuda.operands import DTYPES, FORMATS
from mxgemm.experts.problem import Routing, Tokens
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.formats import FORMATS as ELEMENT_FORMATS
from mxgemm.mx.formats import scale_addend

THREADS: Final = 128
"""Of a workgroup of both."""

QUANTISE_SOURCE: Final = "grouped_quantise.cu"
QUANTISE_KERNEL: Final = "grouped_quantise"
QUANTISE_POINTERS: Final = Layout("PPP")
"""Tokens, bytes, scales."""
_QUANTISE_CONSTANTS: Final = Layout("qqii")
_VALUES: Final = 8
"""Of a lane."""

ROUTE_SOURCE: Final = "grouped_route.cu"
ROUTE_KERNEL: Final = "grouped_route"
ROUTE_POINTERS: Final = Layout("PPPP")
"""Places, tiles, ids, map or 0."""
_ROUTE_CONSTANTS: Final = Layout("q" + "i" * 10)
ROUTE_THREADS: Final = 512
ROUTE_SHARED_BYTES: Final = 4 * (2 * ROUTE_THREADS + 2 * ROUTE_THREADS // 32)
"""What each thread knows of its pair and of its expert, and two sums of each warp."""

SORT_SOURCE: Final = "grouped_sort.cu"
SORT_KERNEL: Final = "grouped_sort"
"""As the route kernel, of any number of pairs."""
SORT_THREADS: Final = 1024
MAX_SORTED_EXPERTS: Final = 1024
MAX_SORTED: Final = 1 << 20
"""Pairs that one workgroup sorts."""

SUM_SOURCE: Final = "grouped_sum.cu"
SUM_KERNEL: Final = "grouped_sum"
SUM_POINTERS: Final = Layout("PPPPP")
"""Pairs' results, the router's weights, out, ids, map or 0."""
_SUM_CONSTANTS: Final = Layout("q" + "i" * 10 + "qq" + "iiii")
_COLUMNS: Final = 4
"""Of a lane."""
MAX_TOP_K: Final = 16
"""A lane holds a value of each of a token's pairs."""


def routing_constants(routing: Routing, rows: int, a_rows: int, divisor: int, programs: int = 0) -> tuple[int, ...]:
    """Return the numbers of the kernels' ``Routing`` for pairs that are found by ids."""
    r = routing
    return (r.first, rows, r.experts, a_rows, divisor, 0, 0, programs, r.id_dtype.itemsize, r.mapped, 0)


def quantise_defines(t: Tokens) -> dict[str, int | str]:
    """Return the macros of quantising tokens."""
    return {
        "A_TYPE": DTYPES[t.dtype],
        "A_FORMAT": FORMATS[t.a_format],
        "SCALE_ADDEND": scale_addend(ELEMENT_FORMATS[t.a_format], t.scale_rounding),
        "A_VECTOR": int(t.aligned and t.strides[1] == 1 and t.strides[0] * t.dtype.itemsize % 16 == 0),
    }


def quantise_constants(t: Tokens) -> bytes:
    """Return the arguments of quantising but the pointers."""
    return _QUANTISE_CONSTANTS.pack(*t.strides, t.tokens, t.hidden)


def quantise_grid(t: Tokens) -> tuple[int, int, int]:
    """Return the workgroups that quantise."""
    return -(-t.tokens * (t.hidden // _VALUES) // THREADS), 1, 1


def route_defines(rows: int, *, early: bool) -> dict[str, int | str]:
    """Return the macros of sorting pairs and listing tiles of so many rows; see ``mma.defines`` for ``early``."""
    return {"COLUMNS": rows, "EARLY": int(early), "ROUTING": ROUTE_THREADS}


def sort_shared_bytes(r: Routing) -> int:
    """Return the shared memory of sorting: counts of each warp and expert, and two sums of each warp."""
    return 4 * (SORT_THREADS // 32) * (r.experts + 2)


def route_constants(r: Routing) -> bytes:
    """Return the arguments of sorting but the pointers."""
    return _ROUTE_CONSTANTS.pack(*routing_constants(r, r.pairs, r.pairs, 1))


def sum_defines(r: Routing) -> dict[str, int | str]:
    """Return the macros of adding up."""
    return {"TOP_K": r.top_k}


def sum_constants(r: Routing) -> bytes:
    """Return the arguments of adding up but the pointers."""
    types = r.columns, DTYPES[r.weight_dtype], DTYPES[r.out_dtype], 0
    return _SUM_CONSTANTS.pack(*routing_constants(r, r.pairs, r.pairs, 1), *r.out_strides, *types)


def sum_grid(r: Routing) -> tuple[int, int, int]:
    """Return the workgroups that add up."""
    return -(-r.columns // (THREADS * _COLUMNS)) * r.tokens, 1, 1
