"""GEMM in one launch: float A, quantised in registers (or rounded to bf16), times an MX weight."""

import triton
import triton.language as tl

from mxgemm.triton_kernels.epilogue import round_to
from mxgemm.triton_kernels.load_weight import load_packed, load_scales
from mxgemm.triton_kernels.quantize_block import quantize_e2m1, quantize_fp8


@triton.jit
def gemm_a16w_kernel(
    a, b, b_scales, bias, out, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk, stride_om, stride_on, stride_bias,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, ADDEND: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SHUFFLED: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(quantize(a[M, K]) @ decode(b)[N, K].T + bias[N])``, fp32 accumulation.

    Grid: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)`` programs, neighbours share a weight tile. ``WIDE`` computes
    offsets in 64 bits; ``EVEN_*`` says that the dimension is a multiple of its block, so no mask is needed.
    """
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    pm = pid % tiles_m
    pn = pid // tiles_m
    PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1

    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = row.to(tl.int64) if WIDE else row
    inner = tl.arange(0, BLOCK_K)
    inside_m = (row < M)[:, None]

    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        column = k + inner
        columns = column.to(tl.int64) if WIDE else column
        pointers = a + rows[:, None] * stride_am + columns[None, :] * stride_ak
        if EVEN_M and EVEN_K:
            x = tl.load(pointers)
        elif EVEN_K:
            x = tl.load(pointers, mask=inside_m, other=0.0)
        else:
            x = tl.load(pointers, mask=inside_m & (column < K)[None, :], other=0.0)
        w = load_packed(
            b,
            pn,
            k,
            N,
            K,
            stride_bn,
            stride_bk,
            PRESHUFFLED,
            PACK,
            BLOCK_N,
            BLOCK_K,
            EVEN_N,
            EVEN_K,
            WIDE,
            CACHE,
        )
        s = load_scales(
            b_scales,
            pn,
            k,
            N,
            K,
            stride_sn,
            stride_sk,
            SHUFFLED,
            BLOCK_N,
            BLOCK_K,
            EVEN_N,
            EVEN_K,
            WIDE,
            CACHE,
        )
        if A_FORMAT == "e2m1":
            q, q_scale = quantize_e2m1(x, BLOCK_M, BLOCK_K, ADDEND)
            acc = tl.dot_scaled(q, q_scale, "e2m1", w.T, s, B_FORMAT, acc)
        elif A_FORMAT == "e4m3":
            q, q_scale = quantize_fp8(x, BLOCK_M, BLOCK_K, ADDEND, 8, 3)
            acc = tl.dot_scaled(q, q_scale, "e4m3", w.T, s, B_FORMAT, acc)
        else:
            acc = tl.dot_scaled(x.to(tl.bfloat16), None, "bf16", w.T, s, B_FORMAT, acc)

    out_column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    if HAS_BIAS:
        acc += tl.load(bias + out_column * stride_bias, mask=out_column < N, other=0.0).to(tl.float32)[None, :]
    out_columns = out_column.to(tl.int64) if WIDE else out_column
    pointers = out + rows[:, None] * stride_om + out_columns[None, :] * stride_on
    value = round_to(acc, out.dtype.element_ty, INTERPRETED)
    if EVEN_M and EVEN_N:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=inside_m & (out_column < N)[None, :])
