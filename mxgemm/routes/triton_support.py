"""What every Triton route asks before it touches a kernel: is triton here, new enough, and is there a target?"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Final

from mxgemm.errors import Refusal
from mxgemm.problem import Problem

MIN_TRITON: Final = (3, 6)
MIN_TRITON_INTERPRETER: Final = (3, 9)
"""The first release whose interpreter has dot_scaled; 3.6 lacks it (triton/runtime/interpreter.py)."""
MIN_TRITON_OF: Final = {("gfx942", "quantised"): (3, 9), ("gfx1250", "bf16"): (3, 9)}
"""First release that compiles dot_scaled for an architecture and kind of A, where it is not 3.6 (by compiling)."""

INT32_MAX: Final = 2**31 - 1
MAX_SIZE: Final = 2**30
"""Largest M, N and K: kernels number rows and columns in 32 bits, those of a tile behind the last included."""
MAX_GRID_YZ: Final = 65535
"""Programs along y, and along z, that CUDA's and HIP's drivers take."""
_AMD_ITEMS: Final = 2**32 - 1
"""Work items along a dimension of a grid that HIP takes."""


@cache
def triton_version() -> tuple[int, int] | None:
    """Return (major, minor) of the installed triton, None without one. Imports it on the first call."""
    if importlib.util.find_spec("triton") is None:
        return None
    import triton

    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def interpreting() -> bool:
    """Say whether kernels run in Triton's interpreter, on the CPU; triton reads the same variable."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def triton_refusal(route: str, problem: Problem) -> Refusal | None:
    """Say why a Triton route cannot run on the problem's machine, or None if it can."""
    for name, size in (("m", problem.m), ("n", problem.n), ("k", problem.k)):
        if size > MAX_SIZE:
            return Refusal(route, name, size, f"at most {MAX_SIZE}, what the kernels count in 32 bits")
    version = triton_version()
    if version is None:
        return Refusal(route, "triton", "not installed", "triton >= 3.6 (pip install 'mxgemm[triton]')")
    if version < MIN_TRITON:
        return Refusal(route, "triton", _dotted(version), f"triton >= {_dotted(MIN_TRITON)}")
    if problem.arch == "cpu":
        if not interpreting():
            return Refusal(
                route, "arch", "cpu", "a GPU, or TRITON_INTERPRET=1 to run the kernel in Triton's interpreter"
            )
        if version < MIN_TRITON_INTERPRETER:
            needed = f"triton >= {_dotted(MIN_TRITON_INTERPRETER)}, whose interpreter has dot_scaled"
            return Refusal(route, "triton", _dotted(version), needed)
    kind = "bf16" if problem.a_format == "bf16" else "quantised"
    least = MIN_TRITON_OF.get((problem.arch, kind), MIN_TRITON)
    if version < least:
        return Refusal(route, "triton", _dotted(version), f"triton >= {_dotted(least)} on {problem.arch}")
    return None


def wide_offsets(problem: Problem) -> bool:
    """Say whether an offset into some operand can pass 2**31 - 1 elements, so that 32 bits do not hold it."""
    s = problem.strides
    if s is None:
        return False
    m, n, k = problem.m, problem.n, problem.k
    spans = (
        (n, s.bias if problem.has_bias else 0, 0, 0),
        (m, s.a[0], k, s.a[1]),
        (n, s.b[0], k, s.b[1]),
        (n, s.b_scales[0], k, s.b_scales[1]),
        (m, s.out[0], n, s.out[1]),
        (m, s.a_scales[0], k, s.a_scales[1]),
    )
    # The masked tail of a tile is computed too: 512 more rows and columns are an upper bound of any block.
    return any((rows + 512) * rs + (columns + 512) * cs > INT32_MAX for rows, rs, columns, cs in spans)


def grid_refusal(
    route: str, problem: Problem, grid: tuple[int, int, int], num_warps: int, fields: tuple[str, str]
) -> Refusal | None:
    """Say why a grid cannot be launched, or None if it can; ``fields`` are the sizes that x and y stand for."""
    most = _AMD_ITEMS // (64 * num_warps) if problem.arch.startswith("gfx") else INT32_MAX
    for field, programs, limit in (*zip(fields, grid, (most, MAX_GRID_YZ), strict=False), ("z", grid[2], MAX_GRID_YZ)):
        if programs > limit:
            got = getattr(problem, field, programs)
            return Refusal(route, field, got, f"at most {limit} tiles along a grid's dimension, here {programs}")
    return None


def is_power_of_two(value: int) -> bool:
    """Say whether a block size is one that Triton takes."""
    return value > 0 and value & (value - 1) == 0


def next_power_of_two(value: int) -> int:
    """Return the least power of two that is not below ``value``."""
    return 1 << max(value - 1, 0).bit_length()


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
