"""The second call of a weight: its plan, found by what the call adds to the weight.

Validation and planning read shapes, strides, dtypes, devices and alignment of every operand, and so does the key of
``mxgemm.plan``. Those of a weight hardly ever change, so a weight keeps them with the plans made for it, and the key
here is of the activations, bias, output and options alone. What torch lets anyone do to a weight in place (resize,
transpose, ``.data = ``) is looked for at every call. Whatever is unusual goes the long way, which decides.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from mxgemm import plan
from mxgemm.memory import extent
from mxgemm.mx.freshness import mark_written
from mxgemm.mx.tensor import MXTensor
from mxgemm.plan import Plan, facts
from mxgemm.problem import Options

MAX_PLANS: Final = 256
"""Plans that one weight keeps; past this many they start over."""


class _Steady(NamedTuple):
    """A plan, and how many bytes lie between the first and the last of what a call brings; 0 for what it does not."""

    plan: Plan
    a_bytes: int
    bias_bytes: int
    out_bytes: int


class Known:
    """What a weight was when its plans were made, and these plans, which threads may add to at any time."""

    __slots__ = ("_data", "_data_place", "_derived", "_owned", "_scales", "_scales_place", "_stamp", "plans", "source")

    def __init__(self, weight: MXTensor) -> None:
        prepared = weight.prepared
        self._data, self._scales, _, _, self._derived = weight.operand()
        self._data_place, self._scales_place = _place(self._data), _place(self._scales)
        self._stamp = None if prepared is None else prepared.stamp
        made = () if prepared is None else prepared.tensors
        self._owned = tuple((tensor, _bytes(tensor)) for tensor in (weight.data, weight.scales, *made))
        self.source = plan.current_plans()
        self.plans: dict[Hashable, _Steady] = {}

    def holds(self) -> bool:
        """Say whether the weight is what and where it was, and what was made of its bytes up to date."""
        data, scales, stamp = self._data, self._scales, self._stamp
        return (
            (data.data_ptr(), data.shape, data.stride()) == self._data_place
            and (scales.data_ptr(), scales.shape, scales.stride()) == self._scales_place
            and (stamp is None or stamp.fresh())
        )

    def run(self, steady: _Steady, a: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor | None:
        """Return the product, or None where an output comes near an operand."""
        if out is not None and not self._apart(steady, a, bias, out):
            return None
        result = plan.execute(steady.plan, a, None, self._data, self._scales, bias, out, self._derived)
        if out is not None:
            mark_written(out)
        return result

    def _apart(self, steady: _Steady, a: Tensor, bias: Tensor | None, out: Tensor) -> bool:
        """Say whether no range of addresses meets the output's: views that interleave are left to the long way."""
        start = out.data_ptr()
        stop = start + steady.out_bytes
        at = a.data_ptr()
        if at < stop and start < at + steady.a_bytes:
            return False
        if bias is not None and bias.data_ptr() < stop and start < bias.data_ptr() + steady.bias_bytes:
            return False
        for tensor, nbytes in self._owned:
            at = tensor.data_ptr()
            if at < stop and start < at + nbytes:
                return False
        return True


def call(a: Tensor, weight: MXTensor, bias: Tensor | None, out: Tensor | None, options: Hashable) -> Tensor | None:
    """Return the product of a call like one that was remembered, else None."""
    known = weight.known
    if type(known) is not Known or known.source is not plan.current_plans():
        return None
    try:
        steady = known.plans.get(_key(a, bias, out, options))
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or options that cannot be hashed
        return None
    return known.run(steady, a, bias, out) if steady is not None and known.holds() else None


def remember(
    a: Tensor, weight: MXTensor, bias: Tensor | None, out: Tensor | None, options: Hashable, whole: Options
) -> None:
    """Keep the plan of a call that the long way has just made, if there is one to keep."""
    data, scales = weight.operand()[:2]
    found = plan.lookup(a, None, data, scales, bias, out, whole)
    if found is None or data.dtype != torch.uint8 or scales.dtype != torch.uint8:
        return
    known = weight.known
    if type(known) is not Known or known.source is not plan.current_plans() or not known.holds():
        known = Known(weight)
        object.__setattr__(weight, "known", known)  # no change of the weight, which is frozen
    if len(known.plans) >= MAX_PLANS:
        known.plans.clear()
    known.plans[_key(a, bias, out, options)] = _Steady(found, _bytes(a), _bytes(bias), _bytes(out))


def _key(a: Tensor, bias: Tensor | None, out: Tensor | None, options: Hashable) -> Hashable:
    return (
        facts(a),
        None if bias is None else facts(bias),
        None if out is None else facts(out),
        options,
    )


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _bytes(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    start, stop = extent(tensor)
    return stop - start
