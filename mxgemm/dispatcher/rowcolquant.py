"""``rowcolquant``: fp8 or bf8 operands, one fp32 scale per row of A and column of B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mxgemm.dispatcher.quant import QuantKernelConfig, SumScaled
from mxgemm.dispatcher.schemes import Scale, Scheme


@dataclass(frozen=True, kw_only=True)
class RowColQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = aq[m] * bq[n] * sum over k of A[m, k] * B[n, k]``, C in fp16.

    Fields and defaults are those of :class:`QuantKernelConfig`.
    """

    operation: ClassVar[str] = "rowcolquant"
    prefix: ClassVar[str] = "gemm_rowcolquant"

    @property
    def scheme(self) -> Scheme:
        """A scale a row of A and a column of B."""
        scale = Scale("fp32", 1)
        return Scheme(self.variant_key, self.variant_key, scale, scale)


class RowColQuant(SumScaled):
    """``C[m, n] = aq[m] * bq[n] * sum over k of A[m, k] * B[n, k]``."""

    name = "rowcolquant"
    symbol = "dispatcher_run_rowcolquant_gemm"
    config_type = RowColQuantKernelConfig
