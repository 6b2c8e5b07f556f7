"""GEMM in one launch: float A, quantised in registers (or rounded to bf16), times an MX weight."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.convert_gfx950 import quantize_e2m1_bf16_pairs, quantize_e2m1_f32
from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.gemm_program import gemm_program
from mxgemm.triton.kernels.interpreted import decode_for_dot, dot_mx, widen
from mxgemm.triton.kernels.load_operand import clamped_rows, load_packed, load_scales
from mxgemm.triton.kernels.quantize_block import quantize_e2m1, quantize_fp8


@triton.jit(do_not_specialize=["M"])  # one compiled kernel serves every M
def gemm_a16w_kernel(
    a, b, b_scales, bias, out, partials, counters, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk, stride_om, stride_on, stride_bias,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, ADDEND: tl.constexpr, CONVERT: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr, ONE_LAUNCH: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, XCDS: tl.constexpr, CACHE: tl.constexpr, AMD: tl.constexpr,
    INTERPRETED: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(quantize(a[M, K]) @ decode(b)[N, K].T + bias[N])``, fp32 accumulation.

    Grid: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * SPLIT_K`` programs; neighbours share a weight tile.

    * ``CONVERT``: "arithmetic" anywhere; "f32" and "bf16_pairs" are gfx950's hardware convert, the latter reads two
      bf16 as one word, so rows of A must be contiguous and start at even addresses.
    * ``SPLIT_K`` programs share a tile, each takes ``STEPS`` blocks of K. Their partial sums go to ``partials`` and are
      added by the last of them (``ONE_LAUNCH``) or by ``reduce_partials_kernel``.
    * ``EVEN_*``: the dimension is a multiple of its block, so no mask is needed. ``WIDE``: 64-bit offsets.
    """
    gemm_program(
        quantize_and_multiply,
        (
            a, b, b_scales, stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk,
            A_FORMAT, B_FORMAT, ADDEND, CONVERT, PRESHUFFLED, SCALE_ORDER, CACHE, TRANSPOSED,
        ),
        bias, out, partials, counters, M, N, K, stride_om, stride_on, stride_bias, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K,
        SPLIT_K, STEPS, ONE_LAUNCH, EVEN_M, EVEN_N, EVEN_K, WIDE, XCDS, AMD, INTERPRETED, TRANSPOSED,
    )  # fmt: skip


@triton.jit
def quantize_and_multiply(
    acc, pm, pn, k, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
    a, b, b_scales, stride_am, stride_ak, stride_bn, stride_bk, stride_sn, stride_sk,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, ADDEND: tl.constexpr, CONVERT: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, CACHE: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """A step of ``gemm_program``: ``acc += quantize(a tile) @ decode(b tile).T``."""
    PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    rows = clamped_rows(pm, M, BLOCK_M, EVEN_M, WIDE)
    if CONVERT == "bf16_pairs":
        inner = tl.arange(0, BLOCK_K // 2)
        words = a.to(tl.pointer_type(tl.int32), bitcast=True)
        pointers = words + rows[:, None] * (stride_am // 2) + (k // 2 + inner)[None, :]
        inside = (inner < (K - k) // 2)[None, :]
    else:
        inner = tl.arange(0, BLOCK_K)
        columns = (k + inner).to(tl.int64) if WIDE else k + inner
        pointers = a + rows[:, None] * stride_am + columns[None, :] * stride_ak
        inside = (inner < K - k)[None, :]
    x = tl.load(pointers, mask=inside, other=0) if TAIL else tl.load(pointers)
    w = load_packed(
        b, pn, k, N, K, stride_bn, stride_bk, PRESHUFFLED, PACK, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, CACHE
    )  # fmt: skip
    s = load_scales(
        b_scales, pn, k, N, K, stride_sn, stride_sk, SCALE_ORDER, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, CACHE
    )
    if A_FORMAT == "bf16":
        if x.dtype != tl.bfloat16:
            x = round_to(x.to(tl.float32), tl.bfloat16, INTERPRETED)
        if INTERPRETED:
            acc = tl.dot(widen(x, True), decode_for_dot(w, s, B_FORMAT, BLOCK_N, BLOCK_K).T, acc)
        else:
            acc = tl.dot_scaled(x, None, "bf16", w.T, s, B_FORMAT, acc)
    else:
        if A_FORMAT == "e4m3":
            q, q_scale = quantize_fp8(x, BLOCK_M, BLOCK_K, ADDEND, 8, 3, INTERPRETED)
        elif CONVERT == "bf16_pairs":
            q, q_scale = quantize_e2m1_bf16_pairs(x, BLOCK_M, BLOCK_K, ADDEND)
        elif CONVERT == "f32":
            q, q_scale = quantize_e2m1_f32(x, BLOCK_M, BLOCK_K, ADDEND)
        else:
            q, q_scale = quantize_e2m1(x, BLOCK_M, BLOCK_K, ADDEND, INTERPRETED)
        acc = dot_mx(q, q_scale, w, s, acc, A_FORMAT, B_FORMAT, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRETED, TRANSPOSED)
    return acc
