"""Every check of the public calls, in one place, before anything is planned or launched.

TypeError for a wrong type or dtype, ValueError for a wrong shape, device, layout or name, RuntimeError for a
gradient that nobody would get. Each message names the argument, what it got and what it wants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad
from mxgemm.arguments import one_of
from mxgemm.memory import check_memory, extent, overlap, overlaps_itself
from mxgemm.mx.formats import (
    ACTIVATION_FORMATS,
    BLOCK,
    FORMATS,
    SCALE_ROUNDINGS,
    ElementFormat,
    element_format,
)
from mxgemm.mx.freshness import check_sources
from mxgemm.mx.layouts import (
    FRAGMENTS,
    SCALE_LAYOUTS,
    WEIGHT_LAYOUTS,
    Layout,
    fragment_refusal,
    preshuffle_refusal,
    scale_shape,
)
from mxgemm.mx.parts import DATA_DTYPES, SCALE_DTYPES, as_bytes, check_parts, describe
from mxgemm.mx.prepared import check_form
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.problem import Options
from mxgemm.routes import ROUTES

_FLOATS = "bf16, fp16 or fp32"


def check_call(
    a: Any, a_scales: Any, b: Any, b_scales: Any, bias: Any, out: Any, options: Options
) -> tuple[tuple[int, ...], int]:
    """Check a multiplication; ``a_scales`` is given where A comes quantised.

    Returns:
        A's leading dimensions and K.

    Raises:
        TypeError, ValueError, RuntimeError: see the module.
    """
    quantized = a_scales is not None
    b_format = element_format(options.b_format, "b_format")
    one_of("a_scale_layout", options.a_scale_layout, SCALE_LAYOUTS)
    check_names(
        a_format="e2m1" if quantized else options.a_format,
        scale_rounding=options.scale_rounding,
        weight_layout=options.weight_layout,
        scale_layout=options.scale_layout,
        route=options.route,
    )
    if quantized:
        *leading, k = check_quantized_activations(a, a_scales, options)
    else:
        check_activations(a)
        *leading, k = a.shape
    check_weight(b, b_scales, b_format, k, a.device, options.weight_layout, options.scale_layout)
    if options.b_shape not in (None, (b.shape[0], k)):
        raise ValueError(f"b: got bytes of shape {tuple(b.shape)} in an MXTensor of shape {options.b_shape}")
    check_epilogue(bias, out, options.out_dtype, b.shape[0], tuple(leading), a.device)
    check_no_grad(a=a, bias=bias, out=out)
    return tuple(leading), k


def check_names(
    *, a_format: str, scale_rounding: str, weight_layout: str, scale_layout: str, route: str | None
) -> None:
    """Check the options that are names."""
    for argument, got, allowed in (
        ("a_format", a_format, ACTIVATION_FORMATS),
        ("scale_rounding", scale_rounding, SCALE_ROUNDINGS),
        ("weight_layout", weight_layout, (*WEIGHT_LAYOUTS, FRAGMENTS)),
        ("scale_layout", scale_layout, (*SCALE_LAYOUTS, FRAGMENTS)),
        ("route", route, (None, *ROUTES)),
    ):
        if not (got is None or isinstance(got, str)) or got not in allowed:
            names = ", ".join(repr(name) for name in allowed)
            raise ValueError(f"{argument}: got {got!r}, want one of {names}")


def check_activations(a: Any) -> None:
    """Check A of :func:`mxgemm.gemm`."""
    if isinstance(a, MXTensor):
        raise TypeError("a: got an MXTensor, want a floating-point tensor (for two quantised operands see gemm_mx)")
    if not isinstance(a, Tensor) or a.dtype not in FLOAT_DTYPES:
        raise TypeError(f"a: got {describe(a)}, want a {_FLOATS} tensor [..., K]")
    check_memory("a", a)
    if a.dim() == 0:
        raise ValueError("a: got a scalar, want at least one dimension [..., K]")
    if a.shape[-1] % BLOCK:
        raise ValueError(f"a: got K = {a.shape[-1]} (shape {tuple(a.shape)}), want a multiple of {BLOCK}")


def check_quantized_activations(a: Any, a_scales: Any, options: Options) -> tuple[int, ...]:
    """Check A of :func:`mxgemm.gemm_mx`, given as bytes and scales, and return its logical shape."""
    fmt = element_format(options.a_format, "a_format")
    if not isinstance(a, Tensor):
        raise TypeError(f"a: got {describe(a)}, want a uint8 tensor [..., K/{fmt.pack}]")
    if a.dim() == 0:
        raise ValueError(f"a: got a scalar, want at least one dimension [..., K/{fmt.pack}]")
    shape = options.a_shape or (*a.shape[:-1], a.shape[-1] * fmt.pack)
    if shape[-1] % BLOCK:
        raise ValueError(f"a: got shape {tuple(a.shape)}, which holds K = {shape[-1]}; want a multiple of {BLOCK}")
    layout = Layout("row_major", options.a_scale_layout)  # type: ignore[arg-type]
    check_parts(a, a_scales, fmt, shape, layout, ("a", "a.scales"))
    return shape


def check_weight(
    b: Any,
    b_scales: Any,
    fmt: ElementFormat,
    k: int,
    device: torch.device,
    weight_layout: str,
    scale_layout: str,
) -> None:
    """Check B and its scales, given as tensors, against A's K and device."""
    if b_scales is None:
        raise TypeError("b_scales: got None, want the E8M0 scales of b (or pass b as an MXTensor, which has them)")
    as_bytes(b, "b", DATA_DTYPES[fmt.name])
    as_bytes(b_scales, "b_scales", SCALE_DTYPES)
    if b.dim() != 2:
        one = f"; one of its {b.shape[0]} matrices is b[e]" if b.dim() == 3 else ""
        raise ValueError(f"b: got shape {tuple(b.shape)}, want two dimensions [N, K/{fmt.pack}]{one}")
    n, columns = b.shape
    if columns != k // fmt.pack:
        raise ValueError(
            f"b: got shape {tuple(b.shape)}, which holds K = {columns * fmt.pack} elements of {fmt}; want K = {k}, "
            f"A's last dimension: [N, {k // fmt.pack}]"
        )
    if n < 1:
        raise ValueError(f"b: got shape {tuple(b.shape)}, want N of at least 1")
    if weight_layout == "preshuffled":
        reason = preshuffle_refusal(n, columns)
        if reason:
            raise ValueError(f"b: weight_layout is 'preshuffled', but {reason}")
    if FRAGMENTS in (weight_layout, scale_layout):
        reason = fragment_refusal(n, k)
        if reason or fmt.name != "e2m1" or weight_layout != scale_layout:
            words = reason or (f"{fmt} is not e2m1" if fmt.name != "e2m1" else "only one of bytes and scales is")
            raise ValueError(f"b: weight_layout or scale_layout is {FRAGMENTS!r}, but {words}")
    want = scale_shape(scale_layout, n, k)
    if tuple(b_scales.shape) != want:
        raise ValueError(
            f"b_scales: got shape {tuple(b_scales.shape)}, want {want} for N = {n}, K = {k} and "
            f"scale_layout {scale_layout!r}"
        )
    _same_device("b", b, device)
    _same_device("b_scales", b_scales, device)


