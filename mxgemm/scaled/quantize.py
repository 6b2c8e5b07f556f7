"""Floating-point tensors to operands of ``quant_gemm``, by torch code that gives the same bytes on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from mxgemm.arguments import one_of
from mxgemm.memory import check_memory
from mxgemm.mx.codec import decode_scales
from mxgemm.mx.formats import E8M0_NAN
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import FLOAT_DTYPES
from mxgemm.quantize import refuse_differentiated
from mxgemm.scaled.formats import FP8, QuantFormat, quant_format
from mxgemm.scaled.schemes import Kind, Scheme, check_scheme
from mxgemm.scaled.tensor import QuantTensor

LEAST_SCALE: Final = 2.0**-126
"""fp32's smallest normal number: no GPU flushes it, and no element divided by it is infinite for want of a scale."""
_MANTISSA: Final = (1 << 23) - 1


def quantize_for(
    x: Tensor,
    scheme: Scheme,
    side: Literal["a", "b"],
    *,
    format: str = "e4m3",
    scale_dtype: torch.dtype = torch.float32,
) -> QuantTensor | Tensor:
    """Quantise an operand for a scheme.

    The scale of what shares one (a tensor, a row, a group) is ``max(|x|) / format.max``, in fp32, so that the largest
    element becomes the format's largest (DeepSeek-V3's and torchao's rule); with E8M0 scales the least power of two
    that is not below that. A code is ``x / scale``, rounded to nearest, ties to even, saturated. What is all zeros gets
    scale 1 and zeros; what holds a NaN or an infinity gets a NaN for its scale. For a side that the scheme gives no
    scales, ``x`` is only converted (saturated): the caller's values must suit the format.

    fp32 scales of groups of one row lie as the vendor's kernels read them, rows contiguous (strides ``(1, rows)``); all
    others along K.

    Args:
        x: A ``[..., K]`` or B ``[N, K]`` (``[G, N, K]`` for the grouped form), bf16, fp16 or fp32, any strides.
        scheme: where the scales are.
        side: "a" or "b".
        format: of the elements: "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1", "int4" (-7 to 7), "bf16".
        scale_dtype: fp32; beside "int4" also ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``: the scale is rounded to
            it first, and elements are divided by what it became. E8M0 is the scheme's, whatever is said here.

    Returns:
        A :class:`QuantTensor`, or a tensor of the format's dtype for a side without scales.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: an unknown name, a format that the scheme does not take on this side, or a wrong shape.
        RuntimeError: torch.func or forward mode takes a derivative with respect to ``x``.
    """
    check_scheme(scheme)
    one_of("side", side, ("a", "b"))
    fmt = quant_format(format)
    _check_format(scheme, side, fmt, scale_dtype)
    _check_values(x, fmt, side)
    if not torch.compiler.is_compiling():  # which asks this at the operators that it meets
        refuse_differentiated(x)
        x = x.resolve_neg()
    x = x.detach()
    kind = scheme.a_kind if side == "a" else scheme.b_kind
    if kind == "none":
        return _rounded(x.to(torch.float32), fmt)
    group = (1, scheme.a_group) if side == "a" else scheme.b_group
    values = x.to(torch.float32)
    amax = _largest(values, kind, group, side)
    powers = side == "b" and scheme.b_powers
    scales = _powers(amax, fmt) if powers else _quotients(amax, fmt, scale_dtype)
    shown = decode_scales(scales) if powers else scales.to(torch.float32)
    bad = shown.isnan()
    divisor = _spread(torch.where(bad, torch.ones_like(shown), shown), kind, group, values.shape)
    codes = torch.where(_spread(bad, kind, group, values.shape), torch.zeros_like(values), values / divisor)
    return QuantTensor(_rounded(codes, fmt), scales if powers else _laid(scales, kind, group), fmt.name)


def _check_format(scheme: Scheme, side: str, fmt: QuantFormat, scale_dtype: object) -> None:
    others = ("e4m3", "e4m3fnuz", "e2m1", "int4", "bf16")
    fits = any(scheme.allows(*((fmt.name, other) if side == "a" else (other, fmt.name))) for other in others)
    if not fits:
        raise ValueError(f"format: got {fmt.name!r}, want one that {scheme} takes for {side}")
    allowed: tuple[torch.dtype, ...] = (torch.float32,)
    if fmt.name == "int4":
        allowed += (torch.float8_e4m3fn, torch.float8_e5m2)
    if scale_dtype not in allowed:
        wanted = " or ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"scale_dtype: got {scale_dtype!r}, want {wanted} for format {fmt.name}")


