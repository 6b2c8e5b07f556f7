"""Route ``scaled_mm`` of ``quant_gemm``: the vendor's fp8 GEMM behind ``torch._scaled_mm``, where it has the scheme.

One scale a tensor or a row; on Hopper (cuBLAS from CUDA 12.9, torch 2.9) also 1x128 groups of A by 1x128 or 128x128
ones of B. A side without scales gets ones, which the call makes. Its kernels want scales of groups in an order of their
own (``quantize_for`` gives it); others are copied first.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.formats import FORMATS
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute

WHOLE: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx950"), ("e4m3", "e5m2")),
    "gfx942": ("e4m3fnuz", "e5m2fnuz"),
}
"""fp8 formats that the vendor's library multiplies, with one scale a tensor or a row."""
BLOCKS: Final = ("sm_90",)
"""Where it has groups of 128; newer ones have MX instead."""
GROUP: Final = 128
MIN_CUDA: Final = (12, 9)
MIN_TORCH: Final = (2, 9)


class ScaledMM(QuantRoute):
    """torch's own scaled product."""

    name = "scaled_mm"
    takes = "fp8, row-major A and B [N, K], N % 16 == 0, K % 16 == 0; groups of 128 on sm_90"

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU whose library multiplies fp8."""
        if machine.arch not in WHOLE:
            return Refusal("arch", machine.arch, f"one of {', '.join(WHOLE)}", "machine")
        if not hasattr(torch, "_scaled_mm"):
            return Refusal("torch", torch.__version__, "a release with _scaled_mm", "installation")
        return None

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """One problem in the vendor's formats, layouts and sizes."""
        p = problem
        if p.groups:
            return Refusal("groups", p.groups, "one problem")
        formats = WHOLE.get(p.arch, ())
        for name, fmt in (("a", p.a_format), ("b", p.b_format)):
            if fmt not in formats:
                return Refusal(f"{name}.format", fmt, f"one of {', '.join(formats)}")
        if p.a_format.startswith("e5m2") and p.b_format.startswith("e5m2"):
            return Refusal("b.format", p.b_format, "e4m3 on one side at least")
        for name, size in (("n", p.n), ("k", p.k)):
            if size % 16:
                return Refusal(name, size, "a multiple of 16")
        if p.strides.a[1] != 1 or p.strides.a[0] % 16 or p.strides.b[1] != 1 or p.strides.b[0] % 16 or not p.aligned:
            got = (p.strides.a, p.strides.b)
            return Refusal("strides", got, "contiguous rows that start at multiples of 16 bytes")
        if p.bias_dtype not in (None, p.out_dtype) or (p.bias_dtype is not None and p.out_dtype == torch.float32):
            return Refusal("bias", p.bias_dtype, "bf16 or fp16, as out_dtype")
        return self._scheme_refusal(p)

    def _scheme_refusal(self, p: QuantProblem) -> Refusal | None:
        s = p.scheme
        if s.name in ("tensor_quant", "rowcolquant"):
            return None
        if s.b_powers:
            return Refusal("scheme", s, "fp32 scales")
        sizes = {s.a_group} if s.a_kind == "group" else set()
        sizes |= {s.b_group[1]} if s.b_kind == "group" else set()
        if sizes != {GROUP} or s.b_group[0] not in (1, GROUP):
            return Refusal("scheme", s, f"groups of {GROUP} along K, of 1 or {GROUP} rows of B")
        if p.arch not in BLOCKS:
            return Refusal("arch", p.arch, f"{', '.join(BLOCKS)}, whose library has groups of {GROUP}", "machine")
        if p.m % 4 and not _square_ones(p):
            return Refusal("m", p.m, "a multiple of 4, where scales are of groups")
        if _square(p) and p.k % (4 * GROUP):
            # Releases of torch differ in how a row of such scales is padded; four groups are no padding in any.
            return Refusal("k", p.k, f"a multiple of {4 * GROUP}, where scales are of {GROUP} rows of B")
        version = tuple(int(part) for part in (torch.version.cuda or "0.0").split(".")[:2])
        release = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if version < MIN_CUDA or release < MIN_TORCH:
            got, want = f"torch {torch.__version__}, CUDA {torch.version.cuda}", "torch 2.9 built with CUDA 12.9"
            return Refusal("torch", got, want, "installation")
        return None

    def fills_output(self, problem: QuantProblem) -> bool:
        """The library's result is fresh memory of its own."""
        del problem
        return False

    def accumulate_bits(self, problem: QuantProblem) -> int:
        """sm_90's fp8 units keep 13 bits."""
        return 13 if problem.arch == "sm_90" else 24

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher."""
        p, s = problem, problem.scheme
        a_dtype, b_dtype = (FORMATS[name].dtype for name in (p.a_format, p.b_format))
        assert a_dtype is not None
        assert b_dtype is not None
        blocks = s.a_kind == "group" or s.b_kind == "group"

        def launch(operands: Operands) -> Tensor:
            a, a_scales, b, b_scales, bias, out, _ = operands
            left, right = a_scales, b_scales
            if blocks:
                left, right = _grouped_scales(p, left, right, out.device)
            elif s.a_kind == "row":
                assert left is not None
                assert right is not None
                left, right = left.contiguous().view(-1, 1), right.contiguous().view(1, -1)
            assert left is not None
            assert right is not None
            with plain_products("cuda"):
                return torch._scaled_mm(
                    a.view(a_dtype), b.view(b_dtype).t(), scale_a=left, scale_b=right, bias=bias,
                    out_dtype=p.out_dtype, use_fast_accum=False,
                )  # fmt: skip

        return launch


def _square(p: QuantProblem) -> bool:
    """Say whether B's scales are of 128 x 128, those of a B without any among them."""
    return p.scheme.b_kind == "none" or p.scheme.b_group[0] == GROUP


def _square_ones(p: QuantProblem) -> bool:
    """Say whether the ones of an A without scales are of 128 x 128, which is quicker from M = 129 on."""
    return p.scheme.a_kind == "none" and not _square(p) and p.m > GROUP and p.k % (4 * GROUP) == 0


def _grouped_scales(
    p: QuantProblem, left: Tensor | None, right: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return both sides' scales, of groups of 128, as the library reads them: A's, and B's transposed."""
    groups = -(-p.k // GROUP)
    if left is None:
        if _square_ones(p):
            left = torch.ones((-(-p.m // GROUP), groups), dtype=torch.float32, device=device)
        else:
            left = torch.ones((groups, p.m), dtype=torch.float32, device=device).t()
    elif left.stride(0) != 1 or left.stride(1) != p.m:
        left = torch.empty((groups, p.m), dtype=torch.float32, device=device).t().copy_(left)
    if not _square(p):
        assert right is not None
        if right.stride(0) != 1 or right.stride(1) != p.n:
            right = torch.empty((groups, p.n), dtype=torch.float32, device=device).t().copy_(right)
    elif right is None:
        right = torch.ones((-(-p.n // GROUP), groups), dtype=torch.float32, device=device)
    else:
        right = right.contiguous()
    return left, right.t()
