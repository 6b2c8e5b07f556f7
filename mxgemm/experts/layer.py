"""A whole layer of experts: sort the pairs, two grouped products, add up each token's results in order.

No step depends on what the ids are but on the device, so that one captured graph serves every routing; and none uses
atomic sums, so that runs agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mxgemm.allocation import allocator
from mxgemm.experts.choice import check_route
from mxgemm.experts.forms import is_prepared
from mxgemm.experts.known import know_layer
from mxgemm.experts.plan import on
from mxgemm.experts.problem import Routing, Tokens
from mxgemm.experts.program import LayerProgram
from mxgemm.experts.steps import LayerOptions, Steps, bind_steps, describe, pair_results
from mxgemm.experts.validation import check_moe, rows_of
from mxgemm.mx.freshness import mark_written
from mxgemm.mx.tensor import MXTensor
from mxgemm.plan import find, keep
from mxgemm.quantize import encode
from mxgemm.validation import check_no_alias


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What a layer's call does.

    Attributes:
        steps: None where there is nothing to compute.
        shape: of the result.
        device: where it runs.
        allocate: makes the memory of the result, of a GPU that is the current device.
        program: all of it as one call, where operands are contiguous and the launches can be described.
    """

    steps: Steps | None
    shape: tuple[int, ...]
    device: torch.device
    allocate: Callable[[], Tensor]
    program: LayerProgram | None = None


_plans: dict[Hashable, LayerPlan] = {}


def run(
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
    """Return the layer's result, eagerly.

    Raises:
        TypeError, ValueError, RuntimeError, RouteUnavailable: as ``mxgemm.moe`` says.
    """
    parts = (w13.data, w13.scales, w2.data, w2.scales)
    tensors = (x, *parts, topk_ids, topk_weights, b13, b2, expert_map, out)
    shapes = (w13.shape, w13.format.name, w2.shape, w2.format.name)
    prepared = is_prepared("w13", w13), is_prepared("w2", w2)
    plan, key = find(_plans, tensors, (*options, shapes, prepared))
    given = (x, w13, w2, topk_ids, topk_weights, b13, b2, expert_map, out)
    if plan is None:
        if isinstance(x, Tensor) and x.is_meta:
            return output_like(*given, options)
        plan = keep(_plans, key, _make_plan(*given, options))
    if out is not None:
        names = ("x", "w13.data", "w13.scales", "w2.data", "w2.scales", "topk_ids", "topk_weights", "b13", "b2")
        check_no_alias(out, dict(zip((*names, "expert_map"), tensors, strict=False)))
    with on(plan.device):
        return _execute(plan, *given, options)


def output_like(
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
    """Check a call and return its output unfilled: all there is to a call on meta or fake tensors."""
    leading, _ = _check(x, w13, w2, topk_ids, topk_weights, b13, b2, expert_map, out, options)
    return x.new_empty((*leading, w2.shape[1]), dtype=options.out_dtype) if out is None else out


def _check(
    x: Any, w13: Any, w2: Any, ids: Any, weights: Any, b13: Any, b2: Any, expert_map: Any, out: Any, o: LayerOptions
) -> tuple[tuple[int, ...], int]:
    check_route(o.route)
    return check_moe(
        x, w13, w2, ids, weights, o.activation, b13, b2, expert_map, out, o.a_format, o.scale_rounding, o.out_dtype
    )


def _make_plan(
    x: Any, w13: Any, w2: Any, ids: Any, weights: Any, b13: Any, b2: Any, expert_map: Any, out: Any, o: LayerOptions
) -> LayerPlan:
    leading, top_k = _check(x, w13, w2, ids, weights, b13, b2, expert_map, out, o)
    tokens, hidden = rows_of(leading), w2.shape[1]
    shape = (*leading, hidden)
    allocate = allocator(shape, o.out_dtype, x.device)
    if not tokens:
        return LayerPlan(None, shape, x.device, allocate)
    rows = x.reshape(tokens, -1)
    problems = describe(rows, w13, w2, b13, b2, top_k, o)
    aligned = rows.data_ptr() % 16 == 0
    row, column = rows.stride()
    given = Tokens(tokens, rows.shape[1], rows.dtype, (row, column), o.a_format, o.scale_rounding, aligned)
    direct = out is None or (out.dim() == 2 and not out.is_neg())
    routing = Routing(
        tokens,
        top_k,
        w13.shape[0],
        o.first_expert,
        0 if expert_map is None else expert_map.shape[0],
        ids.dtype,
        hidden,
        weights.dtype,
        o.out_dtype,
        problems[0].machine,
        out.stride() if out is not None and direct else (hidden, 1),
    )
    prepared = is_prepared("w13", w13), is_prepared("w2", w2)
    steps = bind_steps(problems, routing, o.route, prepared, given)
    # Then what launches read is where the tensors are.
    plain = (x.dim() == 2 or x.is_contiguous()) and all(
        t is None or t.is_contiguous() for t in (ids, weights, expert_map)
    )
    resolved = not any(t is not None and t.is_neg() for t in (x, weights, b13, b2))
    rounded = steps.quantise is not None or steps.rounds or o.a_format == "bf16"
    described = direct and plain and resolved and rounded and x.device.type == "cuda"
    program = LayerProgram(steps, x.device, allocate) if described else None
    return LayerPlan(steps, shape, x.device, allocate, program)


def _execute(
    plan: LayerPlan,
    x: Tensor,
    w13: MXTensor,
    w2: MXTensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    b13: Tensor | None,
    b2: Tensor | None,
    expert_map: Tensor | None,
    out: Tensor | None,
    o: LayerOptions,
) -> Tensor:
    steps = plan.steps
    direct = out is not None and out.dim() == 2 and not out.is_neg()
    result = out if direct else plan.allocate()
    assert result is not None
    given = x, w13, w2, topk_ids, topk_weights, b13, b2, expert_map
    if plan.program is not None and plan.program(*given, result):
        if out is None and expert_map is None:
            know_layer(w13, w2, b13, b2).remember(x, topk_ids, topk_weights, o, plan.program, w13)
    elif steps is not None:
        tokens, top_k = steps.routing.tokens, steps.routing.top_k
        ids = topk_ids.reshape(tokens, top_k).contiguous()
        weights = topk_weights.resolve_neg().reshape(tokens, top_k).contiguous()
        table = None if expert_map is None else expert_map.contiguous()
        rows = x.reshape(tokens, -1)
        a: tuple[Tensor, Tensor | None]
        if o.a_format == "bf16" or steps.rounds:
            a = rows.resolve_neg(), None
        elif steps.quantise is None or rows.is_neg():
            a = encode(rows, o.a_format, o.scale_rounding)
        else:
            a = steps.quantise(rows)
        y = pair_results(steps, a, w13, w2, ids, b13, b2, table)
        flat = result if direct else result.view(tokens, -1)
        steps.combine(y, ids, weights, table, flat)
    if out is None:
        return result
    if not direct:
        out.copy_(result)
    mark_written(out)
    return out
