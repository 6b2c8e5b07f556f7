"""From fp32 sums to the result: bias, the one rounding, the store."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.interpreted import widen


@triton.jit
def store_tile(
    acc, bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[tile] = round(acc + bias)`` for a tile of fp32 sums ``[BLOCK_M, BLOCK_N]``."""
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = column.to(tl.int64) if WIDE else column
    if HAS_BIAS:
        acc += widen(tl.load(bias + columns * stride_bias, mask=column < N, other=0.0), INTERPRETED)[None, :]
    rows = row.to(tl.int64) if WIDE else row
    pointers = out + rows[:, None] * stride_om + columns[None, :] * stride_on
    value = round_to(acc, out.dtype.element_ty, INTERPRETED)
    if EVEN_M and EVEN_N:
        tl.store(pointers, value)
    elif EVEN_N:
        tl.store(pointers, value, mask=(row < M)[:, None])
    else:
        tl.store(pointers, value, mask=(row < M)[:, None] & (column < N)[None, :])


@triton.jit
def round_to(value, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """fp32 -> ``dtype``, to nearest even.

    GPUs do this in one instruction. Triton's interpreter (3.9) rounds bf16 half up and loses the carry into the
    exponent, so there the bits are rounded by hand.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = (bits >> 16) | 0x40
        return tl.where(value == value, rounded, quiet_nan).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return value.to(dtype)
