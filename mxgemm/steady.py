"""The second call of a weight: its plan, found by what the call adds to the weight.

Validation and planning read shapes, strides, dtypes, devices and alignment of every operand, and so does the key of
``mxgemm.plan``. Those of a weight hardly ever change, so a weight keeps them with the plans made for it, and the key
here is of the activations, bias, output and options alone. What torch lets anyone do to a weight in place (resize,
transpose, ``.data = ``) is looked for at every call. Whatever is unusual goes the long way, which decides.

This is the definition; ``mxgemm.native`` does the same in C for plans whose launches can be described, once they have
been used a few times, or warmed up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import plan
from mxgemm.memory import extent
from mxgemm.mx.freshness import mark_written
from mxgemm.mx.tensor import MXTensor
from mxgemm.native import module
from mxgemm.native.captured import relaxed
from mxgemm.notices import say_once
from mxgemm.plan import Plan, facts
from mxgemm.problem import Options

MAX_PLANS: Final = 256
"""Plans that one weight keeps; past this many they start over."""
SETTLE_AT: Final = 8
"""Uses of a plan by which C is told of it: describing its launches takes as long as C saves in some thirty calls."""


quick: Callable[..., Tensor | None] | None = None
"""``call`` in C, of the weight, A, bias, out and the four options; None until a plan is known there."""


def native() -> module.Native | None:
    """Return the extension module, told of weights and their plans, or None where it cannot be."""
    return module.load(MXTensor, Known, vars(plan))


class _Steady:
    """A plan, and how many bytes lie between the first and the last of what a call brings; 0 for what it does not."""

    __slots__ = ("a_bytes", "bias_bytes", "out_bytes", "plan", "settled", "uses")

    def __init__(self, plan: Plan, a: Tensor, bias: Tensor | None, out: Tensor | None) -> None:
        self.plan = plan
        self.a_bytes, self.bias_bytes, self.out_bytes = _bytes(a), _bytes(bias), _bytes(out)
        self.uses = 0
        self.settled = False
        """Whether C has been told of it, or never will be."""


class Known:
    """What a weight was when its plans were made, and these plans, which threads may add to at any time."""

    __slots__ = (
        *("_data", "_data_place", "_derived", "_owned", "_scales", "_scales_place", "_stamp"),
        *("plans", "source", "table"),
    )

    def __init__(self, weight: MXTensor) -> None:
        prepared = weight.prepared
        self._data, self._scales, _, _, self._derived = weight.operand()
        self._data_place, self._scales_place = _place(self._data), _place(self._scales)
        self._stamp = None if prepared is None else prepared.stamp
        made = () if prepared is None else prepared.tensors
        self._owned = tuple((tensor, _bytes(tensor)) for tensor in (weight.data, weight.scales, *made))
        self.source = plan.current_plans()
        self.plans: dict[Hashable, _Steady] = {}
        self.table: Any = None
        """The same for C."""

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

    def settle(self, steady: _Steady, a: Tensor, bias: Tensor | None, out: Tensor | None, options: Hashable) -> None:
        """Tell C of a plan that has run, if its launches can be described."""
        on_gpu = steady.plan.gpu is not None
        if on_gpu and (torch._C._cuda_getDevice() != steady.plan.gpu or torch.cuda.is_current_stream_capturing()):
            return  # another time
        steady.settled = True
        if not (plan.describable(steady.plan, a) and module.wanted()):
            return
        try:
            if not on_gpu:
                self._tell(steady, a, bias, out, options)
            elif native() is not None:
                with relaxed():
                    self._tell(steady, a, bias, out, options)
        except (RuntimeError, OSError, TypeError, ValueError) as error:  # of a driver, or of tensors of another kind
            say_once(f"a steady call goes through Python: {error}")

    def _tell(self, steady: _Steady, a: Tensor, bias: Tensor | None, out: Tensor | None, options: Hashable) -> None:
        global quick
        described = plan.described(steady.plan, a, self._data, self._scales, bias, out, self._derived)
        if described is None or not described.fits():
            return
        made = native()
        if made is None:
            return
        if self.table is None:
            counted = (None, 0) if self._stamp is None else self._stamp.counted
            self.table = made.table(self.source, self._owned_once(), *counted)
        sizes = steady.a_bytes, steady.bias_bytes, steady.out_bytes
        gpu = -1 if steady.plan.gpu is None else steady.plan.gpu
        self.table.add(
            (a, bias, out), sizes, options, steady.plan.allocate, made.program(described), self._data.device, gpu
        )
        quick = made.call

    def _owned_once(self) -> tuple[tuple[Tensor, int], ...]:
        return tuple({id(tensor): (tensor, nbytes) for tensor, nbytes in self._owned}.values())

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
    if steady is None or not known.holds():
        return None
    result = known.run(steady, a, bias, out)
    if not steady.settled and result is not None:
        steady.uses += 1
        if steady.uses >= SETTLE_AT:
            known.settle(steady, a, bias, out, options)
    return result


def settle(a: Tensor, weight: MXTensor, bias: Tensor | None, out: Tensor | None, options: Hashable) -> None:
    """Tell C of the plan of a call that has been made, without waiting for more of them."""
    known = weight.known
    if type(known) is not Known:
        return
    steady = known.plans.get(_key(a, bias, out, options))
    if steady is not None and not steady.settled:
        known.settle(steady, a, bias, out, options)


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
        if known.table is not None:
            known.table.clear()
    known.plans[_key(a, bias, out, options)] = _Steady(found, a, bias, out)


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
