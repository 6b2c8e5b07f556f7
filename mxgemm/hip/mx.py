"""The MFMA GEMM of ``kernels/mx_gemm.hip``, for many rows of an A that is e2m1 already: what is legal, macros, grid.

No tensors and no compiler here: a problem and a configuration become macros, a grid and a layout of arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.hip.prepared import ARCH, result_clauses, result_defines, result_row_bytes, weight_clauses
from mxgemm.problem import Config, Problem, contiguity_refusal

SOURCE: Final = "mx_gemm.hip"
KERNEL: Final = "mx_gemm"
ARGUMENTS: Final = "PPPPPPIII"
"""a, a_scales, weight, scales, bias, c; m, and the bytes between rows of A and of C (``mxgemm.hip.kernarg``)."""

THREADS: Final = 8 * KNOWN_MACHINES[ARCH].wave_size
"""Of a workgroup: eight waves, two for each SIMD."""
XCDS: Final = KNOWN_MACHINES[ARCH].xcds
BLOCKS: Final = (128, 256)
MAX_RUN: Final = 64
STEP_K: Final = 256
"""Elements along K of a step."""
_WAVES_M: Final = 2
_WAVES_N: Final = 4
_SIMDS: Final = KNOWN_MACHINES[ARCH].simds
_PRODUCTS_A_CYCLE: Final = 2048
"""Of a SIMD's matrix unit: 16 x 16 x 128 in 16 cycles (CDNA4 ISA)."""
_L1_BYTES_A_CYCLE: Final = 64
_LDS_BYTES_A_CYCLE: Final = 128
MAX_WORKGROUPS: Final = (2**32 - 1) // THREADS
"""Of a launch: HIP takes 2**32 - 1 work items along x."""


@dataclass(frozen=True, slots=True)
class MXConfig(Config):
    """How the result is divided.

    Attributes:
        block_m: rows of A and C of a workgroup.
        block_n: columns of C of a workgroup.
        run: blocks along M that follow one another on an XCD before the next column of blocks.
    """

    block_m: int = 256
    block_n: int = 256
    run: int = 8


def mx_refusal(problem: Problem, config: MXConfig | None = None) -> Refusal | None:
    """Say why the kernel cannot take ``problem`` (with ``config``, if one is given), or None if it can.

    The machine and its compiler are not asked about: see ``mxgemm.routes.hip_mx``.
    """
    refusal = next(_problem_clauses(problem), None) or contiguity_refusal(problem)
    return refusal or (next(_config_clauses(problem, config), None) if config else None)


def _problem_clauses(p: Problem) -> Iterator[Refusal]:
    if not p.a_quantized:
        yield Refusal("a", p.a_dtype, "e2m1 bytes")
    if p.a_format != "e2m1":
        yield Refusal("a_format", p.a_format, '"e2m1"')
    if p.a_scale_layout != "shuffled":
        yield Refusal("a_scale_layout", p.a_scale_layout, "shuffled: a lane loads a dword of four scales")
    yield from weight_clauses(p)
    yield from result_clauses(p)
    s = p.strides
    if s is not None and (s.a[1] != 1 or (p.m > 1 and s.a[0] % 16)):
        yield Refusal("strides of a", s.a, "(a multiple of 16, 1): 16 bytes are copied at once")


def _config_clauses(p: Problem, c: MXConfig) -> Iterator[Refusal]:
    for field in ("block_m", "block_n"):
        value = getattr(c, field)
        if value not in BLOCKS:
            yield Refusal(field, value, f"one of {', '.join(map(str, BLOCKS))}")
            return
    if not 1 <= c.run <= MAX_RUN:
        yield Refusal("run", c.run, f"1 to {MAX_RUN}")
    if blocks(p, c) > MAX_WORKGROUPS:
        yield Refusal("m", p.m, f"at most {MAX_WORKGROUPS} blocks of {c.block_m} x {c.block_n}: the grid")
    if c.block_n * p.k >= 2**31:
        yield Refusal(
            "k", p.k, f"less than {2**31 // c.block_n} with block_n = {c.block_n}: offsets in a block have 32 bits"
        )
    for name, row in (("a", row_bytes(p)[0]), ("out", row_bytes(p)[1])):
        if c.block_m * row >= 2**31:
            yield Refusal(
                f"strides of {name}", f"{row} bytes a row", "blocks within 2 GiB: offsets in one have 32 bits"
            )


def row_bytes(p: Problem) -> tuple[int, int]:
    """Return the bytes from a row of A to the next, and from a row of the result to the next.

    Of a single row the strides mean nothing. Its successors in C must lie behind it, for they are not to be stored.
    """
    a = 0 if p.m == 1 else p.k // 2 if p.strides is None else p.strides.a[0]
    return a, result_row_bytes(p) or p.n * p.out_dtype.itemsize


def defines(p: Problem, c: MXConfig) -> dict[str, int | str]:
    """Return the macros that make the kernel of one weight, one configuration and one set of dtypes."""
    return {"BLOCK_M": c.block_m, "BLOCK_N": c.block_n, "RUN": c.run, "XCDS": XCDS, **result_defines(p)}


def blocks(p: Problem, c: MXConfig) -> int:
    """Return the workgroups."""
    return -(-p.m // c.block_m) * -(-p.n // c.block_n)


def grid(p: Problem, c: MXConfig) -> tuple[int, int, int]:
    """Return the grid of a launch."""
    return blocks(p, c), 1, 1


def candidates(p: Problem) -> list[MXConfig]:
    """Return every block, the one first that should be fastest: fewest cycles of the busiest CU."""
    blocks_of = [MXConfig(block_m, block_n) for block_m in BLOCKS for block_n in BLOCKS]
    return sorted(blocks_of, key=lambda c: (cycles(p, c), -c.block_m * c.block_n))


def cycles(p: Problem, c: MXConfig) -> int:
    """Return about how many cycles the busiest CU takes."""
    return -(-blocks(p, c) // max(1, p.machine.cu_count)) * -(-p.k // STEP_K) * step_cycles(c)


def step_cycles(c: MXConfig) -> int:
    """Return the cycles that a CU takes for a step: of the matrix units, of L1 or of LDS, whichever has most to do.

    L1 serves A once and the weight once for each half of the waves, and each wave's scales; LDS takes A once and gives
    it to each quarter. ``evidence/loop_table.py`` counts the same in compiled kernels.
    """
    row = STEP_K // 2
    scales = 8 * (c.block_m * _WAVES_N + c.block_n * _WAVES_M)
    l1 = (c.block_m * row + _WAVES_M * c.block_n * row + scales) // _L1_BYTES_A_CYCLE
    lds = (1 + _WAVES_N) * c.block_m * row // _LDS_BYTES_A_CYCLE
    return max(c.block_m * c.block_n * STEP_K // (_PRODUCTS_A_CYCLE * _SIMDS), l1, lds)
