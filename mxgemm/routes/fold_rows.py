"""The first launch of route ``fp8_fold``: A is folded, and rows of a compact weight are decoded.

Without a weight to decode it is CUDA C++ on Hopper, a workgroup a row of A, where there is a compiler and A is not
large; else it is Triton's, of the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from mxgemm.cuda import fold_rows
from mxgemm.cuda.lazy import Lazy
from mxgemm.cuda.operands import ARCH
from mxgemm.native.program import KernelStep, Place
from mxgemm.problem import Problem
from mxgemm.routes.fold_calls import fold_both_call, quantize_fold_call
from mxgemm.triton.launch import Launcher

MOST_K: Final = 16384
MOST_VALUES: Final = 1 << 24
"""Of A, up to which, and to that K, this was measured to be the quicker one (docs/lab-notes.md)."""


def first_launch(problem: Problem, rows: int) -> FoldRows | Launcher:
    """Return the launch; it decodes so many rows of a compact weight, 0 for one that is in e4m3."""
    p = problem
    if rows:
        return Launcher(fold_both_call(p, rows))
    if p.arch == ARCH and p.k <= MOST_K and p.m * p.k <= MOST_VALUES and not fold_rows.refused(p):
        from mxgemm.hip.build import compiler_missing

        if compiler_missing(p.arch) is None:
            return FoldRows(p)
    return Launcher(quantize_fold_call(p))


class FoldRows:
    """The launch in CUDA C++, for who launches it as one of Triton's (``Launcher``)."""

    def __init__(self, problem: Problem) -> None:
        """Settle it, and build it, unless it is in the cache."""
        p = problem
        self._launch = Lazy(
            (fold_rows.SOURCE, fold_rows.KERNEL),
            fold_rows.defines(p),
            (fold_rows.grid(p), (fold_rows.lanes(p), 1, 1)),
            fold_rows.POINTERS,
            fold_rows.constants(p),
            fold_rows.shared_bytes(p),
        ).build(p.machine)

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current stream of the tensors' device."""
        self._launch(tensors[0].device, *(tensor.data_ptr() for tensor in tensors))

    def step(self, tensors: Sequence[Tensor], places: Sequence[Place]) -> KernelStep | None:
        """Return the launch with its operands at such places, described for ``mxgemm.native``."""
        return self._launch.step(tensors[0].device, *places)
