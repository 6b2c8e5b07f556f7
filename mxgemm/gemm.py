"""The public multiplications."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from mxgemm import ops, steady, validation
from mxgemm.ambient import is_observed
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.freshness import stale
from mxgemm.mx.layouts import ScaleLayout, WeightLayout
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import MXTensor
from mxgemm.plan import multiply
from mxgemm.problem import Options

_ROW_MAJOR: Final = "row_major"
"""The default, one object: calls that leave a layout out need no look at it, and no other text is taken for it."""


def gemm(
    a: Tensor,
    b: Tensor | MXTensor,
    b_scales: Tensor | None = None,
    *,
    a_format: ActivationFormat = "e2m1",
    scale_rounding: ScaleRounding = "even",
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    weight_layout: WeightLayout = _ROW_MAJOR,
    scale_layout: ScaleLayout = _ROW_MAJOR,
    route: str | None = None,
) -> Tensor:
    """Multiply activations by an MX weight: ``round(quantize(a) @ dequantize(b).T + bias)``.

    Operands are dequantised exactly, sums are accumulated in fp32, and the result is rounded once.

    Args:
        a: activations ``[..., K]``, bf16, fp16 or fp32, any strides, K % 32 == 0.
        b: weight, an :class:`MXTensor` of shape (N, K), or packed e2m1 bytes ``[N, K/2]``.
        b_scales: E8M0 bytes of a packed ``b``: ``[N, K/32]``, or shuffled and padded to 256 x 8, or swizzled.
        a_format: what ``a`` is rounded to first: "e2m1" (a4w4), "e4m3" (a8w4), both in blocks of 32 along K, or "bf16"
            (a16w4), which checkpoints of MXFP4 weights for bf16 activations want.
        scale_rounding: how the block scales of ``a`` are chosen: "even", "floor", "ceil" or "rceil".
        bias: ``[N]``, bf16, fp16 or fp32, added in fp32.
        out: write here, ``[..., N]`` of ``out_dtype``, any strides; by default the result is fresh memory.
        out_dtype: bf16, whatever the dtype of ``a``, or fp16 or fp32.
        weight_layout: of packed ``b``: "row_major" or "preshuffled".
        scale_layout: of ``b_scales``: "row_major", "shuffled" or "swizzled_32_4_4" (see :meth:`MXTensor.wrap`).
        route: force one way to compute (see :func:`mxgemm.explain`).

    Returns:
        ``[..., N]``. Rows whose blocks hold a NaN or an infinity are NaN.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape, device, layout or name.
        RouteUnavailable: the named route cannot run here.
        RuntimeError: an input requires grad while gradients are recorded, or carries a forward-mode tangent; or the
            bytes of a weight were changed after :meth:`MXTensor.prepare`.
    """
    if (
        not is_compiling()
        and steady.quick is not None
        and (b_scales is None and weight_layout is _ROW_MAJOR and scale_layout is _ROW_MAJOR)
        and (done := steady.quick(b, a, bias, out, a_format, scale_rounding, out_dtype, route)) is not None
    ):
        return done
    if not isinstance(b, MXTensor):
        options = Options(
            a_format, "e2m1", scale_rounding, weight_layout, scale_layout, "row_major", out_dtype, route
        )  # fmt: skip
        product = ops.call_gemm if is_observed(a, b, b_scales, bias, out) else multiply
        return product(a, None, b, b_scales, bias, out, options)  # type: ignore[arg-type]  # None: validation says so
    if not (b_scales is None and weight_layout is _ROW_MAJOR and scale_layout is _ROW_MAJOR):
        validation.check_mx_weight(b, b_scales, weight_layout, scale_layout)
    observed = is_observed(a, b.data, b.scales, bias, out)
    named = (a_format, scale_rounding, out_dtype, route)
    if not observed:
        known = steady.call(a, b, bias, out, named)
        if known is not None:
            return known
    data, scales, layout, kind, derived = b.operand()
    options = Options(
        a_format, b.format.name, scale_rounding, layout.data, layout.scales, "row_major", out_dtype, route, kind,
        b_shape=b.shape,
    )  # fmt: skip
    if observed:
        b.check()
        return ops.call_gemm(a, None, data, scales, bias, out, options, derived)
    if b.prepared is not None and b.prepared.stamp is not None and not b.prepared.stamp.fresh():
        raise stale("b")
    if out is not None:
        validation.check_parts_apart(out, b=b)
    result = multiply(a, None, data, scales, bias, out, options, derived)
    steady.remember(a, b, bias, out, named, options)
    return result


def gemm_mx(
    a: MXTensor,
    b: MXTensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> Tensor:
    """Multiply two MX tensors: ``round(dequantize(a) @ dequantize(b).T + bias)``; formats may differ.

    Args:
        a: ``[..., K]`` in any format, row-major data.
        b: (N, K) in any format and layout.
        bias: as in :func:`gemm`.
        out: as in :func:`gemm`.
        out_dtype: as in :func:`gemm`.
        route: as in :func:`gemm`.

    Returns:
        ``[..., N]``.

    Raises:
        TypeError, ValueError, RouteUnavailable, RuntimeError: as in :func:`gemm`.
    """
    if not isinstance(a, MXTensor) or not isinstance(b, MXTensor):
        name, got = ("b", b) if isinstance(a, MXTensor) else ("a", a)
        raise TypeError(f"{name}: got {describe(got)}, want an MXTensor (see mxgemm.quantize)")
    validation.check_mx_activations(a)
    data, scales, layout, _, _ = b.operand()
    prepared = b.prepared
    options = Options(
        a.format.name, b.format.name, "even", layout.data, layout.scales, a.layout.scales, out_dtype, route,
        a_shape=a.shape, b_shape=b.shape,
    )  # fmt: skip
    if is_observed(a.data, a.scales, data, scales, bias, out):
        a.check()
        b.check()
        return ops.call_gemm(a.data, a.scales, data, scales, bias, out, options)
    if prepared is not None and prepared.stamp is not None and not prepared.stamp.fresh():
        raise stale("b")
    if out is not None:
        validation.check_parts_apart(out, a=a, b=b)
    return multiply(a.data, a.scales, data, scales, bias, out, options)
