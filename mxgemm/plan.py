"""Validate, plan, launch: the one way from tensors to a result, behind every public call and torch operator.

A call with metadata seen before costs one dictionary look-up: the key holds everything that validation and planning
read (shapes, strides, dtypes, devices, alignment, options), so a hit needs neither. Keys hold no tensor and nothing of
an address but its alignment, so nothing that a caller may change in place is ever cached.

There is no lock: threads that meet a new key at once each make its plan and share the first. So planning waits for
nobody, whatever it is interrupted by (a finaliser that multiplies, a fork), and a child inherits whole plans only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from mxgemm import capture, validation
from mxgemm.allocation import allocator
from mxgemm.device import machine_of
from mxgemm.memory import LOWEST_ADDRESS, check_memory, freed
from mxgemm.mx.freshness import mark_written
from mxgemm.native.program import Program
from mxgemm.problem import Options, Problem, Strides, matrix_strides
from mxgemm.routes import Launch, Operands
from mxgemm.routing.router import choose, tell

P = TypeVar("P")

MAX_PLANS: Final = 8192
"""Plans kept; past this many the cache starts over (each is a few hundred bytes)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A route bound to one problem.

    Attributes:
        launch: fills a two-dimensional output or returns one; None where there is nothing to multiply (M or K is 0).
        fills: it fills the output that it is given.
        allocate: makes the memory of a result, a placeholder where ``launch`` returns its own.
        a_rows: rows to flatten A to, None if it is two-dimensional already.
        out_shape: shape of the result.
        flat_shape: (M, N) to bring the result to, None if it has it.
        gpu: index of the GPU that it runs on, None for a CPU.
        staged: the caller's ``out`` has no two-dimensional view that can be written as it lies, so the result is copied
            into it.
    """

    launch: Launch | None
    fills: bool
    allocate: Callable[[], Tensor]
    a_rows: int | None
    out_shape: tuple[int, ...]
    flat_shape: tuple[int, int] | None
    gpu: int | None
    staged: bool


_plans: dict[Hashable, Plan] = {}


def multiply(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
    derived: tuple[Tensor, ...] = (),
) -> Tensor:
    """Return ``round(a @ b.T + bias)``, eagerly; ``a_scales`` says that A comes quantised.

    ``derived`` is what ``prepare()`` made of the weight, of the kind that ``options.derived`` names.

    Raises:
        TypeError, ValueError, RuntimeError, RouteUnavailable: as ``mxgemm.gemm`` says, before anything is launched.
    """
    plans = _plans
    try:
        key = _key(a, a_scales, b, b_scales, bias, out, options)
        plan = plans.get(key)
    except (AttributeError, TypeError, RuntimeError):
        # No tensor, one without an address, or an option that cannot be hashed: validation says which.
        plan = key = None
    if plan is None:
        if isinstance(a, Tensor) and a.is_meta:
            return output_like(a, a_scales, b, b_scales, bias, out, options)
        inputs = (a, a_scales, b, b_scales, bias)
        if any(isinstance(tensor, Tensor) and tensor.is_neg() for tensor in inputs):
            validation.check_call(*inputs, out, options)
            _check_no_alias(out, *inputs, derived)
            resolved: Any = [None if t is None else t.resolve_neg() for t in inputs]
            a, a_scales, b, b_scales, bias = resolved
            return multiply(a, a_scales, b, b_scales, bias, out, options, derived)
        plan = _make_plan(plans, key, *inputs, out, options)
        for i, tensor in enumerate(derived):
            check_memory(f"b.prepared.tensors[{i}]", tensor, as_it_lies=True)
    _check_no_alias(out, a, a_scales, b, b_scales, bias, derived)
    if b.dtype != torch.uint8:  # checked when the plan was made: torch's own dtypes for these bytes
        b = b.view(torch.uint8)
    if b_scales.dtype != torch.uint8:
        b_scales = b_scales.view(torch.uint8)
    result = execute(plan, a, a_scales, b, b_scales, bias, out, derived)
    if out is not None:
        mark_written(out)  # or a weight, or autograd, that shares its memory would not notice
    return result


def output_like(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
) -> Tensor:
    """Check a call and return its output unfilled: all there is to a call on meta or fake tensors.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`multiply`.
    """
    leading, _ = validation.check_call(a, a_scales, b, b_scales, bias, out, options)
    return a.new_empty((*leading, b.shape[0]), dtype=options.out_dtype) if out is None else out


def lookup(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
) -> Plan | None:
    """Return the plan that :func:`multiply` follows for such a call; None for one it has not kept."""
    try:
        return _plans.get(_key(a, a_scales, b, b_scales, bias, out, options))
    except (AttributeError, TypeError, RuntimeError):
        return None


def current_plans() -> object:
    """Return what stays the same until :func:`clear_plans`."""
    return _plans


def clear_plans() -> None:
    """Forget every plan, so that the next calls read tables and environment anew."""
    global _plans
    _plans = {}  # a plan that another thread is making goes into the old one


def _key(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
) -> Hashable:
    return facts(a), facts(a_scales), facts(b), facts(b_scales), facts(bias), facts(out), options


def facts(tensor: Any) -> Hashable:
    """Everything about a tensor that validation, planning or a compiled kernel may depend on."""
    if tensor is None:
        return None
    t = tensor
    address = t.data_ptr()
    if address < LOWEST_ADDRESS and freed(t):
        raise TypeError("freed")  # a steady call's key has no place for it: validation says whose storage it is
    recorded = t.requires_grad and torch.is_grad_enabled()  # a derivative is asked for, which validation refuses
    return t.shape, t.stride(), t.dtype, t.device, address & 15, recorded, t.is_neg()


def find(plans: Mapping[Hashable, P], tensors: Iterable[Any], options: Hashable) -> tuple[P | None, Hashable]:
    """Return the plan of a call that is known, and the call's key: None for what validation has to name.

    That is what is no tensor, a tensor without an address, or an option that cannot be hashed.
    """
    try:
        key: Hashable = (*map(facts, tensors), options)
        return plans.get(key), key
    except (AttributeError, TypeError, RuntimeError):
        return None, None


def keep(plans: dict[Hashable, P], key: Hashable, plan: P) -> P:
    """Keep a plan under a key of :func:`find`; return it, or another thread's that was quicker, which is loaded."""
    if key is None:
        return plan
    if len(plans) >= MAX_PLANS:
        plans.clear()
    return plans.setdefault(key, plan)


