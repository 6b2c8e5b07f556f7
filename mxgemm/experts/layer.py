"""A whole layer of experts: sort the pairs, two grouped products, add up each token's results in order.

No step depends on what the ids are but on the device, so that one captured graph serves every routing; and none uses
atomic sums, so that runs agree to the bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mxgemm.device import Machine, machine_of
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.choice import adder, check_route, choose
from mxgemm.experts.plan import on, strides_of
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Strides
from mxgemm.experts.route import Combine, Launch, Sort
from mxgemm.experts.validation import check_moe, rows_of
from mxgemm.mx.formats import BLOCK, FORMATS
from mxgemm.mx.freshness import mark_written
from mxgemm.mx.tensor import MXTensor
from mxgemm.plan import find, keep
from mxgemm.quantize import encode
from mxgemm.validation import check_no_alias


class LayerOptions(NamedTuple):
    """What a call of ``moe`` says besides its tensors."""

    activation: SwiGLU
    first_expert: int = 0
    a_format: str = "e2m1"
    scale_rounding: str = "even"
    out_dtype: torch.dtype = torch.bfloat16
    route: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """A route bound to a layer.

    Attributes:
        problems: the two products.
        routing: of the pairs.
        sort: see :mod:`mxgemm.experts.route`.
        products: launches of the two.
        combine: see :mod:`mxgemm.experts.route`.
    """

    problems: tuple[GroupedProblem, GroupedProblem]
    routing: Routing
    sort: Sort
    products: tuple[Launch, Launch]
    combine: Combine


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What a layer's call does.

    Attributes:
        steps: None where there is nothing to compute.
        shape: of the result.
        device: where it runs.
    """

    steps: Steps | None
    shape: tuple[int, ...]
    device: torch.device


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
    plan, key = find(_plans, tensors, (*options, shapes))
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
    if not tokens:
        return LayerPlan(None, shape, x.device)
    problems = describe(x.reshape(tokens, -1), w13, w2, b13, b2, top_k, o)
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
    return LayerPlan(_steps(problems, routing, o.route), shape, x.device)


