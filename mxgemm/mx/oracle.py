"""The oracle: MX arithmetic in numpy and float64, written to be read and to share no code with the library.

Every route is tested against this file. It decodes bytes by searching tables that are built here from the
formats' definitions (OCP MX 1.0), and multiplies in float64, where products of MX elements are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float64 = NDArray[np.float64]

_LAYOUT = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}  # exponent bits, mantissa bits, bias
_FEW = 64
"""A share of the elements; of fewer that are not rounded at once each one's summands are added by themselves."""
_EMAX = {"e2m1": 2, "e4m3": 8, "e5m2": 15}


def code_values(fmt: str) -> Float64:
    """Return the value of every code of a format, in code order: 16 values for e2m1, else 256."""
    exponent_bits, mantissa_bits, bias = _LAYOUT[fmt]
    half = 1 << (exponent_bits + mantissa_bits)
    magnitudes = np.empty(half)
    for code in range(half):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        is_subnormal = exponent == 0
        magnitudes[code] = (fraction if is_subnormal else 1 + fraction) * 2.0 ** (max(exponent, 1) - bias)
    if fmt == "e4m3":
        magnitudes[-1] = np.nan
    if fmt == "e5m2":
        magnitudes[-4], magnitudes[-3:] = np.inf, np.nan
    return np.concatenate([magnitudes, -magnitudes])


def scale_values(scales: Bytes) -> Float64:
    """Decode E8M0 bytes: ``2**(e - 127)``, and NaN for 255."""
    return np.where(scales == 255, np.nan, np.ldexp(1.0, scales.astype(np.int64) - 127))


def decode(data: Bytes, scales: Bytes, fmt: str) -> Float64:
    """Decode row-major bytes to float64.

    Args:
        data: ``[rows, K/2]`` for e2m1 (low nibble = even k), ``[rows, K]`` otherwise.
        scales: E8M0 bytes ``[rows, K/32]``.
        fmt: "e2m1", "e4m3" or "e5m2".

    Returns:
        float64 ``[rows, K]``.
    """
    if fmt == "e2m1":
        codes = np.empty((data.shape[0], 2 * data.shape[1]), dtype=np.uint8)
        codes[:, 0::2], codes[:, 1::2] = data & 15, data >> 4
    else:
        codes = data
    with np.errstate(invalid="ignore"):
        return code_values(fmt)[codes] * np.repeat(scale_values(scales), 32, axis=1)


def encode(x: NDArray[Any], fmt: str, scale_rounding: str) -> tuple[Bytes, Bytes]:
    """Quantise ``[rows, K]`` to row-major MX bytes, by the definitions and in float64.

    Slow and literal: the scale comes from ``frexp`` of the block's largest magnitude, an element from the
    nearest code, ties to the even one.

    Returns:
        ``(data, scales)`` as :func:`decode` takes them.
    """
    rows, k = x.shape
    blocks = np.asarray(x, dtype=np.float64).reshape(rows, k // 32, 32)
    amax = np.abs(blocks).max(axis=2) if k else np.zeros((rows, 0))
    values = code_values(fmt)
    finite = values[: len(values) // 2][np.isfinite(values[: len(values) // 2])]
    exponent = _scale_exponent(amax, fmt, float(finite[-1]), scale_rounding)
    bad = ~np.isfinite(amax)
    scales = np.where(bad, 255, np.where(amax == 0, 0, exponent + 127)).astype(np.uint8)

    scaled = np.where(bad[..., None], 0.0, blocks) / np.ldexp(1.0, exponent)[..., None]
    magnitude = np.minimum(np.abs(scaled), finite[-1])
    above = np.clip(np.searchsorted(finite, magnitude), 1, len(finite) - 1)
    to_below, to_above = magnitude - finite[above - 1], finite[above] - magnitude
    code = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, above - 1)
    code = code + np.where(np.signbit(scaled), len(values) // 2, 0)
    code = np.where((bad | (amax == 0))[..., None], 0, code).astype(np.uint8).reshape(rows, k)
    if fmt == "e2m1":
        return (code[:, 0::2] | code[:, 1::2] << 4).astype(np.uint8), scales
    return code, scales


def _scale_exponent(amax: Float64, fmt: str, largest: float, rule: str) -> NDArray[np.int64]:
    usable = np.where(np.isfinite(amax) & (amax > 0), amax, 1.0)
    mantissa, exponent = np.frexp(usable)
    mantissa, exponent = 2 * mantissa, exponent.astype(np.int64) - 1  # 1 <= mantissa < 2
    if rule == "floor":
        carry = np.zeros_like(mantissa, dtype=bool)
    elif rule == "even":
        carry = mantissa >= 2 - 2.0 ** -(_LAYOUT[fmt][1] + 1)
    elif rule == "ceil":
        carry = mantissa > 1
    else:
        carry = mantissa > largest / 2.0 ** _EMAX[fmt]
    clamped: NDArray[np.int64] = np.clip(exponent + carry - _EMAX[fmt], -127, 127)
    return clamped


def matmul(a: Float64, b: Float64, bias: NDArray[Any] | None = None) -> Float64:
    """Return ``a @ b.T + bias`` in float64, for ``a`` [M, K], ``b`` [N, K] and ``bias`` [N]."""
    with np.errstate(invalid="ignore", over="ignore"):
        out: Float64 = a @ b.T
    return out if bias is None else out + np.asarray(bias, dtype=np.float64)


def gate_norm(out: NDArray[Any], ref: Float64) -> float:
    """Return ``||out - ref|| / ||ref||`` (Frobenius); 0 where both are zero, NaN where either holds a NaN."""
    error, size = np.linalg.norm(np.asarray(out, dtype=np.float64) - ref), np.linalg.norm(ref)
    return float(error / size) if size else float(error)


def gate_elementwise(
    out: NDArray[Any],
    ref: Float64,
    a: Float64,
    b: Float64,
    out_bits: int = 8,
    accumulate_bits: int = 24,
    least_error: float = 0.0,
) -> float:
    """Return the least ``c`` for which every element passes the elementwise gate.

    The gate is ``|out - ref| <= 2**-out_bits * |ref| + c * 2**-accumulate_bits * (|a| @ |b|.T)``: one rounding to
    the output dtype plus the rounding of the accumulation, which depends on the size of the summands, not of the
    sum. Rounding to a subnormal may cost ``least_error`` whatever the element is. NaN in ``out`` where ``ref`` is
    finite, and the reverse, give infinity.
    """
    out64 = np.asarray(out, dtype=np.float64)
    if not np.array_equal(np.isnan(out64), np.isnan(ref)):
        return float("inf")
    excess = np.abs(out64 - ref) - np.maximum(2.0**-out_bits * np.abs(ref), least_error)
    row, column = np.nonzero(~np.isnan(ref) & ~(excess <= 0))
    if len(row) > excess.size // _FEW:
        summands = (np.abs(a) @ np.abs(b).T)[row, column]
    else:
        summands = np.einsum("ik,ik->i", np.abs(a[row]), np.abs(b[column]))
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = excess[row, column] / (2.0**-accumulate_bits * summands)
    return float(needed.max(initial=0.0))
