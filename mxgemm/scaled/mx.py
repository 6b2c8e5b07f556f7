"""Routes of ``quant_gemm`` for B with E8M0 scales and bf16 A, which is what ``mxgemm.gemm`` multiplies.

``mx``: fp4 and fp8 of B with scales of 32 elements are an MX tensor, and go the way that ``mxgemm.gemm`` chooses for
bf16 activations. ``dequant_mm``: B times its scales in bf16, where that is exact, then the vendor's bf16 product.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm import plan
from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.formats import FORMATS as MX_FORMATS
from mxgemm.problem import Options
from mxgemm.scaled.formats import FORMATS
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute

_E8M0: Final = getattr(torch, "float8_e8m0fnu", None)


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


class DequantMM(QuantRoute):
    """Two small launches for B, then cuBLAS or hipBLASLt."""

    name = "dequant_mm"
    takes = "bf16 by bf16 or fp8 with E8M0 scales of one row, to bf16, on a GPU"

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU, and torch's E8M0."""
        if machine.arch == "cpu":
            return Refusal("arch", "cpu", "a GPU", "machine")
        if _E8M0 is None:
            return Refusal("torch", torch.__version__, "a release with float8_e8m0fnu", "installation")
        return None

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """Whole groups of single rows."""
        p, (n, k) = problem, problem.scheme.b_group
        if not p.scheme.b_powers or n != 1:
            return Refusal("scheme", p.scheme, "E8M0 scales of one row of B")
        if p.b_format not in ("bf16", "e4m3", "e5m2"):
            return Refusal("b.format", p.b_format, "bf16, e4m3 or e5m2")
        if p.groups:
            return Refusal("groups", p.groups, "one problem")
        if p.k % k:
            return Refusal("k", p.k, f"a multiple of the group, {k}")
        if p.out_dtype != torch.bfloat16 or p.bias_dtype is not None:
            return Refusal("out_dtype", p.out_dtype, "bf16 and no bias")
        return None

    def fills_output(self, problem: QuantProblem) -> bool:
        """The library's result is fresh memory of its own."""
        del problem
        return False

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher."""
        p, k = problem, problem.scheme.b_group[1]
        dtype = FORMATS[p.b_format].dtype
        assert dtype is not None
        assert _E8M0 is not None

        def launch(operands: Operands) -> Tensor:
            a, _, b, b_scales, _, _, _ = operands
            assert b_scales is not None
            powers = b_scales.contiguous().view(_E8M0).to(torch.bfloat16)
            values = b.view(dtype).to(torch.bfloat16).reshape(p.n, p.k // k, k)
            weight = (values * powers.unsqueeze(-1)).view(p.n, p.k)
            with plain_products("cuda"):
                return a @ weight.t()

        return launch
