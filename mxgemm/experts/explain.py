"""``mxgemm.explain_experts``: which route grouped products or a layer of experts take, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mxgemm.arguments import as_int
from mxgemm.device import Machine, machine_asked, machine_of
from mxgemm.errors import Refused, lines_of_others
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.choice import ROUTES, check_route, choose, first_refusal
from mxgemm.experts.forms import STACK_FRAGMENTS, in_fragments
from mxgemm.experts.plan import strides_of
from mxgemm.experts.problem import GroupedProblem
from mxgemm.experts.steps import LayerOptions, describe
from mxgemm.experts.validation import check_formats, check_weight
from mxgemm.mx.formats import FORMATS, ActivationFormat
from mxgemm.mx.tensor import MXTensor


@dataclass(frozen=True, slots=True, repr=False)
class ExpertsExplanation:
    """What is chosen for a call; prints as a few lines of text.

    Attributes:
        problems: the product, or the two of a layer.
        weights: how each weight comes, in words.
        route: the chosen route's name.
        configs: its configuration of each product, in words.
        reason: why it is the one.
        refusals: routes that would have come first, and every other one that cannot run, with reasons.
        also_possible: other routes that could.
    """

    problems: tuple[GroupedProblem, ...]
    weights: tuple[str, ...]
    route: str
    configs: tuple[str, ...]
    reason: str
    refusals: tuple[Refused, ...]
    also_possible: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.problems)} grouped product{'s' * (len(self.problems) > 1)}"]
        for problem, weight, config in zip(self.problems, self.weights, self.configs, strict=True):
            lines += [f"  product   {problem}", f"    weight  {weight}", f"    config  {config}"]
        lines += [f"  route     {self.route}", f"  because   {self.reason}"]
        return "\n".join([*lines, *lines_of_others(self.refusals, self.also_possible)])

    __repr__ = __str__


def explain_experts(
    rows: int,
    w: MXTensor,
    w2: MXTensor | None = None,
    *,
    top_k: int = 1,
    activation: SwiGLU | None = None,
    a_format: ActivationFormat = "e2m1",
    bias: bool = False,
    device: torch.device | str | int | None = None,
    route: str | None = None,
) -> ExpertsExplanation:
    """Say which route :func:`mxgemm.grouped_gemm` takes for a stack, or :func:`mxgemm.moe` for two, and why.

    Activations are taken to be bf16 and contiguous. What ``prepare()`` made of a stack is taken into account.

    Args:
        rows: of A, at least 1; with ``w2`` tokens.
        w: a stack (E, N, K), on any device, "meta" too; with ``w2`` gate and up of all experts, (E, 2 I, H).
        w2: down, (E, H', I); None to ask about one product.
        top_k: experts of a token.
        activation: of a layer, by default :class:`mxgemm.SwiGLU`.
        a_format: as in ``mxgemm.gemm``.
        bias: whether products have one, of bf16.
        device: as in ``mxgemm.explain``; by default that of the weight, of a meta one the current device.
        route: as in ``grouped_gemm``: explain this one.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: a wrong size, shape, device or name.
        RouteUnavailable: the named route cannot run here.
    """
    check_weight("w", w)
    check_formats(a_format, "even", False)
    check_route(route)
    count, pairs = as_int("rows", rows), as_int("top_k", top_k)
    for name, size in (("rows", count), ("top_k", pairs)):
        if size < 1:
            raise ValueError(f"{name}: got {size}, want at least 1")
    if device is None and w.device.type != "meta":
        machine = machine_of(w.device)
    else:
        machine = machine_asked(device)
    if w2 is None:
        problems: tuple[GroupedProblem, ...] = (_product(count, w, a_format, bias, machine),)
        stacks: tuple[MXTensor, ...] = (w,)
    else:
        check_weight("w2", w2)
        experts, n, hidden = w.shape
        if n % 2 or w2.shape != (experts, w2.shape[1], n // 2):
            raise ValueError(f"w2: got shape {w2.shape}, want ({experts}, H, {n / 2:g}) beside w of {w.shape}")
        x = _floats((count, hidden))
        b13, b2 = (_floats((experts, size)) if bias else None for size in (n, w2.shape[1]))
        options = LayerOptions(activation or SwiGLU(), a_format=a_format)
        problems = describe(x, w, w2, b13, b2, pairs, options, machine)
        stacks = w, w2
    return _explained(problems, stacks, route)


def _explained(
    problems: tuple[GroupedProblem, ...], stacks: tuple[MXTensor, ...], route: str | None
) -> ExpertsExplanation:
    chosen = choose(problems, route)
    refusals: list[Refused] = []
    possible: list[str] = []
    for name, other in ROUTES.items():
        if name == chosen.name:
            continue
        refusal = first_refusal(other, problems)
        if refusal is None:
            possible.append(name)
        else:
            refusals.append(Refused(name, refusal))
    reason = "it is named" if route is not None else f"it is the first that can, of {', '.join(ROUTES)}"
    if route is None and chosen.suits_what:
        reason += f", and there are {chosen.suits_what}"
    weights: list[str] = []
    read: list[GroupedProblem] = []
    for problem, stack in zip(problems, stacks, strict=True):
        made = stack.prepared
        prepared = made is not None and made.kind == STACK_FRAGMENTS.kind and chosen.reads_fragments
        read.append(in_fragments(problem) if prepared else problem)
        weights.append("prepared (fragment order)" if prepared else "as it lies")
    configs = tuple(chosen.described(problem) for problem in read)
    return ExpertsExplanation(
        tuple(read), tuple(weights), chosen.name, configs, reason, tuple(refusals), tuple(possible)
    )


def _product(rows: int, w: MXTensor, a_format: str, bias: bool, machine: Machine) -> GroupedProblem:
    experts, n, k = w.shape
    added = _floats((experts, n)) if bias else None
    a = _floats((rows, k))
    return GroupedProblem(
        rows,
        rows,
        n,
        k,
        experts,
        machine,
        strides_of(a, None, w.data, w.scales, added, None, a_format),
        a_format=a_format,
        b_format=w.format.name,
        a_dtype=torch.uint8 if a_format in FORMATS else a.dtype,
        bias_dtype=None if added is None else added.dtype,
        zeros=True,
    )


def _floats(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=torch.device("meta"))
