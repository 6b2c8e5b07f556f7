"""The forms of a weight that route ``fp8_fold`` reads: e4m3 or e4m3 FNUZ with a base a row, or the bases alone."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.mx.fold import FOLD_ROWS, fold, row_bases
from mxgemm.mx.fragments import fragment_bytes, fragment_order
from mxgemm.mx.layouts import round_up
from mxgemm.mx.prepared import WeightForm, only_e2m1
from mxgemm.mx.tensor import MXTensor


def folded_bytes(n: int, k: int) -> int:
    """Return the bytes of the e4m3 elements of :data:`FP8_FOLD`."""
    return round_up(n, FOLD_ROWS) * k


def _folded(weight: MXTensor) -> tuple[Tensor, Tensor] | None:
    base, folds = row_bases(weight)
    if not bool(folds.all()):
        return None
    elements, bases = fold(weight, base)
    return torch.cat((elements.view(-1), fragment_order(weight.data, weight.scales))), bases


def _folded_fnuz(weight: MXTensor) -> tuple[Tensor, Tensor] | None:
    base, folds = row_bases(weight)
    if not bool(folds.all()):
        return None
    elements, bases = fold(weight, base, fnuz=True)
    return elements.view(-1), bases


def _bases(weight: MXTensor) -> tuple[Tensor] | None:
    base, folds = row_bases(weight)
    return (base,) if bool(folds.all()) else None


FP8_FOLD: Final = WeightForm(
    "fp8_fold",
    archs=("sm_90",),
    memory="fast",
    refusal=only_e2m1,
    make=_folded,
    a_formats=("e2m1",),
    parts=lambda n, k: (
        (torch.uint8, (folded_bytes(n, k) + fragment_bytes(n, k),)),
        (torch.float32, (round_up(n, FOLD_ROWS),)),
    ),
)
"""e4m3 bytes ``[N16, K]``, the weight in fragment order for ``w4_mma`` behind them, and fp32 bases ``[N16]``, N padded
to 16. In e4m3 blocks of zeros and of NaN lose their scales and codes."""

FP8_FOLD_COMPACT: Final = WeightForm(
    "fp8_fold_compact",
    archs=("sm_90",),
    memory="compact",
    refusal=only_e2m1,
    make=_bases,
    a_formats=("e2m1",),
    parts=lambda n, k: ((torch.uint8, (n,)),),
)
"""The bases alone, as exponent bytes uint8 ``[N]``: elements are decoded at each call. A weight that does not fold gets
none: route ``dequant_mm`` decodes its bytes."""


FP8_FOLD_FNUZ: Final = WeightForm(
    "fp8_fold_fnuz",
    archs=("gfx942",),
    memory="fast",
    refusal=only_e2m1,
    make=_folded_fnuz,
    a_formats=("e2m1",),
    parts=lambda n, k: ((torch.uint8, (folded_bytes(n, k),)), (torch.float32, (round_up(n, FOLD_ROWS),))),
)
"""gfx942's e4m3 bytes ``[N16, K]``, which are worth half, and fp32 bases ``[N16]``, N padded to 16."""
