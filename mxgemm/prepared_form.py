"""How a weight reaches a route, and what ``MXTensor.prepare()`` makes of one on a machine: asked without a weight."""

from __future__ import annotations

from dataclasses import dataclass

from mxgemm.mx.fold import FP8_FOLD
from mxgemm.mx.formats import E2M1
from mxgemm.mx.layouts import ROW_MAJOR, Layout, preshuffle_refusal
from mxgemm.mx.tensor import PREPARED_LAYOUT


@dataclass(frozen=True, slots=True)
class WeightForm:
    """What a route gets of a weight.

    Attributes:
        layout: of its bytes and scales.
        derived: what ``prepare()`` made of it besides a layout, "" for nothing.
    """

    layout: Layout = ROW_MAJOR
    derived: str = ""

    def __str__(self) -> str:
        if self.derived or self.layout == ROW_MAJOR:
            return self.derived or "row-major"
        data, scales = (name.replace("_", "-") for name in (self.layout.data, self.layout.scales))
        return f"{data}, scales {scales}"


def prepared_form(arch: str, shape: tuple[int, int] | None = None) -> WeightForm:
    """Say what ``prepare()`` makes of an e2m1 weight on an architecture.

    Args:
        arch: of the machine.
        shape: (N, K) of the weight, None for one that any form fits.

    Returns:
        on sm_90 the form of a weight whose rows all fold, which only its scales can tell; row-major for nothing.
    """
    if arch == "sm_90":
        return WeightForm(derived=FP8_FOLD)
    layout = PREPARED_LAYOUT.get(arch, ROW_MAJOR)
    if shape is not None and preshuffle_refusal(shape[0], shape[1] // E2M1.pack):
        layout = ROW_MAJOR
    return WeightForm(layout)
