"""What ``prepare()`` makes of a stack of experts for Hopper: each weight in fragment order, beside its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from mxgemm.cuda.operands import ARCH
from mxgemm.experts.problem import GroupedProblem
from mxgemm.mx.fragments import code_bytes, scale_bytes, stack_fragments
from mxgemm.mx.freshness import stale
from mxgemm.mx.prepared import WeightForm, only_e2m1, register
from mxgemm.mx.tensor import MXTensor

STACK_FRAGMENTS: Final = WeightForm(
    "stack_fragments",
    archs=(ARCH,),
    memory="fast",
    refusal=only_e2m1,
    make=lambda weight: stack_fragments(weight.data, weight.scales),
    stacked=True,
)
"""Codes ``[E, code_bytes]`` and scales ``[E, scale_bytes]``: as many bytes as the stack, but for padding."""
register([STACK_FRAGMENTS])


def is_prepared(name: str, w: MXTensor) -> bool:
    """Say whether a stack has the form.

    Raises:
        RuntimeError: it has, but its bytes were changed since.
    """
    made = w.prepared
    if made is None or made.kind != STACK_FRAGMENTS.kind:
        return False
    if made.stamp is not None and not made.stamp.fresh():
        raise stale(name)
    return True


def weight_of(w: MXTensor, problem: GroupedProblem) -> tuple[Tensor, Tensor]:
    """Return the codes and scales that a product reads."""
    if not problem.fragments:
        return w.data, w.scales
    assert w.prepared is not None
    codes, scales = w.prepared.tensors
    return codes, scales


def in_fragments(p: GroupedProblem) -> GroupedProblem:
    """Describe a product that reads the form."""
    strides = replace(p.strides, w=(code_bytes(p.n, p.k), 0, 1), w_scales=(scale_bytes(p.n, p.k), 0, 1))
    return replace(p, fragments=True, strides=strides)
