"""From a library's product to the result where the library does not write it: bias, strides, columns of padding."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.epilogue import store_tile
from mxgemm.triton.kernels.interpreted import widen


@triton.jit(do_not_specialize=["M"])
def finish_kernel(
    product, bias, out, M, N, stride_pm, stride_om, stride_on, stride_bias,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(product[M, >= N] + bias)``: fp32 sums, or values of the result's dtype without a bias.

    Grid: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)``.
    """
    tiles = tl.cdiv(N, BLOCK_N)
    pm, pn = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < M)[:, None] & (column < N)[None, :]
    value = tl.load(product + row.to(tl.int64)[:, None] * stride_pm + column[None, :], mask=inside, other=0.0)
    store_tile(
        widen(value, INTERPRETED), bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias,
        HAS_BIAS, BLOCK_M, BLOCK_N, False, False, True, INTERPRETED,
    )  # fmt: skip
