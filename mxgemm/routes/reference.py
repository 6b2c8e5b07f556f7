"""Route ``reference``: plain torch on any device, the CPU's default and everyone's last resort.

Operands are decoded to fp32 in tiles, so peak extra memory stays under 256 MB whatever N and K are
(bench/peak_memory.py), and multiplied by torch's fp32 matmul at full precision, whatever is set: TF32 and bf16 would
round no operand, for decoded MX elements and bf16 have at most eight significant bits, but they sum in another order.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.codec import decode_rows, row_chunks
from mxgemm.mx.formats import BLOCK, FORMATS, ElementFormat
from mxgemm.mx.fragments import row_major_parts
from mxgemm.mx.layouts import (
    FRAGMENT_ROWS,
    FRAGMENTS,
    SWIZZLE_ROWS,
    round_up,
    row_major_scales,
    scale_row,
    unpreshuffle_weight,
)
from mxgemm.problem import Config, Problem
from mxgemm.quantize import encode
from mxgemm.routes.base import Launch, Operands, Route

TILE_BYTES: Final = 1 << 25
"""Size of one decoded fp32 tile; decoding and quantising one take about three times as much besides."""
CPU_WEIGHT_TILE_BYTES: Final = 1 << 22
"""On a CPU, weight tiles that stay in the cache between decoding and multiplying: 2.6x faster than 32 MB ones."""


class Reference(Route):
    """Decode, multiply, round once."""

    name = "reference"
    takes = "everything"
    reads_fragments = True

    def missing(self, machine: Machine) -> Refusal | None:
        """Nothing, anywhere."""
        del machine
        return None

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Everything."""
        del problem
        return None

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        del config

        def launch(operands: Operands) -> None:
            a, a_scales, b, b_scales, bias, out, _ = operands
            weight_tile = min(TILE_BYTES, CPU_WEIGHT_TILE_BYTES) if b.device.type == "cpu" else TILE_BYTES
            for rows in row_chunks(problem.m, problem.k, TILE_BYTES // 4):
                part_scales = None if a_scales is None else _scale_rows(a_scales, rows, problem, problem.a_scale_layout)
                left = _decode_a(a[rows], part_scales, problem)
                for columns in row_chunks(problem.n, problem.k, weight_tile // 4):
                    right = _decode_b(b, b_scales, columns, problem)
                    with plain_products(b.device.type):
                        tile = left @ right.T
                    if bias is not None:
                        tile += bias[columns].to(torch.float32)
                    out[rows, columns] = tile.to(problem.out_dtype)

        return launch


def _decode_a(a: Tensor, a_scales: Tensor | None, problem: Problem) -> Tensor:
    if a_scales is not None:
        return decode_rows(a.contiguous(), a_scales, FORMATS[problem.a_format])
    if problem.a_format == "bf16":
        return a.to(torch.bfloat16).to(torch.float32)
    return decode_rows(*encode(a, problem.a_format, problem.scale_rounding), FORMATS[problem.a_format])


def _decode_b(b: Tensor, b_scales: Tensor, rows: slice, problem: Problem) -> Tensor:
    fmt: ElementFormat = problem.b
    if problem.weight_layout == FRAGMENTS:
        start, stop = rows.start // FRAGMENT_ROWS * FRAGMENT_ROWS, round_up(rows.stop, FRAGMENT_ROWS)
        part = slice(rows.start - start, rows.stop - start)
        data, scales = row_major_parts(b[start:stop], b_scales[start:stop])
        return decode_rows(data[part].contiguous(), scales[part].contiguous(), fmt)
    if problem.weight_layout == "preshuffled":
        tiles = slice(rows.start // 16 * 16, -(-rows.stop // 16) * 16)
        data = unpreshuffle_weight(b[tiles].contiguous())[rows.start - tiles.start : rows.stop - tiles.start]
    else:
        data = b[rows]
    return decode_rows(data.contiguous(), _scale_rows(b_scales, rows, problem, problem.scale_layout), fmt)


def _scale_rows(scales: Tensor, rows: slice, problem: Problem, layout: str) -> Tensor:
    if layout == "row_major":
        return scales[rows].contiguous()
    tile = SWIZZLE_ROWS if layout == "swizzled_32_4_4" else 32
    tiles = slice(rows.start // tile * tile, -(-rows.stop // tile) * tile)
    stored = scales[scale_row(layout, tiles.start) : scale_row(layout, tiles.stop)].contiguous()
    part = row_major_scales(stored, layout, tiles.stop - tiles.start, problem.k // BLOCK)
    return part[rows.start - tiles.start : rows.stop - tiles.start]
