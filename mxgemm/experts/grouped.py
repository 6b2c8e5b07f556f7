"""The public grouped product: rows of A in groups, each by the weight of its expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad, is_observed
from mxgemm.experts import ops
from mxgemm.experts.plan import multiply
from mxgemm.experts.problem import Options
from mxgemm.experts.validation import check_weight
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import MXTensor
from mxgemm.validation import check_mx_activations


def grouped_gemm(
    a: Tensor | MXTensor,
    w: MXTensor,
    offsets: Tensor,
    *,
    gather: Tensor | None = None,
    a_format: ActivationFormat = "e2m1",
    scale_rounding: ScaleRounding = "even",
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> Tensor:
    """Multiply rows in groups by their experts' MX weights: ``round(quantize(a[rows of e]) @ dequantize(w[e]).T)``.

    Rows ``offsets[e]`` to ``offsets[e + 1]`` belong to expert e; empty groups are fine, and rows of no expert are
    zeros. On a GPU nothing of this is read by the host: one captured graph serves all offsets. Offsets that decrease or
    leave the rows are cut off, and never lead out of memory. A row's result does not depend on the other rows, to the
    bit (docs/experts.md says by which routes).

    Args:
        a: activations ``[T, K]``, bf16, fp16 or fp32, any strides; or an :class:`MXTensor` (T, K), quantised already.
        w: weights of all experts, a row-major :class:`MXTensor` (E, N, K).
        offsets: int32 ``[E + 1]`` on the device of ``a``.
        gather: int32 ``[R]``: row r of the result is of row ``gather[r]`` of ``a``, NaN where there is no such row; by
            default R = T, row by row.
        a_format: what ``a`` is rounded to first, as in :func:`mxgemm.gemm`.
        scale_rounding: rule for the block scales of ``a``.
        bias: ``[E, N]``, bf16, fp16 or fp32, added in fp32.
        out: write here, ``[R, N]`` of ``out_dtype``, any strides; by default the result is fresh memory.
        out_dtype: bf16, fp16 or fp32.
        route: "w4_mma", "w4_wgmma", "cpu_native", "triton", or "reference", which reads the offsets and so waits for a
            GPU.

    Returns:
        ``[R, N]``.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape, device, layout or name.
        RouteUnavailable: the named route cannot run here.
        RuntimeError: an input requires grad while gradients are recorded, or carries a forward-mode tangent.
    """
    check_weight("w", w)
    data: Any = a
    scales, shape = None, None
    if isinstance(a, MXTensor):
        check_mx_activations(a)
        if a.layout.scales != "row_major":
            raise ValueError(f"a: got {a.layout.scales} scales, want row-major (see MXTensor.row_major)")
        data, scales, a_format, shape = a.data, a.scales, a.format.name, a.shape  # type: ignore[assignment]
    options = Options(a_format, w.format.name, scale_rounding, out_dtype, route, shape, w.shape)
    if is_observed(data, scales, w.data, w.scales, offsets, out) or is_observed(gather, bias):
        check_no_grad(a=data, bias=bias, out=out)
        return ops.call_grouped(data, scales, w.data, w.scales, offsets, gather, bias, out, options)
    return multiply(data, scales, w.data, w.scales, offsets, gather, bias, out, options)