def _check_no_alias(
    out: Tensor | None,
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    derived: tuple[Tensor, ...],
) -> None:
    if out is not None:
        validation.check_no_alias(out, {"a": a, "a.scales": a_scales, "b": b, "b_scales": b_scales, "bias": bias})
        if derived:
            validation.check_no_alias(out, {f"b.prepared.tensors[{i}]": tensor for i, tensor in enumerate(derived)})


def _make_plan(
    plans: dict[Hashable, Plan],
    key: Hashable,
    a: Any,
    a_scales: Any,
    b: Any,
    b_scales: Any,
    bias: Any,
    out: Any,
    options: Options,
) -> Plan:
    leading, k = validation.check_call(a, a_scales, b, b_scales, bias, out, options)
    m, n = math.prod(leading), b.shape[0]
    flat_out = None if out is None else flat_view(out, m, n)
    launch, fills = None, True
    if m and k:
        problem = _problem(m, n, k, a, a_scales, b, b_scales, bias, out, flat_out, options)
        choice = choose(problem, route=options.route)
        tell(choice, problem)
        launch = choice.route.bind(problem, choice.config)
        fills = choice.route.fills_output(problem, choice.config)
    plan = Plan(
        launch=launch,
        fills=fills,
        allocate=allocator((*leading, n) if fills else (0,), options.out_dtype, a.device),
        a_rows=None if a.dim() == 2 else m,
        out_shape=(*leading, n),
        flat_shape=None if len(leading) == 1 else (m, n),
        gpu=a.device.index if a.device.type == "cuda" else None,
        staged=out is not None and flat_out is None,
    )
    return keep(plans, key, plan)


