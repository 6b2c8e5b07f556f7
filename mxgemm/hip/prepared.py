"""What the MFMA kernels of this room ask of a prepared e2m1 weight and of a result, whatever their A is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from mxgemm.errors import Refusal
from mxgemm.problem import Problem

ARCH: Final = "gfx950"
TILE: Final = 16
"""Rows and columns of the matrix instruction."""
TILE_K: Final = 128
"""Its depth."""
C_TYPES: Final = {torch.bfloat16: "__bf16", torch.float16: "_Float16", torch.float32: "float"}
"""Dtypes of results and biases, as the kernels name them."""


def weight_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what is wrong with the weight, the sizes and the alignment."""
    if p.b_format != "e2m1":
        yield Refusal("b.format", p.b_format, '"e2m1"')
    if p.weight_layout != "preshuffled":
        yield Refusal("weight_layout", p.weight_layout, "preshuffled: a lane loads 16 bytes of it (call prepare())")
    if p.scale_layout != "shuffled":
        yield Refusal("scale_layout", p.scale_layout, "shuffled: a lane loads a dword of four scales (call prepare())")
    if p.n % TILE:
        yield Refusal("n", p.n, f"a multiple of {TILE}, the columns of a matrix instruction")
    if p.k % TILE_K:
        yield Refusal("k", p.k, f"a multiple of {TILE_K}, the depth of a matrix instruction")
    if not p.aligned:
        yield Refusal("alignment", "less than 16 bytes", "operands at multiples of 16 bytes")


def result_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what is wrong with the result and the bias."""
    if p.has_bias and p.bias_dtype not in C_TYPES:
        yield Refusal("bias.dtype", p.bias_dtype, "bfloat16, float16 or float32")
    s = p.strides
    if s is not None:
        if s.out[1] != 1 or (p.m > 1 and s.out[0] % 4):
            yield Refusal("strides of out", s.out, "(a multiple of 4, 1): four columns are stored at once")
        if p.has_bias and s.bias != 1:
            yield Refusal("stride of bias", s.bias, "1: four values are loaded at once")


def result_row_bytes(p: Problem) -> int:
    """Return the bytes from a row of the result to the next; 0 for a single row, whose stride means nothing."""
    out = 0 if p.m == 1 else p.n if p.strides is None else p.strides.out[0]
    return p.out_dtype.itemsize * out


def result_defines(p: Problem) -> dict[str, int | str]:
    """Return the macros of the sizes and of the dtypes of result and bias."""
    named: dict[str, int | str] = {"GEMM_N": p.n, "GEMM_K": p.k, "OUT_TYPE": C_TYPES[p.out_dtype]}
    if p.has_bias:
        named["BIAS_TYPE"] = C_TYPES[p.bias_dtype]
    return named
