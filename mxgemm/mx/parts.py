"""The parts of an MX tensor and the one check of them: element bytes, scale bytes, format, shape, layout.

Construction, loading, and every use that reads the bytes ask :func:`check_parts`, because torch lets a caller resize or
replace a tensor that an :class:`mxgemm.MXTensor` holds.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.memory import check_memory
from mxgemm.mx.formats import BLOCK, FORMATS, ElementFormat
from mxgemm.mx.layouts import FRAGMENTS, Layout, fragment_refusal, preshuffle_refusal, scale_shape

# What may be viewed as bytes where, so that another format's scales or elements are refused and not misread.
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)
_E8M0 = getattr(torch, "float8_e8m0fnu", None)
DATA_DTYPES: Final[dict[str, tuple[torch.dtype, ...]]] = {
    "e2m1": (torch.uint8,) if _FLOAT4 is None else (torch.uint8, _FLOAT4),
    "e4m3": (torch.uint8, torch.float8_e4m3fn),
    "e5m2": (torch.uint8, torch.float8_e5m2),
}
SCALE_DTYPES: Final[tuple[torch.dtype, ...]] = (torch.uint8,) if _E8M0 is None else (torch.uint8, _E8M0)


def check_parts(
    data: object,
    scales: object,
    fmt: object,
    shape: object,
    layout: object,
    names: tuple[str, str] = ("data", "scales"),
) -> None:
    """Check that bytes, scales, format, logical shape and layout belong together.

    Args:
        data: uint8 ``[..., K/pack]``.
        scales: uint8 ``[..., K/32]``, or shuffled or swizzled and padded.
        fmt: one of :data:`mxgemm.mx.formats.FORMATS`, the object itself.
        shape: ``(..., K)``, a tuple of integers.
        layout: of both.
        names: what messages call the two tensors.

    Raises:
        TypeError: a part of a wrong type or dtype.
        ValueError: an unknown format or layout, a wrong device, or shapes that do not belong together.
    """
    if not isinstance(fmt, ElementFormat):
        raise TypeError(f"format: got {describe(fmt)}, want an ElementFormat (MXTensor.wrap takes its name)")
    if not isinstance(layout, Layout):
        raise TypeError(f"layout: got {describe(layout)}, want a Layout")
    if FORMATS.get(fmt.name) is not fmt:
        raise ValueError(f"format: got {fmt!r}, want one of mxgemm.mx.formats.FORMATS")
    data, scales = _check_bytes(data, names[0]), _check_bytes(scales, names[1])
    if data.device != scales.device:
        raise ValueError(f"{names[1]}: got device {scales.device}, want {data.device} like {names[0]}")
    *leading, k = check_shape(shape)
    if (layout.data, layout.scales) != ("row_major", "row_major") and len(leading) != 1:
        raise ValueError(f"layout: got {layout} for shape {shape}, want two dimensions")
    want_data = (*leading, k // fmt.pack)
    if tuple(data.shape) != want_data:
        raise ValueError(f"{names[0]}: got shape {tuple(data.shape)}, want {want_data} for {fmt} of shape {shape}")
    if layout.data == "preshuffled":
        reason = preshuffle_refusal(*want_data)
        if reason:
            raise ValueError(f"{names[0]}: {reason}, so it cannot be preshuffled")
    if layout.data == FRAGMENTS:
        reason = fragment_refusal(leading[0], k)
        if reason or fmt.name != "e2m1":
            raise ValueError(f"{names[0]}: {reason or f'{fmt} is not e2m1'}, so it cannot be in fragment order")
    want_scales = (*leading, k // BLOCK) if layout.scales == "row_major" else scale_shape(layout.scales, leading[0], k)
    if tuple(scales.shape) != want_scales:
        raise ValueError(f"{names[1]}: got shape {tuple(scales.shape)}, want {want_scales} ({layout.scales})")


def check_shape(shape: object) -> tuple[int, ...]:
    """Check a logical shape ``(..., K)`` and return it.

    Raises:
        TypeError: no tuple of integers.
        ValueError: no dimension, or K is not a multiple of 32.
    """
    if not isinstance(shape, tuple) or not all(
        isinstance(size, (int, torch.SymInt)) and not isinstance(size, bool) for size in shape
    ):
        raise TypeError(f"shape: got {shape!r}, want a tuple of integers")
    if not shape or shape[-1] % BLOCK:
        raise ValueError(f"shape: got {shape}, want a last dimension that is a multiple of {BLOCK}")
    return shape


def as_bytes(tensor: object, name: str, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    """View a tensor of one-byte elements as uint8.

    torch's ``float4_e2m1fn_x2`` and ``float8_e8m0fnu`` have neither comparison nor indexing, so nothing behind
    this boundary sees them.

    Raises:
        TypeError: not a tensor of one of ``dtypes``.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name}: got {describe(tensor)}, want a tensor of {wanted}")
    check_memory(name, tensor)
    tensor = tensor.resolve_neg()
    return tensor if tensor.dtype == torch.uint8 else tensor.view(torch.uint8)


def describe(value: object) -> str:
    """Name a value in an error message: a tensor by dtype and shape, anything else by type."""
    if isinstance(value, Tensor):
        of_shape = "" if value.is_nested else f" of shape {tuple(value.shape)}"  # a nested tensor has none
        return f"a {value.dtype} tensor{of_shape}"
    return f"{type(value).__name__} {value!r}" if isinstance(value, (int, float, str)) else type(value).__name__


def _check_bytes(tensor: object, name: str) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.uint8:
        raise TypeError(f"{name}: got {describe(tensor)}, want a uint8 tensor (see MXTensor.wrap)")
    check_memory(name, tensor, as_it_lies=True)
    return tensor
