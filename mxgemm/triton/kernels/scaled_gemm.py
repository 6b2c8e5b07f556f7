"""``mxgemm.quant_gemm`` of one problem, in one launch, with K split over programs where tiles are few."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd
from mxgemm.triton.kernels.scaled_sums import scaled_sums
from mxgemm.triton.kernels.split_k import finish_tile


@triton.jit(do_not_specialize=["M"])  # one compiled kernel serves every M
def scaled_gemm_kernel(
    a, b, a_scales, b_scales, bias, out, partials, counters, M, N, K, stride_am, stride_ak, stride_bn, stride_bk,
    stride_asm, stride_ask, stride_bsn, stride_bsk, stride_om, stride_on, stride_bias,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, DOT: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    A_SCALE_TYPE: tl.constexpr, B_SCALE_TYPE: tl.constexpr, A_GROUP_K: tl.constexpr, B_GROUP_N: tl.constexpr,
    B_GROUP_K: tl.constexpr, SWAPPED: tl.constexpr, SHORT_K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, SPLIT_K: tl.constexpr, STEPS: tl.constexpr,
    RUN: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr, XCDS: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(decode(a)[M, K] @ decode(b)[N, K].T + bias[N])``, fp32 sums, scales as the scheme has them.

    Grid: ``cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * SPLIT_K`` programs.

    * ``A_SCALE``, ``B_SCALE``: "none"; "tensor", one; "row", one a row of the operand; "group", one for ``B_GROUP_N``
      rows of B (one of A) and ``A_GROUP_K``, ``B_GROUP_K`` elements along K, multiples of BLOCK_K (of 32 for E8M0).
    * Strides are in stored elements (bytes, two packed elements each, or bf16).
    * ``SWAPPED``: the matrix unit computes the transposed tile, whose many rows are those of B: for a small BLOCK_M.
    * ``SHORT_K``: sm_90's short fp8 sums are added to fp32 ones after so many elements; 0: at the end.
    * ``SPLIT_K`` programs share a tile, each takes ``STEPS`` blocks of K; the last of them adds their sums.
    * ``RUN``: tiles of a column that follow one another; then the next column's, so that both operands stay cached.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = contiguous_on_xcd(tl.program_id(0), tiles_m * tiles_n * SPLIT_K, XCDS)
    split = pid // (tiles_m * tiles_n)
    tile = pid % (tiles_m * tiles_n)
    band = tile // (RUN * tiles_n)
    height = tl.minimum(tiles_m - band * RUN, RUN)
    within = tile % (RUN * tiles_n)
    pm = band * RUN + within % height
    pn = within // height

    if SPLIT_K == 1:
        first, last = 0, K
    else:
        first = split * (STEPS * BLOCK_K)
        last = tl.minimum(first + STEPS * BLOCK_K, K)
    acc = scaled_sums(
        a, b, a_scales, b_scales, pm, pn, first, last, M, N, K, stride_am, stride_ak, stride_bn, stride_bk,
        stride_asm, stride_ask, stride_bsn, stride_bsk, A_TYPE, B_TYPE, DOT, A_SCALE, B_SCALE, A_SCALE_TYPE,
        B_SCALE_TYPE, A_GROUP_K, B_GROUP_N, B_GROUP_K, SWAPPED, SHORT_K, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N,
        EVEN_K, WIDE, INTERPRETED,
    )  # fmt: skip
    finish_tile(
        acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias, SPLIT_K, True,
        HAS_BIAS, BLOCK_M, BLOCK_N, EVEN_M, EVEN_N, WIDE, AMD, INTERPRETED,
    )  # fmt: skip
