"""Route ``mx`` of ``quant_gemm``: B with E8M0 scales and bf16 A, which is what ``mxgemm.gemm`` multiplies.

fp4 and fp8 with scales of 32 elements are an MX tensor, and go the way that ``mxgemm.gemm`` chooses for bf16 A.
"""

from __future__ import annotations

from mxgemm import plan
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.formats import FORMATS as MX_FORMATS
from mxgemm.problem import Options
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute


class MX(QuantRoute):
    """``mxgemm.gemm(a, b, a_format="bf16")``."""

    name = "mx"
    takes = "bf16 by fp4 or fp8 with E8M0 scales, K % 32 == 0"

    def missing(self, machine: Machine) -> Refusal | None:
        """Nothing: ``mxgemm.gemm`` runs anywhere."""
        del machine
        return None

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """One problem whose B is an MX tensor; scales of larger groups are repeated."""
        p = problem
        if not p.scheme.b_powers:
            return Refusal("scheme", p.scheme, "E8M0 scales of B")
        if p.b_format not in MX_FORMATS:
            return Refusal("b.format", p.b_format, f"one of {', '.join(MX_FORMATS)}")
        if p.groups:
            return Refusal("groups", p.groups, "one problem")
        if p.k % BLOCK:
            return Refusal("k", p.k, f"a multiple of {BLOCK}")
        return None

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher."""
        p = problem
        n, k = p.scheme.b_group
        options = Options(a_format="bf16", b_format=p.b_format, out_dtype=p.out_dtype)

        def launch(operands: Operands) -> None:
            a, _, b, b_scales, bias, out, _ = operands
            assert b_scales is not None
            if k != BLOCK:
                b_scales = b_scales.repeat_interleave(k // BLOCK, 1)[:, : p.k // BLOCK]
            if n != 1:
                b_scales = b_scales.repeat_interleave(n, 0)[: p.n]
            plan.multiply(a, None, b, b_scales, bias, out, options)

        return launch
