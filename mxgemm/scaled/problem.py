"""One quantised GEMM as its routes see it: sizes, scheme, formats, strides, machine. No tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.scaled.formats import FORMATS, ScaleName
from mxgemm.scaled.schemes import Scheme


class Options(NamedTuple):
    """What a call says besides its tensors."""

    scheme: Scheme
    a_format: str
    b_format: str
    out_dtype: torch.dtype = torch.bfloat16
    route: str | None = None


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides in stored elements (bytes, packed ones, or bf16), 0 where there is nothing to step over.

    (row, along K) of both operands and of their scales, (row, column) of C; of the grouped form by offsets also from
    one matrix of B, and of its scales, to the next.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    a_scales: tuple[int, int]
    b_scales: tuple[int, int]
    out: tuple[int, int]
    bias: int = 0
    b_group: int = 0
    b_scales_group: int = 0


@dataclass(frozen=True, slots=True)
class QuantProblem:
    """``C[m, n] = A[m, k] @ B[n, k].T``, both with scales, described.

    Attributes:
        m: rows of A, all leading dimensions multiplied; of the grouped form those of all groups.
        n: rows of B.
        k: elements along the contraction.
        machine: where it runs.
        options: scheme, formats, dtype of C, route.
        strides: of every operand.
        a_scale: how A's scales are stored; "fp32" where there are none.
        b_scale: the same of B.
        bias_dtype: dtype of the bias, None without one.
        aligned: every data pointer is a multiple of 16 bytes.
        groups: matrices of B in the grouped form by offsets; 0 for one problem.
    """

    m: int
    n: int
    k: int
    machine: Machine
    options: Options
    strides: Strides
    a_scale: ScaleName = "fp32"
    b_scale: ScaleName = "fp32"
    bias_dtype: torch.dtype | None = None
    aligned: bool = True
    groups: int = 0

    @property
    def scheme(self) -> Scheme:
        """Where the scales are."""
        return self.options.scheme

    @property
    def a_format(self) -> str:
        """Format of A's elements."""
        return self.options.a_format

    @property
    def b_format(self) -> str:
        """Format of B's elements."""
        return self.options.b_format

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of C."""
        return self.options.out_dtype

    @property
    def arch(self) -> str:
        """Architecture of the machine."""
        return self.machine.arch

    @property
    def traffic_bytes(self) -> int:
        """Bytes that must cross memory once: both operands, their scales, C."""
        s = self.scheme
        matrices = max(self.groups, 1)
        total = _bytes(self.m * self.k, self.a_format) + matrices * _bytes(self.n * self.k, self.b_format)
        for kind, rows, (n, k), name in (
            (s.a_kind, self.m, (1, s.a_group), self.a_scale),
            (s.b_kind, self.n, s.b_group, self.b_scale),
        ):
            counts = {"none": 0, "tensor": 1, "row": rows, "group": -(-rows // n) * -(-self.k // k)}
            total += counts[kind] * (4 if name == "fp32" else 1)
        return total + self.m * self.n * self.out_dtype.itemsize

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"({self.m}, {self.n}, {self.k}) {self.a_format} x {self.b_format}, {self.scheme}, on {self.arch}"


class Operands(NamedTuple):
    """The tensors of one launch: elements as bytes (bf16 as it is), A and C two-dimensional.

    Attributes:
        a: ``[M, K/pack]``.
        a_scales: as the scheme has them, rows flattened; None without.
        b: ``[N, K/pack]``, of the grouped form ``[G, N, K/pack]``.
        b_scales: as the scheme has them; None without.
        bias: ``[N]`` or None.
        out: ``[M, N]``, filled by the launch.
        offsets: ends of the groups, int32 ``[G]`` on the device; None for one problem.
    """

    a: Tensor
    a_scales: Tensor | None
    b: Tensor
    b_scales: Tensor | None
    bias: Tensor | None
    out: Tensor
    offsets: Tensor | None = None


def _bytes(elements: int, fmt: str) -> int:
    return elements * 2 if fmt == "bf16" else elements // FORMATS[fmt].pack
