"""From tensors to a result for ``quant_gemm``: validate, choose a route, bind, launch, as :mod:`mxgemm.plan` does.

A call with metadata seen before costs one look-up. Keys hold no tensor and nothing of an address but its alignment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mxgemm.allocation import allocator
from mxgemm.arguments import one_of
from mxgemm.device import machine_of
from mxgemm.mx.freshness import mark_written
from mxgemm.plan import find, flat_view, keep
from mxgemm.scaled.choice import ROUTES, choose
from mxgemm.scaled.problem import Operands, Options, QuantProblem, Strides
from mxgemm.scaled.route import Launch, QuantRoute
from mxgemm.scaled.validation import check_call, check_grouped, scale_name
from mxgemm.validation import check_no_alias

_plans: dict[Hashable, Plan] = {}


@dataclass(frozen=True, slots=True)
class Plan:
    """A route bound to one problem.

    Attributes:
        launch: fills a two-dimensional output or returns one; None where there is nothing to multiply.
        allocate: makes the memory of a result, a placeholder where ``launch`` returns its own.
        rows: M, if A and C have to be brought to two dimensions; else None.
        out_shape: shape of the result.
        gpu: index of the GPU that it runs on, None for a CPU.
        staged: the caller's ``out`` has no two-dimensional view that can be written as it lies.
        problem: what was planned.
        route: what it was bound to.
    """

    launch: Launch | None
    allocate: Callable[[], Tensor]
    rows: int | None
    out_shape: tuple[int, ...]
    gpu: int | None
    staged: bool
    problem: QuantProblem | None
    route: QuantRoute | None


def multiply(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
    offsets: Tensor | None = None,
    grouped: bool = False,
) -> Tensor:
    """Return the product, eagerly; ``grouped`` that of the form by offsets.

    Raises:
        TypeError, ValueError, RuntimeError, RouteUnavailable: as ``mxgemm.quant_gemm`` says.
    """
    tensors = (a, a_scales, b, b_scales, bias, out, offsets)
    plan, key = find(_plans, tensors, (options, grouped))
    if plan is None:
        if isinstance(a, Tensor) and a.is_meta:
            return output_like(*tensors[:-1], options, offsets, grouped)
        if any(isinstance(tensor, Tensor) and tensor.is_neg() for tensor in (a, a_scales, b, b_scales, bias)):
            _check(tensors, options, grouped)
            check_apart(tensors)
            a, a_scales, b, b_scales, bias = (  # type: ignore[assignment]
                None if t is None else t.resolve_neg() for t in (a, a_scales, b, b_scales, bias)
            )
            return multiply(a, a_scales, b, b_scales, bias, out, options, offsets, grouped)
        plan = keep(_plans, key, _make_plan(tensors, options, grouped))
    if out is not None:
        check_apart(tensors)
    left, right = stored(a), stored(b)
    result = _execute(plan, left, stored(a_scales), right, stored(b_scales), bias, out, offsets)  # type: ignore[arg-type]
    if out is not None:
        mark_written(out)
    return result


def output_like(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
    offsets: Tensor | None = None,
    grouped: bool = False,
) -> Tensor:
    """Check a call and return its output unfilled: all there is to a call on meta or fake tensors."""
    shape, _ = _check((a, a_scales, b, b_scales, bias, out, offsets), options, grouped)
    return a.new_empty(shape, dtype=options.out_dtype) if out is None else out


def planned(
    a: Tensor, a_scales: Tensor | None, b: Tensor, b_scales: Tensor | None, options: Options
) -> tuple[QuantProblem, QuantRoute]:
    """Return the problem that a call is and the route that it takes; for tests and measurements.

    Raises:
        TypeError, ValueError, RouteUnavailable: as :func:`multiply`.
    """
    plan = _make_plan((a, a_scales, b, b_scales, None, None, None), options, False)
    assert plan.problem is not None
    assert plan.route is not None
    return plan.problem, plan.route


def _check(tensors: tuple[Any, ...], options: Options, grouped: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check a call; return the shape of its result, and (M, N, K, G) of which G is 0 for one problem."""
    a, a_scales, b, b_scales, bias, out, offsets = tensors
    if options.route is not None:
        one_of("route", options.route, ROUTES)
    if grouped:
        groups, m, n, k = check_grouped(a, a_scales, b, b_scales, offsets, out, options)
        return (m, n), (m, n, k, groups)
    leading, n, k = check_call(a, a_scales, b, b_scales, bias, out, options)
    return (*leading, n), (math.prod(leading), n, k, 0)


