"""Several problems in one launch: each program finds in a table which problem's tile it computes."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd
from mxgemm.triton.kernels.group_quant_gemm import group_quant_tile

FIELDS = tl.constexpr(9)
"""Words of 64 bits a problem: addresses of A, B, their scales and C; M, N, blocks of 32 of K; the end of its tiles."""
CHUNK = tl.constexpr(64)


@triton.jit(do_not_specialize=["COUNT", "TILES"])
def several_gemm_kernel(
    problems, COUNT, TILES,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, COMPUTE: tl.constexpr, A_COLUMN: tl.constexpr, B_ROW: tl.constexpr,
    A_SCALE: tl.constexpr, A_ROWS: tl.constexpr, A_GROUP: tl.constexpr, A_K_SLOWEST: tl.constexpr,
    B_SCALE: tl.constexpr, B_ROWS: tl.constexpr, B_GROUP: tl.constexpr, B_K_SLOWEST: tl.constexpr,
    C_TYPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
    XCDS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute tile ``program`` of all problems' tiles, problem after problem.

    ``problems``: int64 ``[COUNT, FIELDS]``, no problem empty; the last word is the number of tiles up to the problem's
    last. Sizes, types and orders are as ``group_quant_gemm_kernel`` has them.
    """
    tile = contiguous_on_xcd(tl.program_id(0), TILES, XCDS)
    before = 0
    start = tile * 0
    for chunk in range(0, COUNT, CHUNK):
        at = chunk + tl.arange(0, CHUNK)
        end = tl.load(problems + at * FIELDS + (FIELDS - 1), mask=at < COUNT, other=2**62)
        passed = end <= tile
        before += tl.sum(passed.to(tl.int32), 0)
        start = tl.maximum(start, tl.max(tl.where(passed, end, 0), 0).to(tl.int32))
    problem = problems + before * FIELDS
    STORED_A: tl.constexpr = tl.bfloat16 if A_TYPE == "bf16" else tl.uint8
    STORED_B: tl.constexpr = tl.bfloat16 if B_TYPE == "bf16" else tl.uint8
    SCALE_A: tl.constexpr = tl.float32 if A_SCALE == "fp32" or A_SCALE == "none" else tl.uint8
    SCALE_B: tl.constexpr = tl.float32 if B_SCALE == "fp32" or B_SCALE == "none" else tl.uint8
    RESULT: tl.constexpr = tl.bfloat16 if C_TYPE == "bf16" else tl.float16
    a = tl.multiple_of(tl.load(problem).to(tl.pointer_type(STORED_A)), 16)
    b = tl.multiple_of(tl.load(problem + 1).to(tl.pointer_type(STORED_B)), 16)
    a_scales = tl.load(problem + 2).to(tl.pointer_type(SCALE_A))
    b_scales = tl.load(problem + 3).to(tl.pointer_type(SCALE_B))
    out = tl.multiple_of(tl.load(problem + 4).to(tl.pointer_type(RESULT)), 16)
    M = tl.load(problem + 5).to(tl.int32)
    N = tl.load(problem + 6).to(tl.int32)
    K_BLOCKS = tl.load(problem + 7).to(tl.int32)
    group_quant_tile(
        tile - start, a, b, a_scales, b_scales, out, M, N, K_BLOCKS, A_TYPE, B_TYPE, COMPUTE, A_COLUMN, B_ROW, A_SCALE,
        A_ROWS, A_GROUP, A_K_SLOWEST, B_SCALE, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_M, BLOCK_N, BLOCK_K, False, WIDE,
        INTERPRETED,
    )  # fmt: skip
