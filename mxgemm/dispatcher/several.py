"""Several problems in one launch, as C takes them: an array of addresses and sizes (``shim/several.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mxgemm.arguments import shown
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operands import Operands, gather
from mxgemm.dispatcher.operation import Operation

SYMBOL = "dispatcher_run_several"
FIELDS = 9
"""Words of a problem in the kernel's table."""
OUTPUT_WORD = 4


class Call(NamedTuple):
    """One of several problems, its operands as ``Library.run`` takes them.

    Attributes:
        a: A as it lies; of an empty problem anything.
        b: B as it lies.
        c: ``[m, n]``, written in place; one without elements is an empty problem.
        a_scales: scales of A, or None.
        b_scales: scales of B, or None.
    """

    a: Any
    b: Any
    c: Any
    a_scales: Any = None
    b_scales: Any = None


class CProblem(ctypes.Structure):
    """``struct dispatcher_problem``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("A", "B", "AQ", "BQ", "C")),
        *((name, ctypes.c_int64) for name in ("M", "N", "K")),
    ]


def gather_several(operation: Operation, config: KernelConfig, arch: str, calls: Sequence[Call]) -> list[Operands]:
    """Check every problem that is not empty, as ``operands.gather`` does, and that all are on one device.

    Raises:
        TypeError, ValueError, RuntimeError: see ``gather``; the problem is named.
    """
    if not isinstance(calls, Sequence) or not all(isinstance(call, Call) for call in calls):
        raise TypeError(f"calls: got {shown(calls)}, want a sequence of Call")
    found: list[Operands] = []
    for index, call in enumerate(calls):
        if isinstance(call.c, np.ndarray | torch.Tensor) and 0 in call.c.shape:
            continue
        try:
            found.append(gather(operation, config, arch, *call, 1))
        except (TypeError, ValueError, RuntimeError) as error:
            raise type(error)(f"calls[{index}]: {error}") from error
    if len({operands.device for operands in found}) > 1:
        where = ", ".join(str(operands.device or "the host") for operands in found)
        raise ValueError(f"calls: got operands on {where}, want all on one device or all on the host")
    return found


def c_problems(problems: Sequence[Operands]) -> ctypes.Array[CProblem]:
    """Return the array that C takes."""
    rows = [
        CProblem(
            *(address or None for address in (one.at.a, one.at.b, one.at.a_scales, one.at.b_scales, one.at.c)),
            *(one.problem.m, one.problem.n, one.problem.k),
        )
        for one in problems
    ]
    return (CProblem * len(rows))(*rows)
