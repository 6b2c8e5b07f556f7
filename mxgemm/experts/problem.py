"""One grouped product as its routes see it, and the two small steps around two of them. No tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.experts.activation import SwiGLU
from mxgemm.mx.formats import BLOCK, FORMATS, ElementFormat


class Options(NamedTuple):
    """What a call of ``grouped_gemm`` says besides its tensors."""

    a_format: str = "e2m1"
    b_format: str = "e2m1"
    scale_rounding: str = "even"
    out_dtype: torch.dtype = torch.bfloat16
    route: str | None = None
    a_shape: tuple[int, ...] | None = None
    """Logical shape of the MXTensor that A is; None for floats."""
    w_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides in stored elements: (row, column) of A, its scales and the result; (expert, row, column) of the weight.

    ``bias`` is (expert, column).
    """

    a: tuple[int, int]
    w: tuple[int, int, int]
    w_scales: tuple[int, int, int]
    out: tuple[int, int]
    a_scales: tuple[int, int] = (0, 0)
    bias: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class GroupedProblem:
    """``C[rows of e] = activation(A[rows of e] @ W[e].T + bias[e])`` for every expert e, described.

    Attributes:
        rows: of the result before they are written: what the offsets divide.
        a_rows: of A.
        n: rows of each expert's weight.
        k: elements along the contraction.
        experts: number of weights.
        machine: where it runs.
        a_format: of A's bytes; "bf16" where A is floats, which are rounded to that.
        b_format: of the weight.
        a_dtype: of A, uint8 where it is bytes.
        out_dtype: of the result, uint8 where it is bytes.
        strides: of every operand.
        bias_dtype: None without a bias.
        reads_index: row r of the product is row ``places[r] // divisor`` of A, NaN where there is no such row; else r.
        divisor: see ``reads_index``.
        writes_index: it is written to row ``places[r]`` of the result; else to r.
        zeros: rows that belong to no expert are written, as zeros; else they are left alone.
        activation: None for none. With one the result has ``n / 2`` columns.
        out_format: the result is bytes of this format, with scales; "" for floats.
        scale_rounding: rule for these scales.
        aligned: every data pointer is a multiple of 16 bytes.
        fragments: the weight and its scales are those of every expert in fragment order (``mxgemm.mx.fragments``).
    """

    rows: int
    a_rows: int
    n: int
    k: int
    experts: int
    machine: Machine
    strides: Strides
    a_format: str = "bf16"
    b_format: str = "e2m1"
    a_dtype: torch.dtype = torch.bfloat16
    out_dtype: torch.dtype = torch.bfloat16
    bias_dtype: torch.dtype | None = None
    reads_index: bool = False
    divisor: int = 1
    writes_index: bool = False
    zeros: bool = False
    activation: SwiGLU | None = None
    out_format: str = ""
    scale_rounding: str = "even"
    aligned: bool = True
    fragments: bool = False

    @property
    def arch(self) -> str:
        """Architecture of the machine."""
        return self.machine.arch

    @property
    def columns(self) -> int:
        """Columns of the result, in elements."""
        return self.n // 2 if self.activation else self.n

    @property
    def a(self) -> ElementFormat | None:
        """Element format of A, None for bf16."""
        return FORMATS.get(self.a_format)

    @property
    def b(self) -> ElementFormat:
        """Element format of the weight."""
        return FORMATS[self.b_format]

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's weight and scales."""
        return self.n * (self.k // self.b.pack + self.k // BLOCK)

    def __str__(self) -> str:
        return f"{self.experts} x ({self.n}, {self.k}) by {self.rows} rows of {self.a_format} on {self.arch}"


class Operands(NamedTuple):
    """The tensors of one grouped product.

    Attributes:
        a: ``[a_rows, K]`` floats, or bytes ``[a_rows, K/pack]``.
        a_scales: ``[a_rows, K/32]`` beside bytes; else None.
        w: bytes ``[E, N, K/pack]``.
        w_scales: ``[E, N, K/32]``.
        bias: ``[E, N]`` or None.
        offsets: int32 ``[E + 1]``, contiguous.
        places: int32 ``[rows]``, contiguous, where the problem reads or writes by it.
        tiles: the tile list that a route asked for, if it is made already.
        out: ``[rows, columns]``, or bytes.
        out_scales: ``[rows, columns/32]`` beside bytes.
    """

    a: Tensor
    a_scales: Tensor | None
    w: Tensor
    w_scales: Tensor
    bias: Tensor | None
    offsets: Tensor
    places: Tensor | None
    tiles: Tensor | None
    out: Tensor
    out_scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """Which pairs of a token and an expert there are, described.

    Attributes:
        tokens: T.
        top_k: pairs of a token.
        experts: of this call, numbered from 0.
        first: the first of them among the ids, where there is no map.
        mapped: length of the map from ids to experts of this call, 0 for none.
        id_dtype: int32 or int64.
        columns: of the result.
        weight_dtype: of the router's weights.
        out_dtype: of the result.
        machine: where it runs.
        out_strides: of the result.
    """

    tokens: int
    top_k: int
    experts: int
    first: int
    mapped: int
    id_dtype: torch.dtype
    columns: int
    weight_dtype: torch.dtype
    out_dtype: torch.dtype
    machine: Machine
    out_strides: tuple[int, int]

    @property
    def pairs(self) -> int:
        """Pairs of a token and an expert."""
        return self.tokens * self.top_k


@dataclass(frozen=True, slots=True)
class Tokens:
    """A layer's tokens as they come, described.

    Attributes:
        tokens: T.
        hidden: their length.
        dtype: of floats.
        strides: in elements.
        a_format: what they are quantised to; "bf16" for not at all.
        scale_rounding: rule for their block scales.
        aligned: they begin at a multiple of 16 bytes.
    """

    tokens: int
    hidden: int
    dtype: torch.dtype
    strides: tuple[int, int]
    a_format: str
    scale_rounding: str
    aligned: bool


def tile_list_rows(rows: int, experts: int, block: int) -> int:
    """Return how many rows a tile list needs for any offsets: its head, and a part of a tile for each group.

    Groups are those of the experts, and the rows before and behind them. A group of r rows has at most r // block + 1
    tiles, and an empty one none.
    """
    return 1 + rows // block + min(experts + 2, rows)
