"""Both operands of a product in bf16 at once: activations rounded to an MX format, weights decoded."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.fold_weight import decode_fold_tile
from mxgemm.triton.kernels.round_values import round_values_tile


@triton.jit(do_not_specialize=["M"])
def round_and_decode_kernel(
    x, out, b, b_scales, base, decoded, factors, M, K, stride_xm, stride_xk,
    N, stride_bn, stride_bk, stride_sn, stride_sk,
    EMAX: tl.constexpr, ADDEND: tl.constexpr, BLOCK_M: tl.constexpr, A_BLOCK_K: tl.constexpr,
    PRESHUFFLED: tl.constexpr, SCALE_ORDER: tl.constexpr, TO_FP8: tl.constexpr, WORDS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``round_values_kernel`` and ``decode_fold_kernel`` in one launch, with the same bytes.

    Grid: ``cdiv(M, BLOCK_M) * cdiv(K, A_BLOCK_K) + cdiv(N, BLOCK_N) * cdiv(K, BLOCK_K)``, tiles of ``x`` first.
    """
    program, across = tl.program_id(0), tl.cdiv(K, A_BLOCK_K)
    tiles = tl.cdiv(M, BLOCK_M) * across
    if program < tiles:
        pm = program // across
        round_values_tile(
            pm, program - pm * across, x, out, M, K, stride_xm, stride_xk,
            EMAX, ADDEND, BLOCK_M, A_BLOCK_K, WIDE, INTERPRETED,
        )  # fmt: skip
    else:
        decode_fold_tile(
            program - tiles, b, b_scales, base, decoded, factors, N, K, stride_bn, stride_bk, stride_sn, stride_sk,
            PRESHUFFLED, SCALE_ORDER, TO_FP8, WORDS, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, WIDE, INTERPRETED,
        )  # fmt: skip