def describe(
    x: Tensor | MXTensor,
    w13: MXTensor,
    w2: MXTensor,
    b13: Tensor | None,
    b2: Tensor | None,
    top_k: int,
    o: LayerOptions,
    machine: Machine | None = None,
) -> tuple[GroupedProblem, GroupedProblem]:
    """Describe the two products of a layer, of tokens ``[T, K]``, on a machine, by default that of the tensors.

    Floats are described as what they are quantised to on the way; an MX tensor has that format already.
    """
    tokens, hidden = x.shape
    left, left_scales = (x.data, x.scales) if isinstance(x, MXTensor) else (x, None)
    experts, n, _ = w13.shape
    pairs, inner, quantised = tokens * top_k, n // 2, FORMATS.get(o.a_format)
    pack = 1 if quantised is None else quantised.pack
    machine = machine or machine_of(left.device)
    first = strides_of(left, left_scales, w13.data, w13.scales, b13, None, o.a_format)
    second = strides_of(left, None, w2.data, w2.scales, b2, None, "bf16")
    one = GroupedProblem(
        pairs,
        tokens,
        n,
        hidden,
        experts,
        machine,
        Strides(first.a, first.w, first.w_scales, (inner // pack, 1), first.a_scales, first.bias),
        a_format=o.a_format,
        b_format=w13.format.name,
        a_dtype=torch.uint8 if quantised else left.dtype,
        out_dtype=torch.uint8 if quantised else torch.bfloat16,
        bias_dtype=None if b13 is None else b13.dtype,
        reads_index=True,
        divisor=top_k,
        activation=o.activation,
        out_format=quantised.name if quantised else "",
        scale_rounding=o.scale_rounding,
    )
    two = GroupedProblem(
        pairs,
        pairs,
        w2.shape[1],
        inner,
        experts,
        machine,
        Strides(
            (inner // pack, 1),
            second.w,
            second.w_scales,
            (w2.shape[1], 1),
            (inner // BLOCK, 1) if quantised else (0, 0),
            second.bias,
        ),
        a_format=o.a_format,
        b_format=w2.format.name,
        a_dtype=one.out_dtype,
        out_dtype=torch.float32,
        bias_dtype=None if b2 is None else b2.dtype,
        writes_index=True,
    )
    return one, two


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
    result = out if direct else torch.empty(plan.shape, dtype=o.out_dtype, device=plan.device)
    assert result is not None
    if steps is not None:
        tokens, top_k = steps.routing.tokens, steps.routing.top_k
        ids = topk_ids.reshape(tokens, top_k).contiguous()
        weights = topk_weights.resolve_neg().reshape(tokens, top_k).contiguous()
        table = None if expert_map is None else expert_map.contiguous()
        rows = x.reshape(tokens, -1)
        quantised = o.a_format != "bf16"
        a = encode(rows, o.a_format, o.scale_rounding) if quantised else (rows.resolve_neg(), None)
        y = pair_results(steps, a, w13, w2, ids, b13, b2, table)
        flat = result if direct else result.view(tokens, -1)
        steps.combine(y, ids, weights, table, flat)
    if out is None:
        return result
    if not direct:
        out.copy_(result)
    mark_written(out)
    return out


def pair_results(
    steps: Steps,
    a: tuple[Tensor, Tensor | None],
    w13: MXTensor,
    w2: MXTensor,
    ids: Tensor,
    b13: Tensor | None,
    b2: Tensor | None,
    expert_map: Tensor | None,
) -> Tensor:
    """Return what each pair's expert makes of its token, fp32 ``[pairs, H]``; rows of dropped pairs are undefined.

    ``a`` is the tokens' elements and scales, or bf16 and None.
    """
    one, two = steps.problems
    data, a_scales = a
    ordered = steps.sort(ids, expert_map)
    inner = torch.empty((one.rows, one.strides.out[0]), dtype=one.out_dtype, device=data.device)
    scales = None
    if one.out_format:
        scales = torch.empty((one.rows, one.columns // BLOCK), dtype=torch.uint8, device=data.device)
    y = torch.empty((two.rows, two.n), dtype=torch.float32, device=data.device)
    where = (ordered.offsets, ordered.places, ordered.tiles)
    added = [None if bias is None else bias.resolve_neg() for bias in (b13, b2)]
    steps.products[0](Operands(data, a_scales, w13.data, w13.scales, added[0], *where, inner, scales))
    steps.products[1](Operands(inner, scales, w2.data, w2.scales, added[1], *where, y))
    return y


def results(
    x: MXTensor | Tensor,
    w13: MXTensor,
    w2: MXTensor,
    experts: Tensor,
    b13: Tensor | None,
    b2: Tensor | None,
    options: LayerOptions,
) -> Tensor:
    """Return what one expert makes of each row, fp32 ``[R, H]``, for who has sent the rows: at least one.

    Args:
        x: rows, quantised to ``options.a_format``, or bf16 floats, contiguous.
        w13: as in ``moe``, and so are the rest.
        w2: see there.
        experts: int32 ``[R]``, each row's, from 0.
        b13: see there.
        b2: see there.
        options: of the layer.
    """
    data, scales = (x.data, x.scales) if isinstance(x, MXTensor) else (x, None)
    key_options = (*options, w13.shape, w2.shape)
    tensors = (data, scales, w13.data, w13.scales, w2.data, w2.scales, experts, b13, b2)
    steps, key = find(_results, tensors, key_options)
    if steps is None:
        problems = describe(x, w13, w2, b13, b2, 1, options)
        routing = Routing(
            len(experts), 1, w13.shape[0], 0, 0, experts.dtype, w2.shape[1], torch.float32, torch.float32,
            problems[0].machine, (w2.shape[1], 1),
        )  # fmt: skip
        steps = _steps(problems, routing, options.route)
        keep(_results, key, steps)
    with on(data.device):
        return pair_results(steps, (data, scales), w13, w2, experts.view(-1, 1), b13, b2, None)


def combine(y: Tensor, ids: Tensor, weights: Tensor, experts: int, out_dtype: torch.dtype) -> Tensor:
    """Return each token's sum in order, ``[T, H]``, of pairs' results ``[T * top_k, H]`` fp32; see ``Combine``."""
    tokens, top_k = ids.shape
    out = torch.empty((tokens, y.shape[1]), dtype=out_dtype, device=y.device)
    if tokens:
        routing = Routing(
            tokens, top_k, experts, 0, 0, ids.dtype, y.shape[1], weights.dtype, out_dtype, machine_of(y.device),
            (y.shape[1], 1),
        )  # fmt: skip
        with on(y.device):
            adder(routing.machine).bind_combine(routing)(y, ids.contiguous(), weights.contiguous(), None, out)
    return out


_results: dict[Hashable, Steps] = {}


def _steps(problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, route: str | None) -> Steps:
    chosen = choose(problems, route)
    return Steps(
        problems,
        routing,
        chosen.bind_sort(routing, chosen.block_rows(problems[0])),
        (chosen.bind(problems[0]), chosen.bind(problems[1])),
        chosen.bind_combine(routing),
    )