def check_epilogue(bias: Any, out: Any, out_dtype: Any, n: int, leading: tuple[int, ...], device: torch.device) -> None:
    """Check bias, output and output dtype."""
    if not isinstance(out_dtype, torch.dtype) or out_dtype not in FLOAT_DTYPES:
        raise TypeError(f"out_dtype: got {out_dtype!r}, want torch.bfloat16, torch.float16 or torch.float32")
    if bias is not None:
        if not isinstance(bias, Tensor) or bias.dtype not in FLOAT_DTYPES:
            raise TypeError(f"bias: got {describe(bias)}, want a {_FLOATS} tensor [{n}]")
        check_memory("bias", bias)
        if tuple(bias.shape) != (n,):
            raise ValueError(f"bias: got shape {tuple(bias.shape)}, want ({n},)")
        _same_device("bias", bias, device)
    if out is not None:
        if not isinstance(out, Tensor) or out.dtype != out_dtype:
            raise TypeError(f"out: got {describe(out)}, want a {out_dtype} tensor (out_dtype says which)")
        check_memory("out", out)
        if tuple(out.shape) != (*leading, n):
            raise ValueError(f"out: got shape {tuple(out.shape)}, want {(*leading, n)}")
        _same_device("out", out, device)
        if overlaps_itself(out):
            raise ValueError(f"out: got strides {out.stride()}, want elements that do not share memory")


def check_no_alias(out: Tensor, inputs: dict[str, Tensor | None]) -> None:
    """Refuse an output that shares a byte with an input: results would depend on the order of stores."""
    start, stop = extent(out)
    for name, tensor in inputs.items():
        if tensor is None:
            continue
        low, high = extent(tensor)
        if low < stop and start < high and tensor.device == out.device and overlap(out, tensor):
            raise ValueError(f"out: shares memory with {name}, want memory of its own")


def check_parts_apart(out: Any, **operands: MXTensor) -> None:
    """Refuse an output that shares a byte with any part of an MX tensor, what ``prepare()`` made included."""
    if not isinstance(out, Tensor):
        return  # refused by check_epilogue
    check_memory("out", out)
    for name, operand in operands.items():
        check_no_alias(out, {f"{name}.data": operand.data, f"{name}.scales": operand.scales})
        if operand.prepared is not None:
            made = operand.prepared.tensors
            check_no_alias(out, {f"{name}.prepared.tensors[{i}]": tensor for i, tensor in enumerate(made)})


def check_mx_weight(b: MXTensor, b_scales: Any, weight_layout: str, scale_layout: str) -> None:
    """Check that the loose arguments do not contradict a weight that knows its own scales and layout."""
    if b_scales is not None:
        raise TypeError("b_scales: got a value although b is an MXTensor, which has its own; want None")
    for argument, got, own in (
        ("weight_layout", weight_layout, b.layout.data),
        ("scale_layout", scale_layout, b.layout.scales),
    ):
        if not isinstance(got, str) or got not in ("row_major", own):
            raise ValueError(f"{argument}: got {got!r}, but b is an MXTensor whose layout is {own!r}; leave it out")


def check_derived(b: Tensor, b_scales: Tensor, options: Options, tensors: tuple[Tensor, ...]) -> None:
    """Check what a torch operator got as the derived form of a weight, and that the weight is still what it was.

    A compiled graph calls the operator, past the MXTensor that would have noticed.
    """
    check_sources("b", tensors or (b, b_scales))
    kind, fmt = options.derived, FORMATS[options.b_format]
    if not kind and not tensors:
        return
    if b.dim() != 2:
        raise ValueError(f"derived_kind: got {kind!r} for b of {b.dim()} dimensions, want a matrix")
    check_form(kind, tensors, fmt, b.shape[0], b.shape[1] * fmt.pack, b.device)


def check_mx_activations(a: MXTensor) -> None:
    """Check the layout of A of :func:`mxgemm.gemm_mx`."""
    if a.layout.data != "row_major":
        raise ValueError("a: got preshuffled data, want row-major (see MXTensor.row_major)")


def _same_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name}: got device {tensor.device}, want {device} like a")
