"""The first launch of route ``fp8_fold`` in CUDA C++, for who launches it as one of Triton's (``Launcher``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mxgemm.cuda import fold_rows
from mxgemm.cuda.lazy import Lazy
from mxgemm.native.program import KernelStep, Place, fixed
from mxgemm.problem import Problem


class FoldRows:
    """Fold A, and decode so many rows of a compact weight."""

    def __init__(self, problem: Problem, rows: int) -> None:
        """Settle the launch; ``rows`` is 0 for a weight that is in e4m3."""
        p = problem
        self._missing = 0 if rows else 5
        self._launch = Lazy(
            (fold_rows.SOURCE, fold_rows.KERNEL),
            fold_rows.defines(p, rows),
            (fold_rows.grid(p, rows), (fold_rows.lanes(p), 1, 1)),
            fold_rows.POINTERS,
            fold_rows.constants(p, rows),
            fold_rows.shared_bytes(p),
        ).build(p.machine)

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current stream of the tensors' device."""
        self._launch(tensors[0].device, *(tensor.data_ptr() for tensor in tensors), *(0,) * self._missing)

    def step(self, tensors: Sequence[Tensor], places: Sequence[Place]) -> KernelStep | None:
        """Return the launch with its operands at such places, described for ``mxgemm.native``."""
        device: torch.device = tensors[0].device
        return self._launch.step(device, *places, *(fixed(0),) * self._missing)
