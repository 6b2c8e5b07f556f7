"""Kernels that store what one step of the library's kernels has in registers."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.interpreted import decode_for_dot, widen
from mxgemm.triton.kernels.load_operand import load_packed, load_scales


@triton.jit
def load_packed_kernel(
    b, out, k, N, K, stride_n, stride_k,
    PRESHUFFLED: tl.constexpr, PACK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """``out[BLOCK_N, BLOCK_K/PACK]`` = the bytes of the first rows from element ``k``, with 64-bit offsets."""
    tile = load_packed(b, 0, k, N, K, stride_n, stride_k, PRESHUFFLED, PACK, BLOCK_N, BLOCK_K, True, TAIL, True, "")
    row, column = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K // PACK)
    tl.store(out + row[:, None] * (BLOCK_K // PACK) + column[None, :], tile)


@triton.jit
def load_scales_kernel(
    scales, out, pn, k, N, K, stride_n, stride_k, ORDER: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``out[BLOCK_N, BLOCK_K/32]`` = the scales of tile ``pn`` from element ``k``, with 64-bit offsets."""
    tile = load_scales(scales, pn, k, N, K, stride_n, stride_k, ORDER, BLOCK_N, BLOCK_K, True, False, True, "")
    row, column = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K // 32)
    tl.store(out + row[:, None] * (BLOCK_K // 32) + column[None, :], tile)


@triton.jit
def widen_kernel(x, out, SIZE: tl.constexpr, INTERPRETED: tl.constexpr):
    """``out[SIZE]`` fp32 = ``x[SIZE]``."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, widen(tl.load(x + at), INTERPRETED))


@triton.jit
def decode_kernel(data, scales, out, FORMAT: tl.constexpr, PACK: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """``out[R, K]`` fp32 = contiguous element bytes times their scales."""
    row, byte, group, column = tl.arange(0, R), tl.arange(0, K // PACK), tl.arange(0, K // 32), tl.arange(0, K)
    packed = tl.load(data + row[:, None] * (K // PACK) + byte[None, :])
    scale = tl.load(scales + row[:, None] * (K // 32) + group[None, :])
    tl.store(out + row[:, None] * K + column[None, :], decode_for_dot(packed, scale, FORMAT, R, K))
