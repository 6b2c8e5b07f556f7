"""The steps of a layer of experts: what the two products are, a route bound to them, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mxgemm.device import Machine, machine_of
from mxgemm.experts.activation import SwiGLU
from mxgemm.experts.choice import choose
from mxgemm.experts.forms import in_fragments, weight_of
from mxgemm.experts.plan import strides_of
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Strides, Tokens
from mxgemm.experts.route import BothProducts, Combine, Launch, Quantise, Sort
from mxgemm.mx.formats import BLOCK, FORMATS
from mxgemm.mx.tensor import MXTensor


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
        quantise: see there.
        rounds: see there.
        whole: see there.
    """

    problems: tuple[GroupedProblem, GroupedProblem]
    routing: Routing
    sort: Sort | None
    products: tuple[Launch, ...]
    combine: Combine
    quantise: Quantise | None = None
    rounds: bool = False
    whole: BothProducts | None = None


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
    read = (w13.data, w2.data) if quantised and left_scales is None else (left, w13.data, w2.data)
    aligned = all(tensor.is_meta or tensor.data_ptr() % 16 == 0 for tensor in read)
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
        aligned=aligned,
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
        aligned=aligned,
    )
    return one, two


def bind_steps(
    problems: tuple[GroupedProblem, GroupedProblem],
    routing: Routing,
    route: str | None,
    prepared: tuple[bool, bool],
    tokens: Tokens | None = None,
) -> Steps:
    """Choose a route for the two products of a layer and bind it.

    Args:
        problems: the two, of weights as they lie.
        routing: of the pairs.
        route: as in ``moe``.
        prepared: which of the two weights have a form that a route may read instead.
        tokens: as they come, None where they have been quantised.

    Raises:
        RouteUnavailable: the route that is named cannot run here.
    """
    chosen = choose(problems, route)
    if chosen.reads_fragments:
        one, two = (in_fragments(p) if has else p for p, has in zip(problems, prepared, strict=True))
        problems = one, two
    return Steps(problems, routing, *chosen.bind_layer(problems, routing, tokens))


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
    added = [None if bias is None else bias.resolve_neg() for bias in (b13, b2)]
    if steps.whole is not None:
        first, second = (*weight_of(w13, one), added[0]), (*weight_of(w2, two), added[1])
        return steps.whole(data, a_scales, first, second, ids, expert_map)
    assert steps.sort is not None
    ordered = steps.sort(ids, expert_map)
    inner = torch.empty((one.rows, one.strides.out[0]), dtype=one.out_dtype, device=data.device)
    scales = None
    if one.out_format:
        scales = torch.empty((one.rows, one.columns // BLOCK), dtype=torch.uint8, device=data.device)
    y = torch.empty((two.rows, two.n), dtype=torch.float32, device=data.device)
    where = (ordered.offsets, ordered.places, ordered.tiles)
    codes, of_codes = weight_of(w13, one)
    steps.products[0](Operands(data, a_scales, codes, of_codes, added[0], *where, inner, scales))
    codes, of_codes = weight_of(w2, two)
    steps.products[1](Operands(inner, scales, codes, of_codes, added[1], *where, y))
    return y
