"""Operands as callers may hand them over: any strides, any bytes, any special value, drawn by hypothesis.

A drawn ``Call`` is a seed and a few decisions, so that what fails shrinks to few and small decisions; the data itself
comes from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from hypothesis import strategies as st
from torch import Tensor

from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS

VIEWS: Final = ("contiguous", "transposed", "sliced", "offset", "misaligned", "flipped", "expanded", "negated")
"""How a matrix lies in memory, see :func:`view_of`."""
VALUES: Final = ("normal", "spread", "ties", "zeros", "special", "subnormal", "huge", "wide rows", "one hot")
"""What is in it, see :func:`values`."""
SCALES: Final = ("near one", "spread", "lowest", "highest", "any", "NaN")
"""Scale bytes of a weight, see :func:`weight_bytes`."""
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Matrix:
    """Decisions about one float matrix."""

    values: str
    view: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Weight:
    """Decisions about one weight."""

    format: str
    scales: str
    data_view: str
    scales_view: str


@dataclass(frozen=True)
class Call:
    """Decisions about one multiplication; ``bias`` and ``out_view`` may be None."""

    m: int
    n: int
    k: int
    a: Matrix
    weight: Weight
    bias: Matrix | None
    out_dtype: torch.dtype
    out_view: str | None
    scale_rounding: str
    seed: int


sizes = st.one_of(st.sampled_from((1, 2, 15, 16, 17, 31, 32, 33, 48, 64)), st.integers(1, 70))
depths = st.one_of(st.sampled_from((32, 64, 96, 128, 160, 256, 288, 512)), st.integers(1, 17).map(lambda i: 32 * i))
seeds = st.integers(0, 2**31 - 1)


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Any float matrix."""
    return Matrix(draw(st.sampled_from(VALUES)), draw(st.sampled_from(VIEWS)), draw(st.sampled_from(DTYPES)))


@st.composite
def weights(draw: st.DrawFn, formats: tuple[str, ...] = tuple(FORMATS)) -> Weight:
    """Any weight."""
    return Weight(
        draw(st.sampled_from(formats)),
        draw(st.sampled_from(SCALES)),
        draw(st.sampled_from(VIEWS)),
        draw(st.sampled_from(VIEWS)),
    )


@st.composite
def calls(draw: st.DrawFn, formats: tuple[str, ...] = tuple(FORMATS)) -> Call:
    """Any multiplication."""
    return Call(
        draw(sizes),
        draw(sizes),
        draw(depths),
        draw(matrices()),
        draw(weights(formats)),
        draw(st.none() | matrices()),
        draw(st.sampled_from(DTYPES)),
        draw(st.none() | st.sampled_from(("contiguous", "transposed", "sliced", "offset", "misaligned", "negated"))),
        draw(st.sampled_from(SCALE_ROUNDINGS)),
        draw(seeds),
    )


def values(kind: str, rows: int, columns: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Draw a matrix ``[rows, columns]`` of one of :data:`VALUES`."""
    x = torch.randn(rows, columns, generator=generator)
    blocks = -(-columns // 32)

    def powers(low: int, high: int, groups: tuple[int, int] = (rows, blocks)) -> Tensor:
        drawn = torch.exp2(torch.randint(low, high + 1, groups, generator=generator).double()).float()
        return drawn.repeat_interleave(32, dim=1)[:, :columns].expand(rows, columns)

    most = 15 if dtype == torch.float16 else 100
    if kind == "spread":
        x = x * powers(-min(most, 20), min(most - 5, 20))
    elif kind == "ties":
        x = torch.randint(-28, 29, (rows, columns), generator=generator) / 4
    elif kind == "zeros":
        x = torch.where(
            torch.rand(rows, blocks, generator=generator).repeat_interleave(32, 1)[:, :columns] < 0.6, -0.0, x
        )
    elif kind == "special":
        at = torch.rand(rows, columns, generator=generator)
        for i, value in enumerate((torch.nan, torch.inf, -torch.inf)):
            x = torch.where((at > i / 300) & (at < (i + 1) / 300), value, x)
    elif kind == "subnormal":
        x = (x.double() * 2.0 ** (-22 if dtype == torch.float16 else -129)).float()
    elif kind == "huge":
        x = x * 2.0 ** (12 if dtype == torch.float16 else 120)
    elif kind == "wide rows":
        x = x * powers(-min(most - 2, 14), min(most - 2, 12))
    elif kind == "one hot":
        x = torch.zeros(rows, columns)
        x[torch.arange(rows), torch.randint(0, columns, (rows,), generator=generator)] = 1.0
    return x.to(dtype)


def weight_bytes(weight: Weight, rows: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw element and scale bytes, row-major: every code, scales of one of :data:`SCALES`."""
    data = torch.randint(0, 256, (rows, k // FORMATS[weight.format].pack), generator=generator, dtype=torch.uint8)
    low, high = {
        "near one": (124, 130), "spread": (100, 140), "lowest": (0, 12), "highest": (230, 252), "any": (0, 254),
        "NaN": (120, 130),
    }[weight.scales]  # fmt: skip
    scales = torch.randint(low, high + 1, (rows, k // 32), generator=generator, dtype=torch.int32)
    if weight.scales == "NaN":
        scales = torch.where(torch.rand(scales.shape, generator=generator) < 0.05, 255, scales)
    return data, scales.to(torch.uint8)


def view_of(tensor: Tensor, kind: str) -> Tensor:
    """Return a matrix of the same values that lies otherwise: one of :data:`VIEWS`.

    What lies between the elements of a view with gaps is NaN or 0xFF, so a stray read shows. "expanded" has its first
    row in every place (other values, for a matrix of several rows); "flipped" is what ``flip`` copies, torch having no
    negative strides.
    """
    rows, columns = tensor.shape
    filler = torch.nan if tensor.is_floating_point() else 255
    if kind == "transposed":
        return tensor.t().contiguous().t()
    if kind == "sliced":
        memory = torch.full((2 * rows + 1, 3 * columns + 2), filler, dtype=tensor.dtype)
        return memory[1::2][:rows, 2::3][:, :columns].copy_(tensor)
    if kind == "offset":
        memory = torch.full((rows + 2, columns + 16), filler, dtype=tensor.dtype)
        return memory[1:-1, 8:-8].copy_(tensor)
    if kind == "misaligned":
        memory = torch.full((tensor.numel() + 2,), filler, dtype=tensor.dtype)
        return memory[1:-1].view(rows, columns).copy_(tensor)
    if kind == "flipped":
        return tensor.flip(0, 1).flip(0, 1)
    if kind == "expanded":
        return tensor[:1].expand(rows, columns)
    if kind == "negated":
        return torch._neg_view(-tensor if tensor.is_floating_point() else 0 - tensor)
    return tensor
