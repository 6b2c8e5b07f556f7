"""Every check of ``quant_gemm``, before anything is planned or launched; the rest is :mod:`mxgemm.validation`'s.

TypeError for a wrong type or dtype, ValueError for a wrong shape, device, scheme or name; each message names the
argument, what it got and what it wants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad
from mxgemm.memory import check_memory
from mxgemm.mx.parts import describe
from mxgemm.scaled.formats import FORMATS, SCALE_DTYPES, QuantFormat, ScaleName, quant_format
from mxgemm.scaled.problem import Options
from mxgemm.scaled.schemes import Scheme, check_scheme
from mxgemm.validation import check_epilogue


def check_call(
    a: Any, a_scales: Any, b: Any, b_scales: Any, bias: Any, out: Any, options: Options
) -> tuple[tuple[int, ...], int, int]:
    """Check a multiplication.

    Returns:
        A's leading dimensions, N and K.

    Raises:
        TypeError, ValueError, RuntimeError: see the module.
    """
    scheme = check_formats(options)
    leading, k = check_elements("a", a, options.a_format, "[..., K]", 1)
    (n,), k_of_b = check_elements("b", b, options.b_format, "[N, K]", 2)
    check_sizes(n, k, k_of_b, options)
    check_scales("a.scales", a_scales, scheme.a_scale_shape(leading, k), a_names(options), a.device)
    check_scales("b.scales", b_scales, scheme.b_scale_shape(n, k), b_names(options), a.device)
    check_device("b", b, a.device)
    check_epilogue(bias, out, options.out_dtype, n, leading, a.device)
    check_no_grad(**{"a": a, "a.scales": a_scales, "b": b, "b.scales": b_scales, "bias": bias, "out": out})
    return leading, n, k


def check_grouped(
    a: Any, a_scales: Any, b: Any, b_scales: Any, offsets: Any, out: Any, options: Options
) -> tuple[int, int, int, int]:
    """Check the grouped form by offsets.

    Returns:
        G, M, N and K.

    Raises:
        TypeError, ValueError, RuntimeError: see the module.
    """
    scheme = check_formats(options)
    leading, k = check_elements("a", a, options.a_format, "[M, K]", 2)
    (groups, n), k_of_b = check_elements("b", b, options.b_format, "[G, N, K]", 3)
    if groups < 1:
        raise ValueError(f"b: got shape {tuple(b.shape)}, want G of at least 1")
    check_sizes(n, k, k_of_b, options)
    one = scheme.b_scale_shape(n, k)
    stack = None if one is None else (groups,) if scheme.b_kind == "tensor" else (groups, *one)
    check_scales("a.scales", a_scales, scheme.a_scale_shape(leading, k), a_names(options), a.device)
    check_scales("b.scales", b_scales, stack, b_names(options), a.device)
    check_device("b", b, a.device)
    if not isinstance(offsets, Tensor) or offsets.dtype != torch.int32:
        raise TypeError(f"offsets: got {describe(offsets)}, want an int32 tensor [{groups}]")
    check_memory("offsets", offsets, as_it_lies=True)
    if tuple(offsets.shape) != (groups,):
        raise ValueError(f"offsets: got shape {tuple(offsets.shape)}, want ({groups},), the end of each group")
    check_device("offsets", offsets, a.device)
    check_epilogue(None, out, options.out_dtype, n, leading, a.device)
    check_no_grad(**{"a": a, "a.scales": a_scales, "b": b, "b.scales": b_scales, "out": out})
    return groups, leading[0], n, k


def check_formats(options: Options) -> Scheme:
    """Check the scheme and that it multiplies these formats."""
    scheme = check_scheme(options.scheme)
    a, b = quant_format(options.a_format, "a.format"), quant_format(options.b_format, "b.format")
    if not scheme.allows(a.name, b.name):
        pairs = [f"{', '.join(left)} by {', '.join(right)}" for left, right in scheme.pairs]
        if scheme.name == "bquant":
            pairs = ["bf16 by bf16, e4m3, e5m2, e2m1" if scheme.b_powers else "fp8 by fp8 or int4"]
        raise ValueError(f"a, b: got {a.name} by {b.name}, want what {scheme} multiplies: {' or '.join(pairs)}")
    if "any" not in (a.family, b.family) and a.family != b.family:
        raise ValueError(f"b: got {b.name} beside {a.name} of a, want both OCP or both FNUZ: no machine mixes them")
    return scheme


def check_elements(name: str, data: Any, fmt: str, wanted: str, dims: int) -> tuple[tuple[int, ...], int]:
    """Check stored elements; return their leading dimensions and K."""
    form: QuantFormat = FORMATS[fmt]
    if not isinstance(data, Tensor) or data.dtype not in form.dtypes:
        dtypes = " or ".join(str(dtype).removeprefix("torch.") for dtype in form.dtypes)
        raise TypeError(f"{name}: got {describe(data)}, want a tensor of {dtypes} for format {fmt}")
    check_memory(name, data)
    least_only = wanted.startswith("[...")
    if data.dim() < dims or (data.dim() > dims and not least_only):
        raise ValueError(f"{name}: got shape {tuple(data.shape)}, want {wanted}")
    *leading, columns = data.shape
    return tuple(leading), columns * form.pack


def check_sizes(n: int, k: int, k_of_b: int, options: Options) -> None:
    """Check N, and K of both operands."""
    if k_of_b != k:
        raise ValueError(f"b: got K = {k_of_b}, want {k}, as a ({options.a_format} by {options.b_format})")
    if n < 1:
        raise ValueError(f"b: got N = {n}, want at least 1")


def a_names(options: Options) -> tuple[ScaleName, ...]:
    """Return how A's scales may be stored."""
    return ("fp32", "e4m3", "e5m2") if options.a_format == "int4" else ("fp32",)


def b_names(options: Options) -> tuple[ScaleName, ...]:
    """Return how B's scales may be stored."""
    if options.scheme.b_powers:
        return ("e8m0",)
    return ("fp32", "e4m3", "e5m2") if options.b_format == "int4" else ("fp32",)


def scale_name(scales: Tensor | None) -> ScaleName:
    """Return how scales are stored, "fp32" where there are none."""
    if scales is None:
        return "fp32"
    return next((name for name, dtypes in SCALE_DTYPES.items() if scales.dtype in dtypes), "fp32")


def check_scales(
    name: str, scales: Any, shape: tuple[int, ...] | None, names: tuple[ScaleName, ...], device: torch.device
) -> None:
    """Check scales against the shape that the scheme wants; None where it wants none."""
    if shape is None:
        if scales is not None:
            raise ValueError(f"{name}: got {describe(scales)}, want none: the scheme gives this side no scales")
        return
    if scales is None:
        raise TypeError(f"{name}: got none, want scales of shape {shape} (pass a QuantTensor)")
    dtypes = [dtype for each in names for dtype in SCALE_DTYPES[each]]
    if not isinstance(scales, Tensor) or scales.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name}: got {describe(scales)}, want a tensor of {wanted}")
    check_memory(name, scales)
    if tuple(scales.shape) != shape and not (shape == (1,) and scales.dim() == 0):
        raise ValueError(f"{name}: got shape {tuple(scales.shape)}, want {shape}")
    check_device(name, scales, device)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Check that a tensor is where A is."""
    if tensor.device != device:
        raise ValueError(f"{name}: got device {tensor.device}, want {device} like a")
