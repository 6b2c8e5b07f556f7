"""The order of bytes and scales that gfx950's fastest routes read: the one form that several routes share."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from mxgemm.errors import Refusal
from mxgemm.mx.formats import ElementFormat
from mxgemm.mx.layouts import Layout, preshuffle_refusal, preshuffle_weight, shuffle_scales
from mxgemm.mx.prepared import WeightForm
from mxgemm.mx.tensor import MXTensor


def _refusal(fmt: ElementFormat, n: int, k: int) -> Refusal | None:
    return preshuffle_refusal(n, k // fmt.pack)


def _make(weight: MXTensor) -> tuple[Tensor, Tensor]:
    return preshuffle_weight(weight.data), shuffle_scales(weight.scales)


PRESHUFFLED: Final = WeightForm(
    "preshuffled",
    archs=("gfx950",),
    memory="fast",
    refusal=_refusal,
    make=_make,
    layout=Layout("preshuffled", "shuffled"),
)
