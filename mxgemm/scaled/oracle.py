"""The oracle of ``quant_gemm``: numpy and float64, from the formats' definitions, sharing no code with the library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxgemm.mx import oracle
from mxgemm.scaled.schemes import Kind

Float64 = NDArray[np.float64]


def element_values(data: NDArray[Any], fmt: str) -> Float64:
    """Decode stored elements ``[..., K/pack]`` to float64 ``[..., K]``; bf16 comes as its bits, uint16."""
    if fmt == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if fmt in ("e2m1", "int4"):
        low, high = data & 15, data >> 4
        order = (high, low) if fmt == "int4" else (low, high)
        codes = np.stack(order, axis=-1).reshape(*data.shape[:-1], 2 * data.shape[-1])
        table = np.arange(16.0) - 8 if fmt == "int4" else oracle.code_values("e2m1")
    elif fmt.endswith("fnuz"):
        table, codes = _fnuz_values(4 if fmt.startswith("e4") else 5), data
    else:
        table, codes = oracle.code_values(fmt), data
    values: Float64 = table[codes]
    return values


def _fnuz_values(exponent_bits: int) -> Float64:
    mantissa_bits = 7 - exponent_bits
    bias = 1 << (exponent_bits - 1)
    values = np.empty(256)
    for code in range(256):
        exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
        values[code] = (-1) ** (code >> 7) * fraction * 2.0 ** (max(exponent, 1) - bias)
    values[0x80] = np.nan
    return values


def scale_values(scales: NDArray[Any], name: str) -> Float64:
    """Decode scales: "fp32" values, "e8m0" bytes, "e4m3" or "e5m2" bytes."""
    if name == "fp32":
        return scales.astype(np.float64)
    values: Float64 = oracle.scale_values(scales) if name == "e8m0" else oracle.code_values(name)[scales]
    return values


def operand(
    data: NDArray[Any], fmt: str, scales: NDArray[Any] | None, scale_name: str, kind: Kind, group: tuple[int, int]
) -> Float64:
    """Return what a matrix of stored elements is worth, ``[rows, K]``: each element times the scale that covers it.

    Args:
        data: ``[rows, K/pack]``.
        fmt: of the elements.
        scales: as the scheme has them.
        scale_name: how they are stored.
        kind: what one covers.
        group: rows and elements along K of a group.
    """
    values = element_values(data, fmt)
    if scales is None or kind == "none":
        return values
    factor = scale_values(scales, scale_name)
    if kind == "tensor":
        factor = factor.reshape(1, 1)
    elif kind == "row":
        factor = factor.reshape(-1, 1)
    else:
        row, column = np.arange(values.shape[0]) // group[0], np.arange(values.shape[1]) // group[1]
        factor = factor[row][:, column]
    with np.errstate(invalid="ignore"):
        product: Float64 = values * factor
    return product
