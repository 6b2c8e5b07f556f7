"""Round activations to an MX format and back: the values that quantising and dequantising give, in one pass."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.convert import from_e4m3, power_of_two, round_e2m1, to_e4m3
from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.interpreted import widen
from mxgemm.triton.kernels.quantize_block import BLOCK, FP32_INF_BITS, block_scales, divide


@triton.jit(do_not_specialize=["M"])
def round_values_kernel(
    x, out, M, K, stride_xm, stride_xk,
    EMAX: tl.constexpr, ADDEND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[M, K]`` (bf16, contiguous) = ``x`` rounded to e2m1 (EMAX 2) or e4m3 (EMAX 8) in blocks of 32.

    A block with a NaN or an infinity becomes NaN. Grid: ``(cdiv(M, BLOCK_M), cdiv(K, BLOCK_K))``.
    """
    round_values_tile(
        tl.program_id(0), tl.program_id(1), x, out, M, K, stride_xm, stride_xk,
        EMAX, ADDEND, BLOCK_M, BLOCK_K, WIDE, INTERPRETED,
    )  # fmt: skip


@triton.jit
def round_values_tile(
    pm, pk, x, out, M, K, stride_xm, stride_xk,
    EMAX: tl.constexpr, ADDEND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A tile of ``round_values_kernel``."""
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pk * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = row.to(tl.int64) if WIDE else row
    columns = column.to(tl.int64) if WIDE else column
    inside = (row < M)[:, None] & (column < K)[None, :]
    value = tl.load(x + rows[:, None] * stride_xm + columns[None, :] * stride_xk, mask=inside, other=0.0)
    blocks = widen(value, INTERPRETED).reshape(BLOCK_M, BLOCK_K // BLOCK, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, EMAX)
    if EMAX == 2:
        element = round_e2m1(divide(blocks, exponent), 1.0)
    else:
        saturated = tl.minimum(tl.maximum(divide(blocks, exponent), -448.0), 448.0)
        element = from_e4m3(to_e4m3(saturated, INTERPRETED), INTERPRETED)
    scale = tl.where(amax >= FP32_INF_BITS, 0x7FC00000, power_of_two(exponent).to(tl.int32, bitcast=True))
    rounded = (element * scale.to(tl.float32, bitcast=True)).reshape(BLOCK_M, BLOCK_K)
    pointers = out + row.to(tl.int64)[:, None] * K + column[None, :]
    tl.store(pointers, round_to(rounded, tl.bfloat16, INTERPRETED), mask=inside)
