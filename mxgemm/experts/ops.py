"""``torch.ops.mxgemm.grouped_gemm`` and ``moe``: what looks at calls from inside torch sees.

The conventions are those of :mod:`mxgemm.ops`. An activation is its four numbers.
"""

# No `from __future__ import annotations`: torch reads the schema from the annotations themselves.

from typing import Any

import torch
from torch import Tensor

from mxgemm import batching
from mxgemm.experts import layer, plan
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.problem import Options
from mxgemm.experts.steps import LayerOptions
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import MXTensor


@torch.library.custom_op("mxgemm::grouped_gemm", mutates_args=())
def grouped_gemm_op(
    a: Tensor,
    w: Tensor,
    w_scales: Tensor,
    offsets: Tensor,
    gather: Tensor | None = None,
    bias: Tensor | None = None,
    a_scales: Tensor | None = None,
    a_format: str = "e2m1",
    b_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype | None = None,
    route: str | None = None,
) -> Tensor:
    """``mxgemm.grouped_gemm`` on tensors; bf16 unless ``out_dtype`` says otherwise."""
    options = Options(a_format, b_format, scale_rounding, out_dtype or torch.bfloat16, route)
    return plan.multiply(a, a_scales, w, w_scales, offsets, gather, bias, None, options)


@grouped_gemm_op.register_fake
def _(  # type: ignore[no-untyped-def]
    a, w, w_scales, offsets, gather=None, bias=None, a_scales=None, a_format="e2m1", b_format="e2m1",
    scale_rounding="even", out_dtype=None, route=None,
):  # fmt: skip
    options = Options(a_format, b_format, scale_rounding, out_dtype or torch.bfloat16, route)
    return plan.output_like(a, a_scales, w, w_scales, offsets, gather, bias, None, options)


@torch.library.custom_op("mxgemm::moe", mutates_args=())
def moe_op(
    x: Tensor,
    w13: Tensor,
    w13_scales: Tensor,
    w2: Tensor,
    w2_scales: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    alpha: float,
    limit: float | None,
    interleaved: bool,
    offset: float,
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    expert_map: Tensor | None = None,
    first_expert: int = 0,
    a_format: str = "e2m1",
    b_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype | None = None,
    route: str | None = None,
) -> Tensor:
    """``mxgemm.moe`` on tensors; bf16 unless ``out_dtype`` says otherwise."""
    options = _layer(alpha, limit, interleaved, offset, first_expert, a_format, scale_rounding, out_dtype, route)
    return layer.run(
        x, _stack(w13, w13_scales, b_format), _stack(w2, w2_scales, b_format), topk_ids, topk_weights, b13, b2,
        expert_map, None, options,
    )  # fmt: skip


@moe_op.register_fake
def _(  # type: ignore[no-untyped-def]
    x, w13, w13_scales, w2, w2_scales, topk_ids, topk_weights, alpha, limit, interleaved, offset, b13=None, b2=None,
    expert_map=None, first_expert=0, a_format="e2m1", b_format="e2m1", scale_rounding="even", out_dtype=None,
    route=None,
):  # fmt: skip
    options = _layer(alpha, limit, interleaved, offset, first_expert, a_format, scale_rounding, out_dtype, route)
    return layer.output_like(
        x, _stack(w13, w13_scales, b_format), _stack(w2, w2_scales, b_format), topk_ids, topk_weights, b13, b2,
        expert_map, None, options,
    )  # fmt: skip


grouped_gemm_op.register_vmap(batching.rule("mxgemm::grouped_gemm", rows=()))
moe_op.register_vmap(batching.rule("mxgemm::moe", rows=("x", "topk_ids", "topk_weights")))


def call_grouped(
    a: Tensor,
    a_scales: Tensor | None,
    w: Tensor,
    w_scales: Tensor,
    offsets: Tensor,
    gather: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
) -> Tensor:
    """Call the operator of a grouped product and return the result."""
    o = options
    made = torch.ops.mxgemm.grouped_gemm(
        a, w, w_scales, offsets, gather, bias, a_scales, o.a_format, o.b_format, o.scale_rounding, o.out_dtype, o.route
    )
    return _into(out, made, o.out_dtype)


def call_moe(
    x: Tensor,
    w13: MXTensor,
    w2: MXTensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    b13: Tensor | None,
    b2: Tensor | None,
    expert_map: Tensor | None,
    out: Tensor | None,
    options: LayerOptions,
) -> Tensor:
    """Call the operator of a layer and return the result."""
    o, s = options, options.activation
    made = torch.ops.mxgemm.moe(
        x, w13.data, w13.scales, w2.data, w2.scales, topk_ids, topk_weights, float(s.alpha),
        None if s.limit is None else float(s.limit), s.interleaved, float(s.offset), b13, b2, expert_map,
        o.first_expert, o.a_format, w13.format.name, o.scale_rounding, o.out_dtype, o.route,
    )  # fmt: skip
    return _into(out, made, o.out_dtype)


def _into(out: Tensor | None, made: Any, dtype: torch.dtype) -> Tensor:
    if out is None:
        return made  # type: ignore[no-any-return]
    if not isinstance(out, Tensor) or out.dtype != dtype:
        raise TypeError(f"out: got {describe(out)}, want a {dtype} tensor (out_dtype says which)")
    if out.shape != made.shape:
        raise ValueError(f"out: got shape {tuple(out.shape)}, want {tuple(made.shape)}")
    return out.copy_(made)


def _stack(data: Tensor, scales: Tensor, fmt: str) -> MXTensor:
    return MXTensor.wrap(data, scales, format=fmt)  # type: ignore[arg-type]


def _layer(
    alpha: float,
    limit: float | None,
    interleaved: bool,
    offset: float,
    first_expert: int,
    a_format: str,
    scale_rounding: str,
    out_dtype: torch.dtype | None,
    route: str | None,
) -> LayerOptions:
    activation = SwiGLU(alpha, limit, interleaved, offset)
    return LayerOptions(activation, first_expert, a_format, scale_rounding, out_dtype or torch.bfloat16, route)
