"""``rowcolquant``: fp8 or bf8 operands, an fp32 scale per row of A and per column of B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mxgemm.dispatcher.operation import Problem
from mxgemm.dispatcher.quant import QuantKernelConfig, QuantOperation


@dataclass(frozen=True, kw_only=True)
class RowColQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = aq[m] * bq[n] * sum over k of A[m, k] * B[n, k]``, C in fp16.

    Fields and defaults are those of :class:`QuantKernelConfig`.
    """

    operation: ClassVar[str] = "rowcolquant"
    prefix: ClassVar[str] = "gemm_rowcolquant"


class RowColQuant(QuantOperation):
    """``C[m, n] = aq[m] * bq[n] * sum over k of A[m, k] * B[n, k]``."""

    name = "rowcolquant"
    symbol = "dispatcher_run_rowcolquant_gemm"
    config_type = RowColQuantKernelConfig

    def scale_shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return ``[m]`` and ``[n]``."""
        return (problem.m,), (problem.n,)
