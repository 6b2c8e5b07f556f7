"""Whole matrices by the C kernels: a weight decoded, activations rounded to their format, floats quantised to bytes."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.cpu import abi, build
from mxgemm.cpu.launch import ALIGNMENT, DTYPES, scales_in
from mxgemm.errors import Refusal
from mxgemm.mx.codec import register_decoder
from mxgemm.mx.formats import E2M1, ElementFormat
from mxgemm.problem import matrix_strides


def decode_if_built(data: Tensor, scales: Tensor, fmt: ElementFormat, out: Tensor) -> bool:
    """Decode row-major MX bytes if they are e2m1, ``out`` is bf16 or fp32 and the kernels are here; else False."""
    if fmt is not E2M1 or out.dtype not in (torch.bfloat16, torch.float32) or not out.numel():
        return False
    library = build.library()
    if isinstance(library, Refusal):
        return False
    decode(library, data, scales, "row_major", "row_major", out)
    return True


def encode(library: ctypes.CDLL, x: Tensor, fmt: ElementFormat, addend: int, data: Tensor, scales: Tensor) -> None:
    """Quantise floats ``[rows, K]`` to row-major bytes and scale bytes, both with contiguous rows.

    The bytes are those of ``mxgemm.mx.codec.encode_rows``, whose ``addend`` this is.
    """
    rows, k = x.shape
    row, column = matrix_strides(x)
    call = abi.Call(
        m=rows, n=1, k=k, a=x.data_ptr(), a_row=row, a_column=column, a_dtype=DTYPES[x.dtype],
        a_format=abi.FORMATS[fmt.name], addend=addend, out=data.data_ptr(), out_row=data.stride(0),
        out_scales=scales.data_ptr(), out_scales_row=scales.stride(0), threads=torch.get_num_threads(),
    )  # fmt: skip
    library.mx_encode(ctypes.byref(call))


def round_to(library: ctypes.CDLL, x: Tensor, a_format: str, addend: int, out: Tensor) -> None:
    """Round activations ``[M, K]`` to a format, as values in ``out``, bf16 or fp32 with contiguous rows."""
    rows, k = x.shape
    row, column = matrix_strides(x)
    call = abi.Call(
        m=rows, n=1, k=k, a=x.data_ptr(), a_row=row, a_column=column, a_dtype=DTYPES[x.dtype],
        a_format=abi.FORMATS[a_format], addend=addend, out=out.data_ptr(), out_row=out.stride(0),
        out_dtype=DTYPES[out.dtype], threads=torch.get_num_threads(),
    )  # fmt: skip
    library.mx_round(ctypes.byref(call))


def decode(
    library: ctypes.CDLL, data: Tensor, scales: Tensor, weight_layout: str, scale_layout: str, out: Tensor
) -> None:
    """Decode e2m1 bytes ``[rows, K / 2]`` into ``out``, bf16 or fp32 with contiguous rows.

    Values are exact, but for an overflow to infinity from scale byte 253 up.
    """
    rows, k = out.shape
    row, column = matrix_strides(data)
    call = abi.Call(
        n=rows, k=k, b=data.data_ptr(), b_row=row, b_column=column, b_preshuffled=int(weight_layout == "preshuffled"),
        b_scales=scales_in(matrix_strides(scales), scale_layout), out=out.data_ptr(), out_row=out.stride(0),
        out_dtype=DTYPES[out.dtype], threads=torch.get_num_threads(),
    )  # fmt: skip
    call.b_scales.bytes = scales.data_ptr()
    pointer = ctypes.byref(call)
    with workspace.take(library.mx_decode_scratch_bytes(pointer) + ALIGNMENT, data.device) as arena:
        call.scratch = -(-arena.memory.data_ptr() // ALIGNMENT) * ALIGNMENT
        library.mx_decode(pointer)


register_decoder("cpu", decode_if_built)
