"""GEMM of two MX operands, both quantised already; formats may differ."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.gemm_program import gemm_program
from mxgemm.triton.kernels.interpreted import dot_mx
from mxgemm.triton.kernels.load_operand import load_packed, load_scales


@triton.jit(do_not_specialize=["M"])  # one compiled kernel serves every M
def gemm_mx_kernel(
    a, a_scales, b, b_scales, bias, out, partials, counters, M, N, K,
    stride_am, stride_ak, stride_tm, stride_tk, stride_bn, stride_bk, stride_sn, stride_sk,
    stride_om, stride_on, stride_bias,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_SCALE_ORDER: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr, ONE_LAUNCH: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, XCDS: tl.constexpr, CACHE: tl.constexpr, AMD: tl.constexpr,
    INTERPRETED: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(decode(a)[M, K] @ decode(b)[N, K].T + bias[N])``; the rest is as in ``gemm_a16w_kernel``.

    Strides are named by operand and dimension: of A (``am``, ``ak``) and of its scales (``tm``, ``tk``), of B (``bn``,
    ``bk``) and of its scales (``sn``, ``sk``), of the result (``om``, ``on``).
    """
    gemm_program(
        decode_and_multiply,
        (
            a, a_scales, b, b_scales, stride_am, stride_ak, stride_tm, stride_tk, stride_bn, stride_bk, stride_sn,
            stride_sk, A_FORMAT, B_FORMAT, A_SCALE_ORDER, PRESHUFFLED, SCALE_ORDER, CACHE, TRANSPOSED,
        ),
        bias, out, partials, counters, M, N, K, stride_om, stride_on, stride_bias, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K,
        SPLIT_K, STEPS, ONE_LAUNCH, EVEN_M, EVEN_N, EVEN_K, WIDE, XCDS, AMD, INTERPRETED, TRANSPOSED,
    )  # fmt: skip


@triton.jit
def decode_and_multiply(
    acc, pm, pn, k, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
    a, a_scales, b, b_scales, stride_am, stride_ak, stride_tm, stride_tk, stride_bn, stride_bk, stride_sn, stride_sk,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_SCALE_ORDER: tl.constexpr, PRESHUFFLED: tl.constexpr,
    SCALE_ORDER: tl.constexpr, CACHE: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """A step of ``gemm_program``: ``acc += decode(a tile) @ decode(b tile).T``."""
    A_PACK: tl.constexpr = 2 if A_FORMAT == "e2m1" else 1
    B_PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    x = load_packed(a, pm, k, M, K, stride_am, stride_ak, False, A_PACK, BLOCK_M, BLOCK_K, EVEN_M, TAIL, WIDE, "")
    t = load_scales(
        a_scales, pm, k, M, K, stride_tm, stride_tk, A_SCALE_ORDER, BLOCK_M, BLOCK_K, EVEN_M, TAIL, WIDE, ""
    )
    w = load_packed(
        b, pn, k, N, K, stride_bn, stride_bk, PRESHUFFLED, B_PACK, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, CACHE
    )  # fmt: skip
    s = load_scales(
        b_scales, pn, k, N, K, stride_sn, stride_sk, SCALE_ORDER, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, CACHE
    )
    return dot_mx(x, t, w, s, acc, A_FORMAT, B_FORMAT, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRETED, TRANSPOSED)