def _problem(
    m: int,
    n: int,
    k: int,
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    flat_out: Tensor | None,
    options: Options,
) -> Problem:
    strides = Strides(
        a=matrix_strides(a.reshape(m, -1)),
        b=matrix_strides(b),
        b_scales=matrix_strides(b_scales),
        out=(n, 1) if flat_out is None else matrix_strides(flat_out),
        a_scales=(0, 0)
        if a_scales is None
        else matrix_strides(a_scales if a_scales.dim() == 2 else a_scales.reshape(m, -1)),
        bias=1 if bias is None else bias.stride(0),
    )
    tensors = (a, a_scales, b, b_scales, bias, out)
    return Problem(
        m,
        n,
        k,
        machine_of(a.device),
        options,
        a_quantized=a_scales is not None,
        a_dtype=a.dtype,
        has_bias=bias is not None,
        strides=strides,
        bias_dtype=torch.float32 if bias is None else bias.dtype,
        aligned=all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in tensors),
    )


def execute(
    plan: Plan,
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    derived: tuple[Tensor, ...],
) -> Tensor:
    """Launch what was planned, on operands that fit the plan's key, and return the result."""
    if plan.gpu is not None and torch._C._cuda_getDevice() != plan.gpu:
        with torch.cuda.device(plan.gpu):
            return execute(plan, a, a_scales, b, b_scales, bias, out, derived)
    result = plan.allocate() if out is None else out
    if plan.launch is None:
        return result.copy_(bias.expand_as(result)) if bias is not None else result.zero_()
    if plan.a_rows is not None:
        a = a.reshape(plan.a_rows, -1)
        if a_scales is not None and a_scales.dim() != 2:
            a_scales = a_scales.reshape(plan.a_rows, -1)
    if plan.staged:
        target = torch.empty(plan.flat_shape or plan.out_shape, dtype=result.dtype, device=result.device)
    else:
        target = result if plan.flat_shape is None or not plan.fills else result.view(plan.flat_shape)
    try:
        made = plan.launch(Operands(a, a_scales, b, b_scales, bias, target, derived))
    except RuntimeError as error:
        if plan.gpu is None or isinstance(error, capture.NotWarm) or not capture.under_way():
            raise
        raise capture.NotWarm(f"gemm: a first call sets libraries up ({error})") from error
    if made is not None:
        made = made.view(plan.out_shape)
        return made if out is None else out.copy_(made)
    return result.copy_(target.view(plan.out_shape)) if plan.staged else result


def describable(plan: Plan, a: Tensor) -> bool:
    """Say whether launching is all that :func:`execute` does with such an A, and the launches can be described."""
    flat = plan.a_rows is None or a.is_contiguous()
    return hasattr(plan.launch, "program") and plan.fills and not plan.staged and flat


def described(
    plan: Plan,
    a: Tensor,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    derived: tuple[Tensor, ...],
) -> Program | None:
    """Return the launches of a :func:`describable` plan that has run, on the current device, with no result of it."""
    result = plan.allocate() if out is None else out
    if plan.a_rows is not None:
        a = a.view(plan.a_rows, -1)
    if plan.flat_shape is not None:
        result = result.view(plan.flat_shape)
    describe: Callable[[Operands], Program | None] = plan.launch.program  # type: ignore[union-attr]
    return describe(Operands(a, None, b, b_scales, bias, result, derived))


def flat_view(out: Tensor, m: int, n: int) -> Tensor | None:
    """Return an output as ``[M, N]``, None where it has no such view that can be written as it lies."""
    if out.is_neg():  # a lazily negated view: copying into it negates
        return None
    try:
        return out.view(m, n)
    except RuntimeError:  # torch's answer where the strides allow no such view
        return None
