"""Route ``w4a16``: bf16 activations as they are, the weight decoded to bf16 in registers, one Triton launch."""

from __future__ import annotations

from mxgemm.errors import Refusal
from mxgemm.problem import Problem
from mxgemm.routes.a16wfp4 import A16WFP4


class W4A16(A16WFP4):
    """The kernel of ``a16wfp4`` without its quantisation: fp16 and fp32 A is rounded once to bf16."""

    name = "w4a16"
    takes = 'bf16, fp16 or fp32 A, a_format "bf16"; a weight in any layout'
    kernels = "bf16"

    def format_refusal(self, problem: Problem) -> Refusal | None:
        """``a_format="bf16"`` only."""
        if problem.a_quantized:
            return Refusal("a", "quantised already", "bf16, fp16 or fp32 activations")
        if problem.a_format != "bf16":
            return Refusal("a_format", problem.a_format, 'a_format "bf16"')
        return None