def _make_plan(tensors: tuple[Any, ...], options: Options, grouped: bool) -> Plan:
    shape, (m, n, k, groups) = _check(tensors, options, grouped)
    a, a_scales, b, b_scales, bias, out, _ = tensors
    flat_out = None if out is None else flat_view(out, m, n)
    launch = problem = route = None
    fills = True
    if m and k:
        strides = strides_of(a, a_scales, b, b_scales, bias, flat_out, m, n, options)
        names = scale_name(a_scales), scale_name(b_scales)
        aligned = all(t is None or t.data_ptr() % 16 == 0 for t in tensors)
        added = None if bias is None else bias.dtype
        problem = QuantProblem(m, n, k, machine_of(a.device), options, strides, *names, added, aligned, groups)
        route = choose(problem, options.route)
        launch, fills = route.bind(problem), route.fills_output(problem)
    return Plan(
        launch,
        allocator(shape if fills else (0,), options.out_dtype, a.device),
        None if a.dim() == 2 else m,
        shape,
        a.device.index if a.device.type == "cuda" else None,
        out is not None and flat_out is None,
        problem,
        route,
    )


def strides_of(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    m: int,
    n: int,
    options: Options,
) -> Strides:
    """Return the strides of a call's operands, brought to two dimensions."""
    s = options.scheme
    rows = a if a.dim() == 2 else a.reshape(m, a.shape[-1])
    left = None if a_scales is None else flat_scales(a_scales, s.a_kind, m, a.dim() == 2)
    stacked = b.dim() == 3
    right = b_scales[0] if stacked and b_scales is not None else b_scales
    return Strides(
        a=_two(rows),
        b=_two(b[0] if stacked else b),
        a_scales=_scale_strides(left, s.a_kind),
        b_scales=_scale_strides(right, s.b_kind),
        out=(n, 1) if out is None else _two(out),
        bias=0 if bias is None else bias.stride(0),
        b_group=b.stride(0) if stacked else 0,
        b_scales_group=b_scales.stride(0) if stacked and b_scales is not None else 0,
    )


def _two(tensor: Tensor) -> tuple[int, int]:
    row, column = tensor.stride()
    return row, column


def _scale_strides(scales: Tensor | None, kind: str) -> tuple[int, int]:
    if scales is None or kind in ("none", "tensor"):
        return 0, 0
    return (scales.stride(0), 0) if kind == "row" else _two(scales)


def flat_scales(scales: Tensor, kind: str, m: int, flat: bool) -> Tensor:
    """Return A's scales with its leading dimensions flattened."""
    if flat or kind == "tensor":
        return scales
    return scales.reshape(m) if kind == "row" else scales.reshape(m, scales.shape[-1])


def stored(tensor: Tensor | None) -> Tensor | None:
    """See elements and scales as what kernels read: bytes, bf16, fp32."""
    if tensor is None or tensor.dtype in (torch.uint8, torch.bfloat16, torch.float32):
        return tensor
    return tensor.view(torch.uint8)


def _execute(
    plan: Plan,
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    if plan.gpu is not None and torch._C._cuda_getDevice() != plan.gpu:
        with torch.cuda.device(plan.gpu):
            return _execute(plan, a, a_scales, b, b_scales, bias, out, offsets)
    result = plan.allocate() if out is None else out
    if plan.launch is None or plan.problem is None:
        return result.copy_(bias.expand_as(result)) if bias is not None else result.zero_()
    m, n = plan.problem.m, plan.problem.n
    if plan.rows is not None:
        a = a.reshape(m, a.shape[-1])
        a_scales = None if a_scales is None else flat_scales(a_scales, plan.problem.scheme.a_kind, m, False)
    if plan.staged:
        target = torch.empty((m, n), dtype=result.dtype, device=result.device)
    else:
        target = result if plan.rows is None or not result.numel() else result.view(m, n)
    made = plan.launch(Operands(a, a_scales, b, b_scales, bias, target, offsets))
    if made is not None:
        made = made.view(plan.out_shape)
        return made if out is None else out.copy_(made)
    return result.copy_(target.view(plan.out_shape)) if plan.staged else result


def check_apart(tensors: tuple[Tensor | None, ...]) -> None:
    """Refuse an output that shares a byte with an input."""
    a, a_scales, b, b_scales, bias, out, offsets = tensors
    if out is not None:
        inputs = {"a": a, "a.scales": a_scales, "b": b, "b.scales": b_scales, "bias": bias, "offsets": offsets}
        check_no_alias(out, inputs)
