"""Call the C kernels that multiply: a problem's constants once, a call's addresses each time."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.cpu import abi
from mxgemm.mx.formats import scale_addend
from mxgemm.mx.layouts import SCALE_LAYOUTS
from mxgemm.problem import Problem

DTYPES: Final = {getattr(torch, name): value for name, value in abi.DTYPES.items()}
"""Dtypes as the kernels number them."""
ALIGNMENT: Final = 64
"""Of scratch, in bytes."""
_CPU: Final = torch.device("cpu")


class Product:
    """``out = a @ b.T + bias`` for one problem.

    Args:
        library: of a variant.
        problem: shapes, formats, strides.
        method: see ``abi.METHODS``.
        alike: whether a row of A is to have the same bits wherever it stands, among however many, by one method.
    """

    def __init__(self, library: ctypes.CDLL, problem: Problem, method: str, alike: bool = False) -> None:
        p, s = problem, problem.strides
        assert s is not None
        self._library = library
        self._call = abi.Call(
            m=p.m,
            n=p.n,
            k=p.k,
            a_row=s.a[0],
            a_column=s.a[1],
            a_dtype=DTYPES.get(p.a_dtype, 0),
            a_format=abi.FORMATS[p.a_format],
            addend=0 if p.a is None or p.a_quantized else scale_addend(p.a, p.scale_rounding),
            a_scales=scales_in(s.a_scales, p.a_scale_layout),
            b_row=s.b[0],
            b_column=s.b[1],
            b_preshuffled=int(p.weight_layout == "preshuffled"),
            b_scales=scales_in(s.b_scales, p.scale_layout),
            bias_stride=s.bias,
            bias_dtype=DTYPES[p.bias_dtype],
            out_row=s.out[0],
            out_column=s.out[1],
            out_dtype=DTYPES[p.out_dtype],
            method=abi.METHODS[method],
            alike=int(alike),
        )

    def __call__(
        self, a: Tensor, a_scales: Tensor | None, b: Tensor, b_scales: Tensor, bias: Tensor | None, out: Tensor
    ) -> None:
        """Fill ``out`` with torch's number of threads."""
        scales = None if a_scales is None else a_scales.data_ptr()
        added = None if bias is None else bias.data_ptr()
        self.at(self._call.m, a.data_ptr(), scales, b.data_ptr(), b_scales.data_ptr(), added, out.data_ptr())

    def at(self, m: int, a: int, a_scales: int | None, b: int, b_scales: int, bias: int | None, out: int) -> None:
        """Do the same for ``m`` rows of A at these addresses."""
        call = abi.Call.from_buffer_copy(self._call)
        call.m, call.a, call.b, call.b_scales.bytes, call.out = m, a, b, b_scales, out
        call.a_scales.bytes, call.bias = a_scales, bias
        call.threads = torch.get_num_threads()
        pointer = ctypes.byref(call)
        with workspace.take(self._library.mx_scratch_bytes(pointer) + ALIGNMENT, _CPU) as arena:
            call.scratch = -(-arena.memory.data_ptr() // ALIGNMENT) * ALIGNMENT
            self._library.mx_gemm(pointer)


def method_for_many_rows(variant: str, a_format: str) -> str:
    """Return the method that is fastest for many rows of A: integers, but where the CPU has a matrix unit (AMX)."""
    return "panels" if a_format == "e2m1" and variant != "amx_bf16" else "tiles"


def scales_in(strides: tuple[int, int], layout: str) -> abi.Scales:
    """Describe scale bytes with these strides in a layout; the address is the call's."""
    order = SCALE_LAYOUTS.index(layout)  # contiguous then, and its rows are the padded ones
    return abi.Scales(row=strides[0], column=strides[1], order=order, columns=strides[0] if order else 0)


def swiglu(
    library: ctypes.CDLL, x: Tensor, interleaved: bool, alpha: float, limit: float | None, offset: float
) -> Tensor:
    """Return ``gate * sigmoid(alpha * gate) * (up + offset)``, fp32 ``[rows, I]``, of contiguous fp32 ``[rows, 2 I]``.

    A value does not depend on the others, nor on the number of threads.
    """
    rows, columns = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, columns), dtype=torch.float32, device=_CPU)
    call = abi.SwiGLU(
        rows, columns, x.data_ptr(), out.data_ptr(), int(interleaved), alpha, limit or 0.0, offset,
        torch.get_num_threads(),
    )  # fmt: skip
    library.mx_swiglu(ctypes.byref(call))
    return out
