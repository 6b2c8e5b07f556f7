"""Tensors to MX tensors, the same bytes everywhere: by a Triton kernel, by a C kernel, or by ``mxgemm.mx.codec``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mxgemm.ambient import is_differentiated, is_observed
from mxgemm.cpu import build, elements
from mxgemm.errors import Refusal
from mxgemm.memory import check_memory
from mxgemm.mx.codec import encode_rows, row_chunks
from mxgemm.mx.formats import BLOCK, ElementFormat, FormatName, ScaleRounding, element_format, scale_addend
from mxgemm.mx.layouts import ROW_MAJOR
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.triton.quantize import available, quantize_rows


def quantize(x: Tensor, *, format: FormatName = "e2m1", scale_rounding: ScaleRounding = "even") -> MXTensor:
    """Quantise to an MX format, in blocks of 32 along the last dimension.

    The scale rule is :func:`mxgemm.mx.formats.scale_addend`. Elements are divided by the scale, rounded to nearest
    (ties to even) and saturated; the sign of a zero is kept. A block of zeros gets scale byte 0 and codes 0. A
    block that holds a NaN or an infinity gets scale byte 255 and codes 0: it decodes to NaN, never to a number.

    Args:
        x: ``[..., K]``, bf16, fp16 or fp32, any strides, K % 32 == 0.
        format: "e2m1", "e4m3" or "e5m2".
        scale_rounding: "even", "floor", "ceil" or "rceil".

    Returns:
        a row-major :class:`MXTensor` on the same device. Its bytes carry no gradient, as torch's own conversions to
        integers do not: ``x`` may require grad, as a model's weights do.

    Raises:
        TypeError: ``x`` is not a tensor of one of those dtypes.
        ValueError: a wrong shape, format or rounding rule.
        RuntimeError: torch.func or forward mode takes a derivative with respect to ``x``.
    """
    fmt = check_quantizable(x, format, scale_rounding)
    if is_observed(x):
        if not torch.compiler.is_compiling():
            refuse_differentiated(x)
            x = x.detach()
        data, scales = torch.ops.mxgemm.quantize(x, fmt.name, scale_rounding)
    else:
        data, scales = encode(x, fmt.name, scale_rounding)
    return MXTensor(data, scales, fmt, tuple(x.shape), ROW_MAJOR)  # torch.compile does not trace that default


def refuse_differentiated(x: Tensor) -> None:
    """Refuse to quantise what a derivative is being taken with respect to: it would be lost without a word.

    Raises:
        RuntimeError: torch.func or forward mode takes one.
    """
    if is_differentiated(x):
        raise RuntimeError("x: a derivative is taken with respect to it, but bytes have none; detach() it")


def check_quantizable(x: object, format: str, scale_rounding: str) -> ElementFormat:
    """Check the arguments of :func:`quantize` and return the format.

    Raises:
        TypeError, ValueError: as :func:`quantize`.
    """
    if not isinstance(x, Tensor) or x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"x: got {describe(x)}, want a bf16, fp16 or fp32 tensor")
    check_memory("x", x)
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(f"x: got shape {tuple(x.shape)}, want a last dimension that is a multiple of {BLOCK}")
    fmt = element_format(format)
    scale_addend(fmt, scale_rounding)
    return fmt


def encode(x: Tensor, format: str, scale_rounding: str) -> tuple[Tensor, Tensor]:
    """Return the row-major bytes and scales of :func:`quantize`, eagerly.

    Raises:
        TypeError, ValueError: as :func:`quantize`.
    """
    data, scales = encoded_like(x, format, scale_rounding)
    if x.is_meta:
        return data, scales
    fmt = element_format(format)
    addend, k = scale_addend(fmt, scale_rounding), x.shape[-1]
    rows = math.prod(x.shape[:-1])
    # What follows reads bits, which a lazily negated view negates later.
    flat = x.detach().resolve_neg().reshape(rows, k)
    flat_data, flat_scales = data.view(rows, k // fmt.pack), scales.view(rows, k // BLOCK)
    if x.is_cuda and rows and k and available(x.device):
        with torch.cuda.device(x.device):
            quantize_rows(flat, fmt, addend, flat_data, flat_scales)
    elif x.device.type == "cpu" and rows and k and not isinstance(library := build.library(), Refusal):
        elements.encode(library, flat, fmt, addend, flat_data, flat_scales)
    else:
        for part in row_chunks(rows, k):
            flat_data[part], flat_scales[part] = encode_rows(flat[part], fmt, addend)
    return data, scales


def encoded_like(x: Tensor, format: str, scale_rounding: str) -> tuple[Tensor, Tensor]:
    """Return the memory of :func:`encode`, unfilled: all there is to it on meta or fake tensors."""
    fmt = check_quantizable(x, format, scale_rounding)
    *leading, k = x.shape
    data = torch.empty((*leading, k // fmt.pack), dtype=torch.uint8, device=x.device)
    return data, torch.empty((*leading, k // BLOCK), dtype=torch.uint8, device=x.device)