def _check_values(x: object, fmt: QuantFormat, side: str) -> None:
    if not isinstance(x, Tensor) or x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"x: got {describe(x)}, want a bf16, fp16 or fp32 tensor")
    check_memory("x", x)
    least = 1 if side == "a" else 2
    if x.dim() < least or (side == "b" and x.dim() > 3):
        want = "[..., K]" if side == "a" else "[N, K] or [G, N, K]"
        raise ValueError(f"x: got shape {tuple(x.shape)}, want {want}")
    if x.shape[-1] % fmt.pack:
        raise ValueError(f"x: got K = {x.shape[-1]}, want an even one: two elements of {fmt.name} share a byte")


def _padded(x: Tensor, group: tuple[int, int]) -> Tensor:
    """Return ``[..., rows/n, n, K/k, k]``, zeros where the last groups reach further than ``x``."""
    n, k = group
    rows = x if n == 1 else torch.nn.functional.pad(x, (0, 0, 0, -x.shape[-2] % n))
    rows = torch.nn.functional.pad(rows, (0, -x.shape[-1] % k))
    lead: Sequence[int] = x.shape[:-1] if n == 1 else (*x.shape[:-2], rows.shape[-2] // n)
    return rows.reshape(*lead, n, rows.shape[-1] // k, k)


def _largest(x: Tensor, kind: Kind, group: tuple[int, int], side: str) -> Tensor:
    """Return the largest magnitude of what shares a scale, NaN where it holds one."""
    if kind == "tensor":
        if side == "b" and x.dim() == 3:  # one a matrix
            return x.abs().flatten(1).amax(1) if x[0].numel() else x.new_zeros(x.shape[0])
        return x.abs().amax().reshape(1) if x.numel() else x.new_zeros(1)
    if kind == "row":
        return x.abs().amax(-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])
    blocks = _padded(x, group).abs()
    return blocks.amax((-3, -1)) if blocks.numel() else blocks.new_zeros((*blocks.shape[:-3], blocks.shape[-2]))


def _quotients(amax: Tensor, fmt: QuantFormat, dtype: torch.dtype) -> Tensor:
    scale = (amax / fmt.max).clamp(min=LEAST_SCALE)
    scale = torch.where(amax == 0, torch.ones_like(scale), scale)
    scale = torch.where(amax.isfinite(), scale, torch.full_like(scale, torch.nan))
    if dtype is torch.float32:
        return scale
    info = torch.finfo(dtype)
    return scale.clamp(info.smallest_normal, info.max).to(dtype)


def _powers(amax: Tensor, fmt: QuantFormat) -> Tensor:
    scale = (amax / fmt.max).clamp(min=LEAST_SCALE)
    exponent = (scale.view(torch.int32) + _MANTISSA) >> 23  # up to the next power of two, unless it is one
    exponent = torch.where(amax == 0, torch.full_like(exponent, 127), exponent.clamp(max=254))
    return torch.where(amax.isfinite(), exponent, torch.full_like(exponent, E8M0_NAN)).to(torch.uint8)


def _spread(scales: Tensor, kind: Kind, group: tuple[int, int], shape: Sequence[int]) -> Tensor:
    """Return a scale for each element."""
    if kind == "tensor":
        return scales if scales.numel() == 1 else scales.view(-1, 1, 1)
    if kind == "row":
        return scales.unsqueeze(-1)
    n, k = group
    wide = scales.repeat_interleave(k, -1)[..., : shape[-1]]
    return wide if n == 1 else wide.repeat_interleave(n, -2)[..., : shape[-2], :]


def _laid(scales: Tensor, kind: Kind, group: tuple[int, int]) -> Tensor:
    if kind != "group" or scales.dim() < 2 or group[0] != 1:
        return scales
    return scales.transpose(-1, -2).contiguous().transpose(-1, -2)


def _rounded(x: Tensor, fmt: QuantFormat) -> Tensor:
    """Round fp32 values to a format's elements, to nearest even, saturating; NaN stays NaN where the format has one."""
    if fmt.name == "bf16":
        return x.to(torch.bfloat16)
    if fmt.name in FP8:
        assert fmt.dtype is not None
        return x.clamp(-fmt.max, fmt.max).to(fmt.dtype)
    if fmt.name == "int4":
        codes = (x.round().clamp(-fmt.max, fmt.max).nan_to_num() + 8).to(torch.uint8)
        return codes[..., 0::2] << 4 | codes[..., 1::2]
    magnitude = x.abs().clamp(max=fmt.max).nan_to_num()
    # Steps of a half below 2, of one below 4, of two above; rounding to even in units of the step.
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    value = (magnitude / step).round() * step
    code = torch.where(value < 2, value * 2, torch.where(value < 4, value + 2, value / 2 + 4)).to(torch.uint8)
    codes = code | (torch.signbit(x).to(torch.uint8) << 3)
    return codes[..., 0::2] | codes[..., 1::2] << 4
