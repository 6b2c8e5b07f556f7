"""Route ``reference`` of grouped products: a loop over experts in torch, on any device. It reads the offsets."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts.problem import GroupedProblem, Operands, Routing
from mxgemm.experts.route import Combine, ExpertsRoute, Launch, Sort, Sorted
from mxgemm.mx.codec import decode_rows, row_chunks
from mxgemm.mx.formats import FORMATS
from mxgemm.quantize import encode

TILE_ELEMENTS: Final = 1 << 20
"""Elements of one decoded fp32 tile of a weight."""


class Reference(ExpertsRoute):
    """Decode, multiply in fp32, activate, round once. A GPU is waited for."""

    name = "reference"
    takes = "everything"

    def missing(self, machine: Machine) -> Refusal | None:
        """Nothing, anywhere."""
        del machine
        return None

    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """Everything."""
        del problem
        return None

    def bind(self, problem: GroupedProblem) -> Launch:
        """Return the launcher."""

        def launch(o: Operands) -> None:
            for expert, rows in enumerate(groups_of(o.offsets, problem.rows)):
                if rows.start == rows.stop:
                    continue
                a, scales, absent = rows_of_a(problem, o, rows)
                left = a.to(torch.bfloat16).to(torch.float32)
                if scales is not None:
                    left = decode_rows(a.contiguous(), scales.contiguous(), FORMATS[problem.a_format])
                sums = torch.empty((left.shape[0], problem.n), dtype=torch.float32, device=left.device)
                for part in row_chunks(problem.n, problem.k, TILE_ELEMENTS):
                    w, w_scales = o.w[expert, part].contiguous(), o.w_scales[expert, part].contiguous()
                    with plain_products(left.device.type):
                        sums[:, part] = left @ decode_rows(w, w_scales, problem.b).T
                if o.bias is not None:
                    sums += o.bias[expert].to(torch.float32)
                if problem.activation is not None:
                    sums = problem.activation.apply(sums)
                write_rows(problem, o, rows, sums, absent)
            clear_the_rest(problem, o)

        return launch

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return torch's stable sort; nothing of it is read by the host."""
        assert block_rows == 0

        def sort(ids: Tensor, expert_map: Tensor | None) -> Sorted:
            experts = local_experts(ids.reshape(-1), routing, expert_map)
            keys = torch.where(experts < 0, routing.experts, experts)
            ordered, index = torch.sort(keys, stable=True)
            bounds = torch.arange(routing.experts + 1, dtype=ordered.dtype, device=ordered.device)
            return Sorted(index.to(torch.int32), torch.searchsorted(ordered, bounds, out_int32=True), None)

        return sort

    def bind_combine(self, routing: Routing) -> Combine:
        """Return a loop over the pairs of a token; each operation rounds once, wherever an element lies."""

        def combine(y: Tensor, ids: Tensor, weights: Tensor, expert_map: Tensor | None, out: Tensor) -> None:
            tokens, top_k = ids.shape
            there = local_experts(ids, routing, expert_map) >= 0
            rows, factors = y.view(tokens, top_k, -1), weights.to(torch.float32)
            total = torch.zeros((tokens, routing.columns), dtype=torch.float32, device=y.device)
            for j in range(top_k):
                weighted = rows[:, j] * factors[:, j : j + 1]
                total += torch.where(there[:, j : j + 1], weighted, 0.0)
            out.copy_(total)

        return combine


def groups_of(offsets: Tensor, rows: int) -> list[slice]:
    """Return each expert's rows, cut off where offsets decrease or leave 0..rows."""
    bounds = [0]
    for bound in offsets.tolist():
        bounds.append(min(max(bound, bounds[-1]), rows))
    return [slice(start, stop) for start, stop in pairwise(bounds[1:])]


def rows_of_a(problem: GroupedProblem, o: Operands, rows: slice) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return A's rows and scales that a group reads, and where its index leaves A (None: nowhere can it)."""
    if not problem.reads_index:
        return o.a[rows], None if o.a_scales is None else o.a_scales[rows], None
    assert o.places is not None
    index = o.places[rows].to(torch.int64)
    at = index // problem.divisor
    absent = (index < 0) | (at >= problem.a_rows)
    at = torch.where(absent, 0, at)
    return o.a.index_select(0, at), None if o.a_scales is None else o.a_scales.index_select(0, at), absent


def write_rows(problem: GroupedProblem, o: Operands, rows: slice, values: Tensor, absent: Tensor | None) -> None:
    """Round a group's results, fp32 ``[rows, columns]``, to where they belong."""
    if absent is not None:
        values.masked_fill_(absent.unsqueeze(1), float("nan"))
    if problem.out_format:
        assert o.out_scales is not None
        data, scales = encode(values, problem.out_format, problem.scale_rounding)
        parts = ((o.out, data), (o.out_scales, scales))
    else:
        parts = ((o.out, values.to(problem.out_dtype)),)  # type: ignore[assignment]
    for target, made in parts:
        if problem.writes_index:
            assert o.places is not None
            target.index_copy_(0, o.places[rows].to(torch.int64), made)
        else:
            target[rows] = made


def clear_the_rest(problem: GroupedProblem, o: Operands) -> None:
    """Write zeros to the rows of no expert, if the problem wants them."""
    if problem.zeros:
        groups = groups_of(o.offsets, problem.rows)
        o.out[: groups[0].start] = 0
        o.out[groups[-1].stop :] = 0


def local_experts(ids: Tensor, routing: Routing, expert_map: Tensor | None) -> Tensor:
    """Return the experts of this call that ids mean, int64; -1 for a dropped pair and for another rank's."""
    ids = ids.to(torch.int64)
    if expert_map is None:
        local = ids - routing.first
        return torch.where((ids < 0) | (local < 0) | (local >= routing.experts), -1, local)
    known = (ids >= 0) & (ids < routing.mapped)
    local = expert_map[torch.where(known, ids, 0)].to(torch.int64)
    return torch.where(known & (local >= 0) & (local < routing.experts), local, -1)
