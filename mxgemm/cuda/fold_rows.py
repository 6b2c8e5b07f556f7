"""The launch of ``kernels/fold_rows.cu``, first of route ``fp8_fold``: sizes, macros, arguments. No tensors here."""

from __future__ import annotations

from typing import Final

from mxgemm.cuda.operands import DTYPES, a_vector, macros_of_a, strides_of, weight_strides
from mxgemm.hip.kernarg import Layout
from mxgemm.problem import Problem

SOURCE: Final = "fold_rows.cu"
KERNEL: Final = "fold_rows"
POINTERS: Final = Layout("P" * 9)
"""a; folded, its bases, which rows do not fold; weight, scales, bases of its rows; decoded, these in fp32."""
_CONSTANTS: Final = Layout("q" * 10 + "i" * 4)
"""Strides of a, weight and scales, then sizes."""
WARP: Final = 32
LEAST_LANES: Final = 128
MOST_LANES: Final = 1024
TURNS: Final = 4
"""Of a lane that decodes 16 codes each time."""
KEEPS: Final = 2
"""What is said of L2 lines (``kernels/fold_rows.cu``)."""
_TABLE_BYTES: Final = 512
_MAX_PIECES: Final = 1 << 31


def refused(p: Problem, rows: int) -> bool:
    """Say whether the kernel cannot take A and so many rows of a compact weight, none for one that is not decoded."""
    s = strides_of(p)
    in_pieces = p.aligned and s.b[1] == s.b_scales[1] == 1 and (p.weight_layout != "row_major" or s.b[0] % 8 == 0)
    known = p.a_dtype in DTYPES and p.scale_layout in ("row_major", "shuffled")
    return not known or lanes(p) > MOST_LANES or (rows > 0 and not in_pieces) or rows * p.k // 16 >= _MAX_PIECES


def values(p: Problem) -> int:
    """Return the values of A of a lane."""
    return 16 if p.k <= 16 * MOST_LANES else 32


def lanes(p: Problem) -> int:
    """Return the lanes of a workgroup, which has a row of A."""
    return max(LEAST_LANES, -(-p.k // (values(p) * WARP)) * WARP)


def shared_bytes(p: Problem) -> int:
    """Return a workgroup's bytes of shared memory."""
    return _TABLE_BYTES + 4 * lanes(p) // WARP


def defines(p: Problem, rows: int) -> dict[str, int | str]:
    """Return the macros that make the kernel one for a problem's A and weight."""
    return {
        **macros_of_a(p),
        "A_VECTOR": int(a_vector(p)),
        "LANES": lanes(p),
        "VALUES": values(p),
        "DECODES": int(rows > 0),
        "PLAIN": int(p.weight_layout == p.scale_layout == "row_major"),
        "W_BLOCK": 16 if p.weight_layout == "row_major" else 256,
        "TURNS": TURNS,
        "KEEPS": KEEPS,
    }


def grid(p: Problem, rows: int) -> tuple[int, int, int]:
    """Return the workgroups: a row of A each, and what decodes."""
    return p.m + -(-rows * (p.k // 16) // (TURNS * lanes(p))), 1, 1


def constants(p: Problem, rows: int) -> bytes:
    """Return all arguments but the pointers."""
    w_tile, w_row, _, _, *scales = weight_strides(p)
    return _CONSTANTS.pack(*strides_of(p).a, w_tile, w_row, *scales, p.m, rows, p.k, 0)
