"""The public layer of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad, is_observed
from mxgemm.arguments import as_int
from mxgemm.experts import ops
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.known import known_layer
from mxgemm.experts.layer import run
from mxgemm.experts.steps import LayerOptions
from mxgemm.experts.validation import check_weight
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import MXTensor


def moe(
    x: Tensor,
    w13: MXTensor,
    w2: MXTensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    activation: SwiGLU,
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    expert_map: Tensor | None = None,
    first_expert: int = 0,
    a_format: ActivationFormat = "e2m1",
    scale_rounding: ScaleRounding = "even",
    out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> Tensor:
    """Return ``sum_j topk_weights[t, j] * expert[topk_ids[t, j]](x[t])`` of MX experts, in fp32, rounded once.

    An expert is ``h = activation(quantize(x) @ dequantize(w13[e]).T + b13[e])`` and
    ``quantize(h) @ dequantize(w2[e]).T + b2[e]``, with sums and activation in fp32 and h rounded to ``a_format`` once.
    A token's results are added in the order of j. On a GPU no routing is read by the host: one captured graph serves
    all of them, and no sum is atomic, so that runs agree to the bit.

    Args:
        x: tokens ``[..., H]``, bf16, fp16 or fp32, any strides.
        w13: gate and up of all experts, a row-major :class:`MXTensor` (E, 2 I, H), as ``activation`` says.
        w2: down of all experts, (E, H', I).
        topk_ids: int32 or int64 ``[..., top_k]``. A pair with an id below 0 is dropped, and so is one of an expert that
            is not among these E (another rank's): it adds nothing.
        topk_weights: ``[..., top_k]``, bf16, fp16 or fp32.
        activation: :class:`mxgemm.SwiGLU`.
        b13: ``[E, 2 I]``, bf16, fp16 or fp32, or None.
        b2: ``[E, H']``, or None.
        expert_map: int32 ``[experts of the model]``: which of these E an id means, -1 for none of them. By default id
            ``first_expert + e`` means expert e.
        first_expert: see ``expert_map``.
        a_format: what ``x`` and h are rounded to, as in :func:`mxgemm.gemm`.
        scale_rounding: rule for their block scales.
        out: write here, ``[..., H']`` of ``out_dtype``, any strides; by default the result is fresh memory.
        out_dtype: bf16, fp16 or fp32.
        route: as in :func:`mxgemm.grouped_gemm`.

    Returns:
        ``[..., H']``.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape, device, layout or name, or a map beside ``first_expert``.
        RouteUnavailable: the named route cannot run here.
        RuntimeError: an input requires grad while gradients are recorded, or carries a forward-mode tangent.
    """
    if out is None and expert_map is None and type(w13) is MXTensor and type(first_expert) is int:
        known = known_layer(w13, w2, b13, b2)
        if known is not None and not is_observed(x, topk_ids, topk_weights):
            options = LayerOptions(activation, first_expert, a_format, scale_rounding, out_dtype, route)
            result = known.run(x, topk_ids, topk_weights, options)
            if result is not None:
                return result
    check_weight("w13", w13)
    check_weight("w2", w2)
    first = as_int("first_expert", first_expert)
    if first and expert_map is not None:
        raise ValueError(f"first_expert: got {first} beside expert_map, want one of them")
    if w13.format is not w2.format:
        raise ValueError(f"w2: got {w2.format}, want {w13.format} as w13")
    options = LayerOptions(activation, first, a_format, scale_rounding, out_dtype, route)
    observed = is_observed(x, w13.data, w13.scales, w2.data, w2.scales, out)
    if observed or is_observed(topk_ids, topk_weights, b13, b2, expert_map):
        check_no_grad(x=x, topk_weights=topk_weights, b13=b13, b2=b2, out=out)
        if not isinstance(activation, SwiGLU):
            raise TypeError(f"activation: got {type(activation).__name__}, want a mxgemm.SwiGLU")
        return ops.call_moe(x, w13, w2, topk_ids, topk_weights, b13, b2, expert_map, out, options)
    return run(x, w13, w2, topk_ids, topk_weights, b13, b2, expert_map, out, options)
