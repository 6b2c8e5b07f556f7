"""Real numbers to a configuration's operands: what a benchmark feeds two kernels with, the same to both."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.dispatcher import codecs
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.schemes import Scale
from mxgemm.mx.formats import E2M1_VALUES, E8M0_BIAS

_LARGEST: Final = {"int4": 7.0, "fp4": 6.0, "bf16": 1.0}
_LEAST_SCALE: Final = 2.0**-100


def quantise(config: KernelConfig, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Quantise both operands as a kernel takes them: each group's largest magnitude becomes its type's largest.

    Args:
        config: the kernel, pinned to its architecture; not mx_gemm's, whose rounding is that of ``mxgemm.quantize``.
        a: numbers ``[m, k]``.
        b: numbers ``[n, k]``.

    Returns:
        A, B, scales of A and of B as they lie; a type without scales is cast, and saturates.
    """
    scheme, arch = config.scheme, config.arch or ""
    left, left_scales = _operand(a, scheme.a, scheme.a_scale, config.a_is_column_major, arch)
    right, right_scales = _operand(b, scheme.b, scheme.b_scale, config.b_is_row_major, arch)
    return left, right, left_scales, right_scales


def _operand(x: Tensor, dtype: str, scale: Scale | None, transposed: bool, arch: str) -> tuple[Tensor, Tensor | None]:
    values, stored_scales = x.float(), None
    if scale is not None:
        table = _scales(values, scale, _largest(dtype, arch))
        stored_scales, worth = _stored_scales(table, scale.dtype, arch)
        rows, k = values.shape
        spread = worth.repeat_interleave(scale.rows or rows, 0)[:rows].repeat_interleave(scale.k or k, 1)[:, :k]
        values = values / spread
        stored_scales = (stored_scales.T if scale.k_slowest else stored_scales).contiguous()
        stored_scales = stored_scales if scale.k else stored_scales.reshape(-1)
    return _stored((values.T if transposed else values).contiguous(), dtype, arch), stored_scales


def _largest(dtype: str, arch: str) -> float:
    if dtype in _LARGEST:
        return _LARGEST[dtype]
    return float(torch.finfo(getattr(torch, codecs.storage_name(dtype, arch))).max)


def _scales(values: Tensor, scale: Scale, largest: float) -> Tensor:
    rows, k = values.shape
    along_rows, along_k = scale.counts(rows, k)
    per_row, per_k = scale.rows or rows, scale.k or k
    padded = values.new_zeros(along_rows * per_row, along_k * per_k)
    padded[:rows, :k] = values.abs()
    amax = padded.view(along_rows, per_row, along_k, per_k).amax((1, 3))
    return amax.clamp(min=_LEAST_SCALE) / largest


def _stored_scales(table: Tensor, dtype: str, arch: str) -> tuple[Tensor, Tensor]:
    """Return scales as they are stored, and what they are worth: never less than asked for by more than a rounding."""
    if dtype == "fp32":
        return table, table
    if dtype == "e8m0":
        exponent = torch.ceil(torch.log2(table)).clamp(-E8M0_BIAS, E8M0_BIAS)
        return (exponent + E8M0_BIAS).to(torch.uint8), torch.exp2(exponent)
    rounded = table.to(getattr(torch, codecs.storage_name(dtype, arch)))
    return rounded.view(torch.uint8), rounded.float().clamp(min=_LEAST_SCALE)


def _stored(values: Tensor, dtype: str, arch: str) -> Tensor:
    if dtype == "bf16":
        return values.to(torch.bfloat16)
    if dtype in ("fp8", "bf8"):
        kind: Any = getattr(torch, codecs.storage_name(dtype, arch))
        most = torch.finfo(kind).max
        return values.clamp(-most, most).to(kind)
    if dtype == "int4":
        codes = (values.round().clamp(-8, 7) + 8).to(torch.uint8)
        return codes[:, 0::2] << 4 | codes[:, 1::2]
    magnitudes = torch.tensor(E2M1_VALUES[:8], dtype=torch.float32, device=values.device)
    codes = torch.bucketize(values.abs(), (magnitudes[1:] + magnitudes[:-1]) / 2).to(torch.uint8)
    codes = codes | (values < 0).to(torch.uint8) << 3
    return codes[:, 0::2] | codes[:, 1::2] << 4
