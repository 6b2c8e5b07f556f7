"""The launch of ``kernels/fold_rows.cu``, first of route ``fp8_fold``: sizes, macros, arguments. No tensors here."""

from __future__ import annotations

from typing import Final

from mxgemm.cuda.operands import DTYPES, a_vector, macros_of_a, strides_of
from mxgemm.hip.kernarg import Layout
from mxgemm.problem import Problem

SOURCE: Final = "fold_rows.cu"
KERNEL: Final = "fold_rows"
POINTERS: Final = Layout("PPPP")
"""a; folded, its bases, which rows do not fold."""
_CONSTANTS: Final = Layout("qqii")
"""Strides of a, K."""
WARP: Final = 32
LEAST_LANES: Final = 32
MOST_LANES: Final = 1024


def refused(p: Problem) -> bool:
    """Say whether the kernel cannot take a problem's A."""
    return p.a_dtype not in DTYPES or lanes(p) > MOST_LANES


def values(p: Problem) -> int:
    """Return the values of a lane."""
    return 16 if p.k <= 16 * MOST_LANES else 32


def lanes(p: Problem) -> int:
    """Return the lanes of a workgroup, which has a row."""
    return max(LEAST_LANES, -(-p.k // (values(p) * WARP)) * WARP)


def shared_bytes(p: Problem) -> int:
    """Return a workgroup's bytes of shared memory."""
    return 4 * lanes(p) // WARP


def defines(p: Problem) -> dict[str, int | str]:
    """Return the macros that make the kernel one for a problem's A."""
    return {**macros_of_a(p), "A_VECTOR": int(a_vector(p)), "LANES": lanes(p), "VALUES": values(p)}


def grid(p: Problem) -> tuple[int, int, int]:
    """Return the workgroups."""
    return p.m, 1, 1


def constants(p: Problem) -> bytes:
    """Return all arguments but the pointers."""
    return _CONSTANTS.pack(*strides_of(p).a, p.k, 0)
