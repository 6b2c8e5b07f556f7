"""From tensors to a result for ``grouped_gemm``: validate, choose a route, bind, launch, as :mod:`mxgemm.plan` does.

A call with metadata seen before costs one look-up. Keys hold no tensor and nothing of an address but its alignment.
Activations that are to be MX are quantised once, before they are gathered: a token may go to several experts.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.experts.choice import check_route, choose
from mxgemm.experts.problem import GroupedProblem, Operands, Options, Strides
from mxgemm.experts.route import ExpertsRoute, Launch
from mxgemm.experts.validation import check_grouped
from mxgemm.mx.formats import BLOCK, FORMATS
from mxgemm.mx.freshness import mark_written
from mxgemm.plan import find, keep
from mxgemm.quantize import encode
from mxgemm.validation import check_no_alias

_plans: dict[Hashable, Plan] = {}


@dataclass(frozen=True, slots=True)
class Plan:
    """A route bound to one grouped product.

    Attributes:
        launch: fills the result; None where there is nothing to multiply.
        shape: of the result.
        device: where it runs.
        quantises: A is floats that are to be bytes.
        problem: what was planned, if anything.
        route: what it was bound to.
    """

    launch: Launch | None
    shape: tuple[int, int]
    device: torch.device
    quantises: bool
    problem: GroupedProblem | None
    route: ExpertsRoute | None


def multiply(
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
    """Return the grouped product, eagerly.

    Raises:
        TypeError, ValueError, RuntimeError, RouteUnavailable: as ``mxgemm.grouped_gemm`` says.
    """
    tensors = (a, a_scales, w, w_scales, offsets, gather, bias, out)
    plan, key = find(_plans, tensors, options)
    if plan is None:
        if isinstance(a, Tensor) and a.is_meta:
            return output_like(*tensors, options)
        plan = keep(_plans, key, _make_plan(tensors, options))
    if out is not None:
        names = ("a", "a.scales", "w", "w.scales", "offsets", "gather", "bias")
        check_no_alias(out, dict(zip(names, tensors, strict=False)))
    with on(plan.device):
        return _execute(plan, tensors, options)


def output_like(
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
    """Check a call and return its output unfilled: all there is to a call on meta or fake tensors."""
    check_route(options.route)
    rows, _, n, _, _ = check_grouped(a, a_scales, w, w_scales, offsets, gather, bias, out, options)
    return a.new_empty((rows, n), dtype=options.out_dtype) if out is None else out


def planned(tensors: tuple[Any, ...], options: Options) -> Plan:
    """Return the plan of a call, made anew; for tests and measurements."""
    return _make_plan(tensors, options)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current device if it is not."""
    if device.type != "cuda" or torch._C._cuda_getDevice() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


def _make_plan(tensors: tuple[Any, ...], options: Options) -> Plan:
    check_route(options.route)
    a, a_scales, w, w_scales, offsets, gather, bias, out = tensors
    sizes = check_grouped(a, a_scales, w, w_scales, offsets, gather, bias, out, options)
    rows, a_rows, n, k, experts = sizes
    launch = problem = route = None
    quantises = a_scales is None and options.a_format != "bf16"
    if rows and k:
        target = None if out is None or out.is_neg() else out
        problem = GroupedProblem(
            rows,
            a_rows,
            n,
            k,
            experts,
            machine_of(a.device),
            strides_of(a, a_scales, w, w_scales, bias, target, options.a_format),
            a_format=options.a_format,
            b_format=options.b_format,
            a_dtype=a.dtype if options.a_format == "bf16" else torch.uint8,
            out_dtype=options.out_dtype,
            bias_dtype=None if bias is None else bias.dtype,
            reads_index=gather is not None,
            zeros=True,
            aligned=all(t is None or t.data_ptr() % 16 == 0 for t in tensors),
        )
        route = choose([problem], options.route)
        launch = route.bind(problem)
    return Plan(launch, (rows, n), a.device, quantises, problem, route)


def _execute(plan: Plan, tensors: tuple[Any, ...], options: Options) -> Tensor:
    a, a_scales, w, w_scales, offsets, gather, bias, out = tensors
    staged = out is None or out.is_neg()
    result = torch.empty(plan.shape, dtype=options.out_dtype, device=plan.device) if staged else out
    if plan.launch is None:
        result.zero_()
        if bias is not None and plan.shape[0]:
            _bias_alone(result, offsets, bias)
    else:
        if plan.quantises:
            a, a_scales = encode(a, options.a_format, options.scale_rounding)
        elif a_scales is None:
            a = a.resolve_neg()
        bias = None if bias is None else bias.resolve_neg()
        index = None if gather is None else gather.contiguous()
        plan.launch(Operands(a, a_scales, w, w_scales, bias, offsets.contiguous(), index, None, result))
    if out is None:
        return result
    if staged:
        out.copy_(result)
    mark_written(out)
    return out  # type: ignore[no-any-return]


def _bias_alone(result: Tensor, offsets: Tensor, bias: Tensor) -> None:
    """Fill the results of sums over nothing (K = 0): the bias of each row's expert."""
    rows = torch.arange(result.shape[0], dtype=torch.int32, device=result.device)
    bounds = torch.cummax(offsets.clamp(min=0), 0).values
    expert = torch.searchsorted(bounds.contiguous(), rows, right=True) - 1
    inside = (expert >= 0) & (expert < bias.shape[0])
    values = bias.to(torch.float32)[expert.clamp(0, bias.shape[0] - 1)]
    result.copy_(torch.where(inside.unsqueeze(1), values, 0.0))


def strides_of(
    a: Tensor, a_scales: Tensor | None, w: Tensor, w_scales: Tensor, bias: Tensor | None, out: Any, a_format: str
) -> Strides:
    """Return the strides of a product's operands; of A as bytes if it is quantised on the way."""
    quantises = a_scales is None and a_format != "bf16"
    expert, row, column = w.stride()
    scales_expert, scales_row, scales_column = w_scales.stride()
    return Strides(
        a=(a.shape[1] // FORMATS[a_format].pack, 1) if quantises else _two(a),
        w=(expert, row, column),
        w_scales=(scales_expert, scales_row, scales_column),
        out=(w.shape[1], 1) if out is None else _two(out),
        a_scales=(a.shape[1] // BLOCK, 1) if quantises else (0, 0) if a_scales is None else _two(a_scales),
        bias=(0, 0) if bias is None else _two(bias),
    )


def _two(tensor: Tensor) -> tuple[int, int]:
    row, column = tensor.stride()
    return row, column
