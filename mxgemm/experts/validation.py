"""Every check of ``grouped_gemm`` and ``moe``, before anything is planned or launched.

TypeError for a wrong type or dtype, ValueError for a wrong shape, device, layout or name; each message names the
argument, what it got and what it wants. What offsets, ids and indices hold is never looked at.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad
from mxgemm.arguments import one_of
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.problem import Options
from mxgemm.memory import check_memory, overlaps_itself
from mxgemm.mx.formats import ACTIVATION_FORMATS, SCALE_ROUNDINGS, element_format
from mxgemm.mx.layouts import ROW_MAJOR
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.problem import Options as GemmOptions
from mxgemm.validation import check_activations, check_quantized_activations

_FLOATS = "bf16, fp16 or fp32"


def check_weight(name: str, w: Any) -> MXTensor:
    """Check that a weight is a row-major stack of experts."""
    if not isinstance(w, MXTensor):
        raise TypeError(f"{name}: got {describe(w)}, want an MXTensor (E, N, K) (see MXTensor.wrap)")
    if len(w.shape) != 3 or w.shape[0] < 1 or w.shape[1] < 1:
        raise ValueError(f"{name}: got shape {w.shape}, want (E, N, K), E and N at least 1")
    if w.layout != ROW_MAJOR:
        raise ValueError(f"{name}: got a {w.layout} tensor, want row-major (see MXTensor.row_major)")
    return w


def check_grouped(
    a: Any, a_scales: Any, w: Tensor, w_scales: Tensor, offsets: Any, gather: Any, bias: Any, out: Any, options: Options
) -> tuple[int, int, int, int, int]:
    """Check a grouped product; return (rows, rows of A, N, K, E).

    Raises:
        TypeError, ValueError, RuntimeError: see the module.
    """
    o = options
    check_formats(o.a_format, o.scale_rounding, a_scales is not None)
    experts, n, columns = w.shape
    k = columns * element_format(o.b_format, "w.format").pack
    if o.w_shape not in (None, (experts, n, k)):
        raise ValueError(f"w: got bytes of shape {tuple(w.shape)} in an MXTensor of shape {o.w_shape}")
    a_rows = check_rows(a, a_scales, k, o)
    device = a.device
    for part, tensor in (("w", w), ("w.scales", w_scales)):
        check_memory(part, tensor)
        check_device(part, tensor, device)
    check_index("offsets", offsets, (experts + 1,), device)
    rows = a_rows
    if gather is not None:
        check_index("gather", gather, None, device)
        rows = gather.shape[0]
        if rows and not a_rows:
            raise ValueError(f"gather: got {rows} rows of an empty a, want none")
    check_bias("bias", bias, (experts, n), device)
    check_out(out, o.out_dtype, (rows, n), device)
    check_no_grad(a=a, bias=bias, out=out)
    return rows, a_rows, n, k, experts


def check_moe(
    x: Any,
    w13: MXTensor,
    w2: MXTensor,
    topk_ids: Any,
    topk_weights: Any,
    activation: Any,
    b13: Any,
    b2: Any,
    expert_map: Any,
    out: Any,
    a_format: str,
    scale_rounding: str,
    out_dtype: torch.dtype,
) -> tuple[tuple[int, ...], int]:
    """Check a layer of experts; return the leading dimensions of its tokens, and how many experts each has.

    Raises:
        TypeError, ValueError, RuntimeError: see the module.
    """
    check_formats(a_format, scale_rounding, False)
    if not isinstance(activation, SwiGLU):
        raise TypeError(f"activation: got {describe(activation)}, want a mxgemm.SwiGLU")
    experts, n, hidden = w13.shape
    if n % 2:
        raise ValueError(f"w13: got shape {w13.shape}, want an even number of rows, those of gate and up")
    if w2.shape != (experts, w2.shape[1], n // 2):
        raise ValueError(f"w2: got shape {w2.shape}, want ({experts}, H, {n // 2}) beside w13 of {w13.shape}")
    check_activations(x)
    if x.shape[-1] != hidden:
        raise ValueError(f"x: got K = {x.shape[-1]} (shape {tuple(x.shape)}), want {hidden}, as w13")
    leading, device = tuple(x.shape[:-1]), x.device
    for name, w in (("w13", w13), ("w2", w2)):
        for part, tensor in ((f"{name}.data", w.data), (f"{name}.scales", w.scales)):
            check_memory(part, tensor)
            check_device(part, tensor, device)
    if not isinstance(topk_ids, Tensor) or topk_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"topk_ids: got {describe(topk_ids)}, want an int32 or int64 tensor [..., top_k]")
    if topk_ids.shape[:-1] != leading or topk_ids.dim() != x.dim() or not topk_ids.shape[-1]:
        raise ValueError(f"topk_ids: got shape {tuple(topk_ids.shape)}, want {(*leading, 'top_k')}, top_k at least 1")
    if not isinstance(topk_weights, Tensor) or topk_weights.dtype not in FLOAT_DTYPES:
        raise TypeError(f"topk_weights: got {describe(topk_weights)}, want a {_FLOATS} tensor like topk_ids")
    if topk_weights.shape != topk_ids.shape:
        raise ValueError(f"topk_weights: got shape {tuple(topk_weights.shape)}, want {tuple(topk_ids.shape)}")
    for name, tensor in (("topk_ids", topk_ids), ("topk_weights", topk_weights)):
        check_memory(name, tensor)
        check_device(name, tensor, device)
    check_bias("b13", b13, (experts, n), device)
    check_bias("b2", b2, (experts, w2.shape[1]), device)
    if expert_map is not None:
        check_index("expert_map", expert_map, None, device)
        if not expert_map.shape[0]:
            raise ValueError("expert_map: got no elements, want one for each expert of the model")
    check_out(out, out_dtype, (*leading, w2.shape[1]), device)
    check_no_grad(x=x, topk_weights=topk_weights, b13=b13, b2=b2, out=out)
    return leading, topk_ids.shape[-1]


def check_formats(a_format: Any, scale_rounding: Any, quantized: bool) -> None:
    """Check the names of a format of A and of a rule for its scales."""
    if not quantized:
        one_of("a_format", a_format, ACTIVATION_FORMATS)
    one_of("scale_rounding", scale_rounding, SCALE_ROUNDINGS)


def check_rows(a: Any, a_scales: Any, k: int, options: Options) -> int:
    """Check A, floats or bytes, of two dimensions; return its rows."""
    if a_scales is None:
        check_activations(a)
        shape = tuple(a.shape)
    else:
        shape = check_quantized_activations(a, a_scales, GemmOptions(options.a_format, a_shape=options.a_shape))
    if len(shape) != 2 or shape[1] != k:
        raise ValueError(f"a: got shape {shape}, want [T, {k}], K as w")
    return int(shape[0])


def check_index(name: str, index: Any, shape: tuple[int, ...] | None, device: torch.device) -> None:
    """Check an int32 vector on A's device; ``shape`` None for one of any length."""
    if not isinstance(index, Tensor) or index.dtype != torch.int32:
        raise TypeError(f"{name}: got {describe(index)}, want an int32 tensor")
    check_memory(name, index)
    if index.dim() != 1 or (shape is not None and tuple(index.shape) != shape):
        raise ValueError(f"{name}: got shape {tuple(index.shape)}, want {'one dimension' if shape is None else shape}")
    check_device(name, index, device)


