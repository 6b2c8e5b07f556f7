"""Plans whose launch is a C function of the driver double, called from C or, by the Python twin, from Python."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mxgemm
from mxgemm import c_compiler, steady, workspace
from mxgemm.mx.tensor import MXTensor
from mxgemm.native.program import (
    BIAS,
    COUNTERS,
    OUT,
    SCRATCH,
    A,
    KernelStep,
    ProductStep,
    Program,
    fixed,
)
from mxgemm.routes.base import Operands

N, K = 64, 64
SOURCE = Path(__file__).with_name("driver_double.c")
LAYOUT = struct.Struct("<6Q7q")


def build(folder: Path) -> ctypes.CDLL:
    command = next(command for command in c_compiler.commands() if isinstance(command, list))
    subprocess.run([*command, "-O1", "-shared", "-fPIC", SOURCE, "-o", folder / "double.so"], check=True)
    return ctypes.CDLL(str(folder / "double.so"))


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Launch:
    """``mix`` of the double; ``twice`` launches it again, ``scratch`` has it keep its sum there."""

    def __init__(self, double: ctypes.CDLL, twice: bool = False, scratch: int = 0, counters: int = 0) -> None:
        self.double, self.twice, self.scratch, self.counters = double, twice, scratch, counters
        self.ran = 0

    def __call__(self, operands: Operands) -> None:
        self.ran += 1
        if self.scratch or self.counters:
            with workspace.take(self.scratch, operands.out.device, counters=self.counters) as arena:
                self._mix(operands, arena.memory.data_ptr(), arena.counters.data_ptr())
        else:
            self._mix(operands, 0, 0)

    def _mix(self, operands: Operands, scratch: int, counters: int) -> None:
        bias = 0 if operands.bias is None else operands.bias.data_ptr()
        pointers = operands.a.data_ptr(), operands.b.data_ptr(), bias, operands.out.data_ptr(), scratch, counters
        self.double.mix(LAYOUT.pack(*pointers, *self._sizes(operands)))

    def _sizes(self, operands: Operands) -> tuple[int, ...]:
        a, out = operands.a, operands.out
        return (*out.shape, a.shape[1], *a.stride(), *out.stride())

    def program(self, operands: Operands) -> Program:
        places = (
            *(A, fixed(operands.b.data_ptr()), fixed(0) if operands.bias is None else BIAS, OUT),
            *(SCRATCH if self.scratch else fixed(0), COUNTERS if self.counters else fixed(0)),
        )
        step = KernelStep(
            address(self.double.mix), (3, 1, 1), (32, 1, 1), 0, LAYOUT.pack(*(0,) * 6, *self._sizes(operands)),
            tuple((8 * i, place) for i, place in enumerate(places)), bytes(72),
        )  # fmt: skip
        return Program((step,) * (1 + self.twice), self.scratch, self.counters)


class VendorLaunch(Launch):
    """The same product, asked of the double's vendor library where C launches it."""

    def __init__(self, double: ctypes.CDLL, descriptions: int = 2, scaled: bool = True, **options: Any) -> None:
        super().__init__(double, **options)
        self.scaled = scaled
        self.descriptions = [(ctypes.c_uint64 * 3)() for _ in range(descriptions)]

    def program(self, operands: Operands) -> Program:
        sizes = (ctypes.c_int64 * 7)(*self._sizes(operands))
        memory = SCRATCH if self.scratch else fixed(0)
        step = ProductStep(
            handle=ctypes.addressof(sizes),
            layouts=(1, 2, 3),
            descriptions=tuple(map(ctypes.addressof, self.descriptions)),
            a=fixed(operands.b.data_ptr()),
            b=A,
            b_scale=A if self.scaled else None,
            bias=None if operands.bias is None else BIAS,
            out=OUT,
            memory=memory,
            memory_bytes=self.scratch,
            algorithm=bytes(range(64)),
            owner=(sizes, self.descriptions),
        )
        return Program((step,) * (1 + self.twice), self.scratch, self.counters)


def settled(w: MXTensor, a: Tensor, launch: Launch, **options: Any) -> None:
    """Let a call's plan be one of ``launch``, and C know it."""
    mxgemm.gemm(a, w, **options)
    known = w.known
    assert isinstance(known, steady.Known)
    key = list(known.plans)[-1]
    found = known.plans[key]
    found.plan = dataclasses.replace(found.plan, launch=launch)
    for _ in range(steady.SETTLE_AT):
        mxgemm.gemm(a, w, **options)
    assert found.settled


def weight(n: int = N, k: int = K) -> MXTensor:
    return mxgemm.quantize(torch.randn(n, k))


def activations(m: int = 3) -> Tensor:
    return torch.randn(m, K, dtype=torch.bfloat16)


def counter(library: ctypes.CDLL, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(library, name)


def launches(double: ctypes.CDLL) -> int:
    return counter(double, "launches").value


def outcome(call: Callable[[], Tensor]) -> tuple[object, ...]:
    try:
        result = call()
    except Exception as error:
        return type(error), str(error)
    return result.dtype, tuple(result.shape), result.stride(), result.clone().view(torch.int16).tolist()


def both(double: ctypes.CDLL, call: Callable[[], Tensor], in_c: bool) -> tuple[object, ...]:
    """Call by C and without it: the same answer, and C launched or did not."""
    before = launches(double)
    by_c = outcome(call)
    assert (launches(double) > before) == in_c
    quick, steady.quick = steady.quick, None
    try:
        before = launches(double)
        by_python = outcome(call)
        assert launches(double) == before
    finally:
        steady.quick = quick
    assert by_c == by_python
    return by_c
