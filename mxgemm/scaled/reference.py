"""Route ``reference`` of ``quant_gemm``: torch, in pieces so that memory stays bounded, on any device."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.codec import row_chunks
from mxgemm.scaled.formats import ScaleName, decode, decode_scale
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute
from mxgemm.scaled.schemes import Kind

TILE_ELEMENTS: Final = 1 << 20
"""Elements of one decoded fp32 tile, which on a CPU stays in the cache until it is multiplied."""


class Reference(QuantRoute):
    """Decode, apply the scales of groups, multiply in fp32, apply the other scales, round once."""

    name = "reference"
    takes = "everything"

    def missing(self, machine: Machine) -> Refusal | None:
        """Nothing, anywhere."""
        del machine
        return None

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """Everything."""
        del problem
        return None

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher. Of the grouped form it reads the offsets, so a GPU is waited for."""

        def launch(operands: Operands) -> None:
            a, a_scales, b, b_scales, bias, out, offsets = operands
            if offsets is None:
                _multiply(problem, a, a_scales, b, b_scales, bias, out)
                return
            start = 0
            for group, end in enumerate(offsets.tolist()):
                rows = slice(start, min(max(end, start), problem.m))
                scales = a_scales if a_scales is None or problem.scheme.a_kind == "tensor" else a_scales[rows]
                part = None if b_scales is None else b_scales[group]
                _multiply(problem, a[rows], scales, b[group], part, None, out[rows])
                start = rows.stop
            out[start:].zero_()

        return launch


def _multiply(
    problem: QuantProblem,
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
) -> None:
    s = problem.scheme
    for rows in row_chunks(a.shape[0], problem.k, TILE_ELEMENTS):
        left = _scaled(a, problem.a_format, a_scales, problem.a_scale, s.a_kind, (1, s.a_group), rows)
        for columns in row_chunks(problem.n, problem.k, TILE_ELEMENTS):
            right = _scaled(b, problem.b_format, b_scales, problem.b_scale, s.b_kind, s.b_group, columns)
            with plain_products(b.device.type):
                tile = left @ right.T
            _apply(tile, a_scales, s.a_kind, rows, 1)
            _apply(tile, b_scales, s.b_kind, columns, 0)
            if bias is not None:
                tile += bias[columns].to(torch.float32)
            out[rows, columns] = tile.to(out.dtype)


def _scaled(
    data: Tensor, fmt: str, scales: Tensor | None, name: ScaleName, kind: Kind, group: tuple[int, int], rows: slice
) -> Tensor:
    """Return rows of an operand as fp32, scales of groups applied."""
    values = decode(data[rows].contiguous(), fmt)
    if scales is None or kind != "group":
        return values
    n, k = group
    index = torch.arange(rows.start, rows.stop, dtype=torch.int64, device=data.device) // n
    factor = decode_scale(scales[index].contiguous(), name).repeat_interleave(k, 1)[:, : values.shape[1]]
    return values * factor


def _apply(tile: Tensor, scales: Tensor | None, kind: Kind, part: slice, dim: int) -> None:
    """Apply scales of rows or of the tensor to sums."""
    if scales is not None and kind == "tensor":
        tile *= scales.reshape(())
    elif scales is not None and kind == "row":
        tile *= scales[part].unsqueeze(dim)
