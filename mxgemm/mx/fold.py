"""MXFP4 as e4m3 with a scale a row, which Hopper's tensor cores take: which rows *fold*, and how.

An e2m1 value times ``2**s`` is an e4m3 value exactly while ``-8 <= s <= 6``: 0.5 * 2**-8 is e4m3's least subnormal,
and 6 * 2**6 = 384 does not pass its 448. So a row whose scale exponents span at most 14 *folds*: one power of two a row
(its *base*) is pulled out, the rest of each block's scale moves into the elements. Blocks of zeros fold anywhere,
blocks with a NaN scale become e4m3 NaN.

gfx942's e4m3 is FNUZ: an exponent bias more, so that a byte is worth half, 240 at most, with no negative zero, whose
byte (0x80) is the only NaN. ``-9 <= s <= 5`` there: the span is the same, the base twice as large.

Route ``fp8_fold`` makes its forms of a weight with it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.mx.codec import decode_rows, row_chunks
from mxgemm.mx.formats import BLOCK, E8M0_NAN
from mxgemm.mx.layouts import round_up
from mxgemm.mx.tensor import MXTensor

FOLD_UP: Final = 6
FOLD_DOWN: Final = 8
FOLD_SPAN: Final = FOLD_UP + FOLD_DOWN
"""Largest span of scale exponents over the non-zero blocks of a row that folds into e4m3."""

FOLD_ROWS: Final = 16
"""Rows of a folded weight are padded to a multiple of this: torch's scaled product wants that."""


def row_bases(weight: MXTensor) -> tuple[Tensor, Tensor]:
    """Return every row's base as an exponent byte (uint8, 1..248, worth ``2**(byte - 127)``) and whether it folds.

    Args:
        weight: row-major e2m1, (N, K).
    """
    n, k = weight.shape
    codes = weight.data.view(n, k // BLOCK, BLOCK // 2) & 0x77  # without the signs: -0 is zero too
    exponent = weight.scales.to(torch.int32)
    live = codes.amax(-1).ne(0) & exponent.ne(E8M0_NAN) if k else exponent.bool()
    highest = torch.where(live, exponent, -1).amax(-1) if k else exponent.new_zeros(n)
    lowest = torch.where(live, exponent, E8M0_NAN).amin(-1) if k else exponent.new_full((n,), E8M0_NAN)
    # At least 1, so that the base itself is a normal fp32: a smaller one could be flushed.
    base = (highest - FOLD_UP).clamp(min=1)
    folds = lowest >= base - FOLD_DOWN
    return torch.where(highest < 0, 127, base).to(torch.uint8), folds | (highest < 0)


def fold(weight: MXTensor, base: Tensor, *, fnuz: bool = False) -> tuple[Tensor, Tensor]:
    """Fold a weight whose rows all fold.

    Args:
        weight: row-major e2m1, (N, K).
        base: what :func:`row_bases` says.
        fnuz: bytes of e4m3 FNUZ, and twice the base.

    Returns:
        e4m3 bytes (uint8 ``[N16, K]``) and fp32 bases ``[N16]``; rows past N are zeros with base 1.
    """
    n, k = weight.shape
    padded = round_up(n, FOLD_ROWS)
    data = torch.zeros(padded, k, dtype=torch.uint8, device=weight.device)
    for rows in row_chunks(n, k):
        shift = weight.scales[rows].to(torch.int32) - base[rows].to(torch.int32).unsqueeze(-1)
        byte = torch.where(weight.scales[rows].eq(E8M0_NAN), E8M0_NAN, (shift + 127).clamp(0, 254)).to(torch.uint8)
        values = decode_rows(weight.data[rows], byte, weight.format)
        element = (values * 0.5).to(torch.float8_e4m3fnuz) if fnuz else values.to(torch.float8_e4m3fn)
        data[rows] = element.view(torch.uint8)
    scale = torch.ones(padded, dtype=torch.float32, device=weight.device)
    scale[:n] = (base.to(torch.int32) + fnuz << 23).view(torch.float32)
    return data, scale
