"""The product of a layer with a frozen weight."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from mxgemm.ambient import is_differentiated, is_observed
from mxgemm.plan import multiply
from mxgemm.problem import Options


def is_recorded(x: Tensor, bias: Tensor | None) -> bool:
    """Say whether a product of these is to have gradients."""
    return torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))


def linear(
    x: Tensor, data: Tensor, scales: Tensor, bias: Tensor | None, options: Options, derived: tuple[Tensor, ...] = ()
) -> Tensor:
    """Return ``round(quantize(x) @ dequantize(weight).T + bias)``, with gradients where they are recorded.

    Without them an eager call goes past torch's dispatcher, as :func:`mxgemm.gemm` does.

    Args:
        x: ``[..., K]``, bf16, fp16 or fp32.
        data: bytes of an MXFP4 weight, or of the form of it that takes their place.
        scales: the same of its scales.
        bias: ``[N]`` or None.
        options: of the call; the result has the dtype of ``x``.
        derived: the form that is read beside the bytes.

    Raises:
        TypeError, ValueError: as :func:`mxgemm.gemm`.
        RuntimeError: torch.func or forward mode takes a derivative with respect to ``x``.
    """
    if not is_recorded(x, bias) and not is_observed(x, data, scales, bias):
        return multiply(x, None, data, scales, bias, None, options, derived)
    if not is_compiling() and is_differentiated(x):
        raise RuntimeError("x: torch.func or forward mode takes a derivative; a layer has those of autograd alone")
    o = options
    return torch.ops.mxgemm.mx_linear(  # type: ignore[no-any-return]
        x, data, scales, bias, o.a_format, o.scale_rounding, o.weight_layout, o.scale_layout, o.derived, *derived
    )
