"""What the routes into AITER's kernels share: the questions, and quantising A into scratch as those kernels read it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mxgemm.aiter import f4gemm
from mxgemm.device import Machine, machine_of
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK, E2M1, scale_addend
from mxgemm.mx.layouts import round_up
from mxgemm.problem import Problem, contiguity_refusal
from mxgemm.triton.launch import Launcher
from mxgemm.triton.quantize import MAX_COLUMNS, MAX_ROWS, quantize_call
from mxgemm.triton.support import triton_missing

_ALIGN = 256


def aiter_missing(machine: Machine, backend: Callable[[], Refusal | None]) -> Refusal | None:
    """Say what a route into AITER lacks on a machine, or None.

    ``backend`` says what AITER lacks. That may take importing it, so it is asked on a gfx950 only.
    """
    if machine.arch != "gfx950":
        needed = "gfx950, the only one that AITER has these kernels for"
        return Refusal("arch", machine.arch, needed, "machine")
    return backend() or triton_missing(machine, "quantiser")


def aiter_refusal(problem: Problem) -> Refusal | None:
    """Say why no kernel of AITER's takes a problem, or None if one may."""
    p = problem
    if p.a_quantized or p.a_format != "e2m1":
        what = "quantised already" if p.a_quantized else p.a_format
        return Refusal("a", what, 'activations in bf16, fp16 or fp32 and a_format "e2m1"')
    if p.b_format != "e2m1":
        return Refusal("b_format", p.b_format, "e2m1")
    if p.out_dtype != torch.bfloat16:
        return Refusal("out_dtype", p.out_dtype, "torch.bfloat16")
    if p.has_bias:
        return Refusal("bias", "given", "none: AITER's kernels take one and do not add it")
    broken = f4gemm.broken_by_any(p.n, p.k)
    if broken:
        return broken
    for field, size, most in (("m", p.m, MAX_ROWS), ("k", p.k, MAX_COLUMNS)):
        if size > most:
            return Refusal(field, size, f"at most {most}, what one launch quantises")
    if p.scale_layout != "shuffled":
        return Refusal("scale_layout", p.scale_layout, "shuffled scales: call prepare() on the weight, once")
    return contiguity_refusal(problem) or _strides_refusal(problem)


def named_refusal(problem: Problem, kernel: f4gemm.F4GemmKernel) -> Refusal | None:
    """Say why one f4gemm kernel cannot take a problem, or None if it can."""
    wanted = "preshuffled" if kernel.preshuffled else "row_major"
    if problem.weight_layout != wanted:
        hint = " (call prepare() on the weight, once)" if kernel.preshuffled else ""
        return Refusal("weight_layout", problem.weight_layout, f"{wanted} for {kernel.name}{hint}")
    return kernel.broken(problem.m, problem.n, problem.k)


class QuantizeA:
    """Quantise A into scratch, once its launcher is known: the device of the first call decides which code that is."""

    def __init__(self, problem: Problem, scale_rows: int, *, shuffled: bool) -> None:
        """Lay scratch out.

        Args:
            problem: what is multiplied.
            scale_rows: rows of shuffled scales to write, a multiple of 32.
            shuffled: write scales in shuffled order, else row-major ``[M, K/32]``.
        """
        self._problem, self._shuffled, self._rows = problem, shuffled, scale_rows
        self._shape = (scale_rows if shuffled else problem.m), problem.k // BLOCK
        self._scales_at = round_up(problem.m * problem.k // 2, _ALIGN)
        self._scales_end = self._scales_at + self._shape[0] * self._shape[1]
        self.nbytes = round_up(self._scales_end, _ALIGN)
        """Scratch that the bytes and the scales take, a multiple of 256."""
        self._launcher: Launcher | None = None

    def __call__(self, a: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise ``a`` (``[M, K]``, any strides) into ``memory`` (uint8, ``nbytes`` of it) and return both parts.

        Returns:
            packed bytes ``[M, K/2]``, and scales: ``[scale_rows, K/32]`` in shuffled order, or row-major.
        """
        m, k = self._problem.m, self._problem.k
        data = memory[: m * k // 2].view(m, k // 2)
        scales = memory[self._scales_at : self._scales_end].view(self._shape)
        if self._launcher is None:
            self._launcher = self._bind(a)
        self._launcher(a, data, scales)
        return data, scales

    def _bind(self, a: Tensor) -> Launcher:
        p = self._problem
        rows, columns = self._shape
        call = quantize_call(
            machine_of(a.device), (p.m, p.k), (a.stride(0), a.stride(1)), a.dtype, E2M1,
            scale_addend(E2M1, p.scale_rounding), (p.k // 2, columns), rows if self._shuffled else None,
        )  # fmt: skip
        return Launcher(call)


def _strides_refusal(problem: Problem) -> Refusal | None:
    """Rows of B and of the result may lie apart, their elements may not; and 32 bits must hold an offset."""
    p, s = problem, problem.strides
    if s is None:
        return None
    if not p.aligned:
        return Refusal("alignment", "an address that is no multiple of 16 bytes", "operands that are aligned")
    for name, stride in (("b", s.b), ("out", s.out)):
        if stride[1] != 1 or stride[0] < 0:
            return Refusal(f"strides of {name}", stride, "(any, 1): elements of a row side by side")
    sizes = {"a": p.m * p.k // 2, "b": p.n * s.b[0], "out": 2 * p.m * s.out[0]}
    for name, nbytes in sizes.items():
        if nbytes >= f4gemm.MAX_BYTES:
            return Refusal(f"size of {name}", f"{nbytes} bytes", "less than 4 GiB, what 32-bit offsets reach")
    return None
