"""Forms of an MXFP4 weight that Hopper's tensor cores take: e4m3 with a scale a row, or bf16.

An e2m1 value times ``2**s`` is an e4m3 value exactly while ``-8 <= s <= 6``: 0.5 * 2**-8 is e4m3's least subnormal,
and 6 * 2**6 = 384 does not pass its 448. So a row whose scale exponents span at most 14 *folds*: one power of two a row
(its *base*) is pulled out, the rest of each block's scale moves into the elements. Blocks of zeros fold anywhere,
blocks with a NaN scale become e4m3 NaN.

Kinds, as ``MXTensor.derived_kind`` names them, with their tensors:

* ``fp8_fold``: e4m3 bytes ``[N16, K]`` (N padded to 16: torch's scaled product wants that), fp32 bases ``[N16]``;
* ``fp8_fold_compact``: the bases alone, as exponent bytes uint8 ``[N]``: elements are decoded at each call;
* ``bf16``: bf16 values ``[N, K]``, for a weight that does not fold.

A weight that does not fold gets no compact form: route ``dequant_mm`` decodes its bytes.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm.mx.codec import decode_rows, row_chunks
from mxgemm.mx.formats import BLOCK, E8M0_NAN
from mxgemm.mx.layouts import round_up
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import Memory, MXTensor, dequantize

FOLD_UP: Final = 6
FOLD_DOWN: Final = 8
FOLD_SPAN: Final = FOLD_UP + FOLD_DOWN
"""Largest span of scale exponents over the non-zero blocks of a row that folds into e4m3."""

FOLD_ROWS: Final = 16
ALIGNMENT: Final = 16
"""Of what :func:`derive` makes, in bytes: kernels are compiled for it."""

FP8_FOLD: Final = "fp8_fold"
FP8_FOLD_COMPACT: Final = "fp8_fold_compact"
BF16: Final = "bf16"


def check_form(kind: str, tensors: tuple[Tensor, ...], n: int, k: int, device: torch.device) -> None:
    """Check that tensors are a form of an (N, K) weight, as far as their metadata says it.

    Args:
        kind: one of this module's, or "" for no form.
        tensors: of that kind, as ``torch.ops.mxgemm.gemm`` got them.
        n: rows of the weight.
        k: elements of a row.
        device: of the weight.

    Raises:
        TypeError: a wrong dtype.
        ValueError: an unknown kind, or a wrong number, shape, device or place in memory.
    """
    padded = round_up(n, FOLD_ROWS)
    forms: dict[str, tuple[tuple[torch.dtype, tuple[int, ...]], ...]] = {
        "": (),
        FP8_FOLD: ((torch.uint8, (padded, k)), (torch.float32, (padded,))),
        FP8_FOLD_COMPACT: ((torch.uint8, (n,)),),
        BF16: ((torch.bfloat16, (n, k)),),
    }
    if kind not in forms:
        raise ValueError(f"derived_kind: got {kind!r}, want one of {', '.join(map(repr, forms))}")
    if len(tensors) != len(forms[kind]):
        raise ValueError(f"derived_data, derived_base: got {len(tensors)} tensors, want {len(forms[kind])} of {kind!r}")
    names = ("derived_data", "derived_base")
    for name, tensor, (dtype, shape) in zip(names, tensors, forms[kind], strict=False):
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: got {describe(tensor)}, want {dtype} for {kind!r}")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, want {shape} for {kind!r}, N = {n}, K = {k}")
        if tensor.device != device:
            raise ValueError(f"{name}: got device {tensor.device}, want {device} like b")
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            raise ValueError(f"{name}: got strides {tensor.stride()}, want contiguous and {ALIGNMENT}-byte aligned")


def derive(weight: MXTensor, memory: Memory) -> tuple[str, tuple[Tensor, ...]]:
    """Choose and make the form of a row-major e2m1 weight: fp8 if every row folds, else bf16; see the module."""
    base, folds = row_bases(weight)
    if bool(folds.all()):
        return (FP8_FOLD, fold(weight, base)) if memory == "fast" else (FP8_FOLD_COMPACT, (base,))
    return (BF16, (dequantize(weight, dtype=torch.bfloat16),)) if memory == "fast" else ("", ())


def row_bases(weight: MXTensor) -> tuple[Tensor, Tensor]:
    """Return every row's base as an exponent byte (uint8, 1..248, worth ``2**(byte - 127)``) and whether it folds.

    Args:
        weight: row-major e2m1, (N, K).
    """
    n, k = weight.shape
    codes = weight.data.view(n, k // BLOCK, BLOCK // 2) & 0x77  # without the signs: -0 is zero too
    exponent = weight.scales.to(torch.int32)
    live = codes.amax(-1).ne(0) & exponent.ne(E8M0_NAN) if k else exponent.bool()
    highest = torch.where(live, exponent, -1).amax(-1) if k else exponent.new_zeros(n)
    lowest = torch.where(live, exponent, E8M0_NAN).amin(-1) if k else exponent.new_full((n,), E8M0_NAN)
    # At least 1, so that the base itself is a normal fp32: a smaller one could be flushed.
    base = (highest - FOLD_UP).clamp(min=1)
    folds = lowest >= base - FOLD_DOWN
    return torch.where(highest < 0, 127, base).to(torch.uint8), folds | (highest < 0)


def fold(weight: MXTensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Fold a weight whose rows all fold.

    Returns:
        e4m3 bytes (uint8 ``[N16, K]``) and fp32 bases ``[N16]``; rows past N are zeros with base 1.
    """
    n, k = weight.shape
    padded = round_up(n, FOLD_ROWS)
    data = torch.zeros(padded, k, dtype=torch.uint8, device=weight.device)
    for rows in row_chunks(n, k):
        shift = weight.scales[rows].to(torch.int32) - base[rows].to(torch.int32).unsqueeze(-1)
        byte = torch.where(weight.scales[rows].eq(E8M0_NAN), E8M0_NAN, (shift + 127).clamp(0, 254)).to(torch.uint8)
        values = decode_rows(weight.data[rows], byte, weight.format)
        data[rows] = values.to(torch.float8_e4m3fn).view(torch.uint8)
    scale = torch.ones(padded, dtype=torch.float32, device=weight.device)
    scale[:n] = (base.to(torch.int32) << 23).view(torch.float32)
    return data, scale
