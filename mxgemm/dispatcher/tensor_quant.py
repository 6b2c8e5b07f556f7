"""``tensor_quant``: fp8 or bf8 operands, one fp32 scale for A and one for B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mxgemm.dispatcher.quant import QuantKernelConfig, SumScaled
from mxgemm.dispatcher.schemes import Scale, Scheme


@dataclass(frozen=True, kw_only=True)
class TensorQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = aq * bq * sum over k of A[m, k] * B[n, k]``, C in fp16.

    Fields and defaults are those of :class:`QuantKernelConfig`.
    """

    operation: ClassVar[str] = "tensor_quant"
    prefix: ClassVar[str] = "gemm_tensor_quant"

    @property
    def scheme(self) -> Scheme:
        """A scale for all of A and one for all of B."""
        scale = Scale("fp32", 0)
        return Scheme(self.variant_key, self.variant_key, scale, scale)


class TensorQuant(SumScaled):
    """``C[m, n] = aq * bq * sum over k of A[m, k] * B[n, k]``."""

    name = "tensor_quant"
    symbol = "dispatcher_run_tensor_quant_gemm"
    config_type = TensorQuantKernelConfig
