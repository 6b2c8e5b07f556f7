"""GEMM of two MX operands, both quantised already; formats may differ."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd
from mxgemm.triton.kernels.interpreted import dot_mx
from mxgemm.triton.kernels.load_operand import load_packed, load_scales
from mxgemm.triton.kernels.split_k import finish_tile


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
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(decode(a)[M, K] @ decode(b)[N, K].T + bias[N])``; the rest is as in ``gemm_a16w_kernel``."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = contiguous_on_xcd(tl.program_id(0), tiles_m * tiles_n * SPLIT_K, XCDS)
    pm = pid % tiles_m
    pn = (pid // tiles_m) % tiles_n
    split = pid // (tiles_m * tiles_n)
    if SPLIT_K == 1:
        first, last = 0, K
    else:
        first = split * (STEPS * BLOCK_K)
        last = tl.minimum(first + STEPS * BLOCK_K, K)
    whole = last if EVEN_K else first + (last - first) // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(first, whole, BLOCK_K):
        acc = multiply_step(
            acc, a, a_scales, b, b_scales, pm, pn, k, M, N, K, stride_am, stride_ak, stride_tm, stride_tk, stride_bn,
            stride_bk, stride_sn, stride_sk, A_FORMAT, B_FORMAT, A_SCALE_ORDER, PRESHUFFLED, SCALE_ORDER, BLOCK_M,
            BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, False, WIDE, CACHE, INTERPRETED,
        )  # fmt: skip
    if not EVEN_K:
        if whole < last:  # the one step that needs masks along K
            acc = multiply_step(
                acc, a, a_scales, b, b_scales, pm, pn, whole, M, N, K, stride_am, stride_ak, stride_tm, stride_tk,
                stride_bn, stride_bk, stride_sn, stride_sk, A_FORMAT, B_FORMAT, A_SCALE_ORDER, PRESHUFFLED, SCALE_ORDER,
                BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, True, WIDE, CACHE, INTERPRETED,
            )  # fmt: skip

    finish_tile(
        acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias, SPLIT_K, ONE_LAUNCH,
        HAS_BIAS, BLOCK_M, BLOCK_N, EVEN_M, EVEN_N, WIDE, AMD, INTERPRETED,
    )  # fmt: skip


@triton.jit
def multiply_step(
    acc, a, a_scales, b, b_scales, pm, pn, k, M, N, K,
    stride_am, stride_ak, stride_tm, stride_tk, stride_bn, stride_bk, stride_sn, stride_sk,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_SCALE_ORDER: tl.constexpr,
    PRESHUFFLED: tl.constexpr,
    SCALE_ORDER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``acc[BLOCK_M, BLOCK_N] += decode(a tile) @ decode(b tile).T`` for the block of K that starts at ``k``."""
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
    return dot_mx(x, t, w, s, acc, A_FORMAT, B_FORMAT, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRETED)