def check_bias(name: str, bias: Any, shape: tuple[int, ...], device: torch.device) -> None:
    """Check a bias of every expert, or None."""
    if bias is None:
        return
    if not isinstance(bias, Tensor) or bias.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name}: got {describe(bias)}, want a {_FLOATS} tensor {list(shape)}")
    check_memory(name, bias)
    if tuple(bias.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(bias.shape)}, want {shape}")
    check_device(name, bias, device)


def check_out(out: Any, out_dtype: Any, shape: tuple[int, ...], device: torch.device) -> None:
    """Check the output and its dtype."""
    if not isinstance(out_dtype, torch.dtype) or out_dtype not in FLOAT_DTYPES:
        raise TypeError(f"out_dtype: got {out_dtype!r}, want torch.bfloat16, torch.float16 or torch.float32")
    if out is None:
        return
    if not isinstance(out, Tensor) or out.dtype != out_dtype:
        raise TypeError(f"out: got {describe(out)}, want a {out_dtype} tensor (out_dtype says which)")
    check_memory("out", out)
    if tuple(out.shape) != shape:
        raise ValueError(f"out: got shape {tuple(out.shape)}, want {shape}")
    check_device("out", out, device)
    if overlaps_itself(out):
        raise ValueError(f"out: got strides {out.stride()}, want elements that do not share memory")


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Check that a tensor is where A is."""
    if tensor.device != device:
        raise ValueError(f"{name}: got device {tensor.device}, want {device} like the activations")


def rows_of(leading: tuple[int, ...]) -> int:
    """Return the tokens that leading dimensions hold."""
    return math.prod(leading)
