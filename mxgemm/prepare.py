"""What :meth:`mxgemm.MXTensor.prepare` makes for which architecture, and the only place that sets it on an MXTensor."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from mxgemm.arguments import one_of
from mxgemm.device import arch_of, machine_of
from mxgemm.mx.fold import derive
from mxgemm.mx.formats import E2M1
from mxgemm.mx.freshness import Stamp, countable, remember
from mxgemm.mx.layouts import preshuffle_refusal, preshuffle_weight, shuffle_scales
from mxgemm.mx.tensor import PREPARED_LAYOUT, Memory, MXTensor


def prepare(weight: MXTensor, arch: str | None, memory: Memory) -> MXTensor:
    """Do what :meth:`MXTensor.prepare` says."""
    weight.check()
    if len(weight.shape) != 2:
        raise ValueError(f"prepare: got shape {weight.shape}, want a two-dimensional weight")
    one_of("memory", memory, get_args(Memory))
    arch = None if arch is None else arch_of(arch)
    if weight.device.type == "meta":
        return _complete(weight, preparation=(arch, memory))
    with torch.inference_mode(False), torch.no_grad():  # so that torch counts the changes of what is made here
        return _prepare(weight, arch, memory)


def _prepare(weight: MXTensor, arch: str | None, memory: Memory) -> MXTensor:
    target = machine_of(weight.device).arch if arch is None else arch
    given: dict[str, Any] = {"preparation": (arch, memory)}
    layout = PREPARED_LAYOUT.get(target)
    if target == "sm_90" and weight.format is E2M1:
        source = _counted(weight)
        kind, tensors = derive(source.row_major(), memory)
        if kind:
            return _complete(source, made=tensors, derived_kind=kind, derived=tensors, **given)
    elif layout is not None and weight.layout == layout and memory == "fast":
        return _complete(weight, prepared=_complete(weight), **given)  # the same bytes: nothing to go stale
    elif layout is not None and memory == "fast" and not preshuffle_refusal(*weight.data.shape):
        source = _counted(weight)
        rows = source.row_major()
        shuffled = MXTensor(
            preshuffle_weight(rows.data), shuffle_scales(rows.scales), weight.format, weight.shape, layout
        )
        return _complete(source, made=(shuffled.data, shuffled.scales), prepared=shuffled, **given)
    return _complete(weight, **given)


def _counted(weight: MXTensor) -> MXTensor:
    return MXTensor(countable(weight.data), countable(weight.scales), weight.format, weight.shape, weight.layout)


def _complete(weight: MXTensor, made: tuple[Tensor, ...] = (), **fields: Any) -> MXTensor:
    """Return a weight with these fields set, and what was made stamped with the bytes that it was made of."""
    result = MXTensor(weight.data, weight.scales, weight.format, weight.shape, weight.layout)
    if made:
        fields["stamp"] = Stamp(weight.data, weight.scales, made)
        remember(made, Stamp(weight.data, weight.scales))
    for name, value in fields.items():
        object.__setattr__(result, name, value)  # not the constructor's: nobody else can vouch for them
    return result
