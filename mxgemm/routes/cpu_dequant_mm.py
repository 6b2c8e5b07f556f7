"""Route ``cpu_dequant_mm``: the weight decoded a slice at a time by a C kernel, torch's product of each, on a CPU.

For many rows of activations that are no small integers (bf16, e4m3), where a product of whole matrices is faster than
decoding in registers. On a CPU with bf16 products operands are bf16, which holds every decoded element exactly, and a
bias is three more columns of the weight, whose sum it is, so that all is rounded once. Another output dtype than bf16
has fp32 operands: torch's bf16 product on a CPU has no other result.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.ambient import plain_products
from mxgemm.cpu import build
from mxgemm.cpu.elements import decode, round_to
from mxgemm.device import Machine, cpu_features
from mxgemm.errors import Refusal
from mxgemm.mx.formats import scale_addend
from mxgemm.mx.layouts import scale_row
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route

SLICE_BYTES: Final = 1 << 24
"""A decoded slice of the weight. Smaller ones stay in nearer caches, but torch's threads meet at each."""
SLICE_COLUMNS: Final = 4096
"""And rows of the weight in it at most."""
ACTIVATION_BYTES: Final = 1 << 24
"""Rounded activations that are held at a time."""
PRODUCT_BYTES: Final = 1 << 24
"""The product of the two."""
_SLICE_ROWS: Final = 256  # slices start where scale tiles and weight tiles do
_BIAS_COLUMNS: Final = 32  # so that rows stay aligned


class CpuDequantMM(Route):
    """Decode in C, multiply by torch."""

    name = "cpu_dequant_mm"
    takes = "bf16, fp16 or fp32 A, any a_format; an e2m1 weight in any layout"

    def missing(self, machine: Machine) -> Refusal | None:
        """As ``cpu_native``: the kernels are of one library."""
        if machine.arch != "cpu":
            return Refusal("arch", machine.arch, "a CPU", "machine")
        found = build.library()
        return found if isinstance(found, Refusal) else None

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Any float A times an MXFP4 weight."""
        if problem.a_quantized:
            return Refusal("a", "quantised already", "bf16, fp16 or fp32 activations")
        if problem.b_format != "e2m1":
            return Refusal("b_format", problem.b_format, "e2m1")
        return contiguity_refusal(problem)

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        del config
        library = build.library()
        assert not isinstance(library, Refusal)
        return _Launch(library, problem)


def has_bf16_products() -> bool:
    """Say whether bf16 products of this CPU are faster than fp32 ones: it has instructions for them."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_features())


class _Launch:
    """Decoding and products of one problem."""

    def __init__(self, library: ctypes.CDLL, problem: Problem) -> None:
        p = self.problem = problem
        self.library = library
        self.dtype = torch.bfloat16 if p.out_dtype == torch.bfloat16 and has_bf16_products() else torch.float32
        self.width = p.k + (_BIAS_COLUMNS if p.has_bias and self.dtype == torch.bfloat16 else 0)
        self.addend = 0 if p.a is None else scale_addend(p.a, p.scale_rounding)
        row_bytes = self.width * self.dtype.itemsize
        fit = min(SLICE_BYTES // row_bytes, SLICE_COLUMNS)
        self.columns = min(max(p.n, 1), max(1, fit // _SLICE_ROWS) * _SLICE_ROWS)
        self.rows = max(1, min(ACTIVATION_BYTES // row_bytes, PRODUCT_BYTES // (self.columns * self.dtype.itemsize)))

    def __call__(self, operands: Operands) -> None:
        a, out = operands.a, operands.out
        p = self.problem
        for first in range(0, p.m, self.rows):
            rows = a[first : first + self.rows]
            with workspace.take(rows.shape[0] * self.width * self.dtype.itemsize, a.device) as arena:
                if p.a_format == "bf16" and self.dtype == rows.dtype == torch.bfloat16 and self.width == p.k:
                    left = rows
                else:
                    left = _matrix(arena.memory, rows.shape[0], self.width, self.dtype)
                    round_to(self.library, rows, p.a_format, self.addend, left[:, : p.k])
                    left[:, p.k :].fill_(1)
                self._multiply(left, operands, out[first : first + self.rows])

    def _multiply(self, left: Tensor, operands: Operands, out: Tensor) -> None:
        _, _, b, b_scales, bias, _, _ = operands
        p = self.problem
        with workspace.take(self.columns * self.width * self.dtype.itemsize, b.device) as arena:
            for start in range(0, p.n, self.columns):
                columns = slice(start, min(start + self.columns, p.n))
                right = _matrix(arena.memory, columns.stop - start, self.width, self.dtype)
                # Scales in tiles are padded, and whole: from a slice on they are those of its rows.
                tiled = p.scale_layout != "row_major"
                scales = b_scales[scale_row(p.scale_layout, start) :] if tiled else b_scales[columns]
                decode(self.library, b[columns], scales, p.weight_layout, p.scale_layout, right[:, : p.k])
                if bias is not None and self.width > p.k:
                    _split(bias[columns], right[:, p.k :])
                with plain_products("cpu"):
                    product = torch.mm(left, right.t())
                if bias is not None and self.width == p.k:
                    product += bias[columns].to(torch.float32)
                out[:, columns] = product


def _matrix(memory: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return memory[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)


def _split(bias: Tensor, columns: Tensor) -> None:
    """Write a bias as bf16 columns whose sum it is, to fp32's last bit; the rest of them are zeros."""
    rest = bias.to(torch.float32)
    columns.zero_()
    for i in range(3):
        columns[:, i] = rest
        rest = torch.where(rest.isfinite(), rest - columns[:, i].to(torch.float32), 0.0)
