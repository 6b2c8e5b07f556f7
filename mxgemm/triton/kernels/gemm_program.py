"""What a program of a tiled GEMM does, whatever its operands are: which tile, which part of K, every step, the end."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd
from mxgemm.triton.kernels.split_k import finish_tile


@triton.jit
def gemm_program(
    step: tl.constexpr, operands, bias, out, partials, counters, M, N, K, stride_om, stride_on, stride_bias,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr, STEPS: tl.constexpr, ONE_LAUNCH: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, XCDS: tl.constexpr, AMD: tl.constexpr, INTERPRETED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the result, or a split's part of it.

    ``step`` returns the sums ``acc[BLOCK_M, BLOCK_N]`` with the block of K added that starts at ``k``. Only the one for
    which ``TAIL`` holds needs masks along K. ``operands`` are the step's own parameters, its last ones. ``TRANSPOSED``:
    the sums are ``[BLOCK_N, BLOCK_M]``, as the step knows by its own parameters, and are turned round at the end.
    """
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
    acc = tl.zeros((BLOCK_N, BLOCK_M) if TRANSPOSED else (BLOCK_M, BLOCK_N), tl.float32)
    for k in range(first, whole, BLOCK_K):
        acc = step(
            acc, pm, pn, k, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, False, WIDE, INTERPRETED, *operands
        )
    if not EVEN_K:
        if whole < last:
            acc = step(
                acc, pm, pn, whole, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, True, WIDE, INTERPRETED,
                *operands,
            )  # fmt: skip

    if TRANSPOSED:
        acc = acc.T
    finish_tile(
        acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias, SPLIT_K, ONE_LAUNCH,
        HAS_BIAS, BLOCK_M, BLOCK_N, EVEN_M, EVEN_N, WIDE, AMD, INTERPRETED,
    )  # fmt: skip
