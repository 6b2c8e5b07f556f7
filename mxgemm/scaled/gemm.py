"""The public product of two quantised operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad, is_observed
from mxgemm.arguments import shown
from mxgemm.scaled import ops
from mxgemm.scaled.plan import multiply
from mxgemm.scaled.problem import Options
from mxgemm.scaled.schemes import Scheme
from mxgemm.scaled.tensor import QuantTensor, format_of

Operand = QuantTensor | Tensor


def quant_gemm(
    a: Operand,
    b: Operand,
    *,
    scheme: Scheme,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> Tensor:
    """Multiply two quantised operands: ``round(dequantize(a) @ dequantize(b).T + bias)``.

    Elements are decoded exactly, the sums of each group along K are scaled and added in fp32, and the result is rounded
    once. The schemes, formats and formulas are those of CK Tile's block-scale kernels (docs/quant-gemm.md).

    Args:
        a: ``[..., K]``, a :class:`QuantTensor`, or a plain fp8 or bf16 tensor where the scheme gives A no scales. Any
            strides.
        b: ``[N, K]``, likewise. A ``[K, N]`` matrix is given as its transpose, whose strides are taken as they are.
        scheme: where the scales are: :class:`TensorWise`, :class:`RowCol`, :class:`ABlock`, :class:`ABBlock` or
            :class:`BBlock`. K need be no multiple of a group: the last one is cut.
        bias: ``[N]``, bf16, fp16 or fp32, added in fp32.
        out: write here, ``[..., N]`` of ``out_dtype``, any strides; by default the result is fresh memory.
        out_dtype: bf16, fp16 or fp32.
        route: "mx", "triton", "scaled_mm", "unpack_mm", "dequant_mm", "reference", or "bridge", which is taken where it
            is named alone.

    Returns:
        ``[..., N]``. A NaN among the elements or scales that a result reads makes it NaN.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape, device, format or name, or formats that the scheme does not multiply.
        RouteUnavailable: the named route cannot run here.
        RuntimeError: an input requires grad while gradients are recorded, or carries a forward-mode tangent.
    """
    (a_data, a_scales, a_format), (b_data, b_scales, b_format) = parts("a", a), parts("b", b)
    options = Options(scheme, a_format, b_format, out_dtype, route)
    if is_observed(a_data, a_scales, b_data, b_scales, bias, out):
        check_no_grad(
            **{"a": a_data, "a.scales": a_scales, "b": b_data, "b.scales": b_scales, "bias": bias, "out": out}
        )
        return ops.call(a_data, a_scales, b_data, b_scales, bias, out, options)
    return multiply(a_data, a_scales, b_data, b_scales, bias, out, options)


def parts(argument: str, operand: Any) -> tuple[Tensor, Tensor | None, str]:
    """Return an operand's elements, scales and format.

    Raises:
        TypeError: it is no operand, or a tensor whose dtype does not say its format.
    """
    if isinstance(operand, QuantTensor):
        return operand.data, operand.scales, operand.format
    if isinstance(operand, Tensor):
        return operand, None, format_of(argument, operand)
    raise TypeError(f"{argument}: got {shown(operand)}, want a QuantTensor or a tensor (see mxgemm.quantize_for)")
