"""Finish a tile whose K range was split over programs: fp32 partial sums, added in the order of the splits.

The order of the sum never depends on which program is quicker, so repeated runs agree to the bit. Two forms:

* ``reduce_partials_kernel`` is a second launch;
* ``add_partials_last`` lets the program that arrives last at a tile's counter add them up, in the same launch.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.epilogue import round_to, store_tile
from mxgemm.triton.kernels.interpreted import widen

ALL_STORES_DONE = tl.constexpr("s_waitcnt vmcnt(0)")


@triton.jit
def finish_tile(
    acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias,
    SPLIT_K: tl.constexpr, ONE_LAUNCH: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, AMD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """End a GEMM program: store the result, or the partial sums of this split, or add those if it is the last."""
    if SPLIT_K == 1:
        store_tile(
            acc, bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias, HAS_BIAS, BLOCK_M, BLOCK_N,
            EVEN_M, EVEN_N, WIDE, INTERPRETED,
        )  # fmt: skip
    elif ONE_LAUNCH:
        add_partials_last(
            acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias,
            SPLIT_K, HAS_BIAS, BLOCK_M, BLOCK_N, EVEN_M, EVEN_N, WIDE, AMD, INTERPRETED,
        )  # fmt: skip
    else:
        store_partial(acc, partials, split, M, N, pm, pn, BLOCK_M, BLOCK_N)


@triton.jit
def store_partial(acc, partials, split, M, N, pm, pn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store a tile of partial sums at ``partials[split, m, n]``, fp32, contiguous; 64-bit offsets."""
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    base = partials + split.to(tl.int64) * M * N
    pointers = base + row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(pointers, acc, mask=(row < M)[:, None] & (column < N)[None, :])


@triton.jit
def sum_partials(partials, M, N, row, column, inside, SPLIT_K: tl.constexpr):
    """Add the splits of some elements in order; ``row`` and ``column`` broadcast to the tile, ``inside`` masks it."""
    offsets = row.to(tl.int64) * N + column
    total = tl.load(partials + offsets, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLIT_K):
        total += tl.load(partials + tl.full((), split, tl.int64) * M * N + offsets, mask=inside, other=0.0)
    return total


@triton.jit
def arrive(counter, any_value, AMD: tl.constexpr):
    """Count this program, once all it has stored can be seen by others; return how many came before it."""
    if AMD:
        # A barrier orders the waves, not their stores: each wave waits for its own before it arrives.
        tl.inline_asm_elementwise(ALL_STORES_DONE, "=v,v", [any_value], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")


@triton.jit
def add_partials_last(
    acc, partials, counters, bias, out, split, M, N, pm, pn, stride_om, stride_on, stride_bias,
    SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, AMD: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Store this program's partial sums; if it is the tile's last, add all of them, round and store the result.

    ``counters`` holds one zero for each tile and is left so: the last program resets it.
    """
    store_partial(acc, partials, split, M, N, pm, pn, BLOCK_M, BLOCK_N)
    tile = pn * tl.cdiv(M, BLOCK_M) + pm
    arrived = arrive(counters + tile, pm, AMD)
    if arrived == SPLIT_K - 1:
        row = (pm * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
        column = (pn * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
        total = sum_partials(partials, M, N, row, column, (row < M) & (column < N), SPLIT_K)
        store_tile(
            total, bias, out, M, N, pm, pn, stride_om, stride_on, stride_bias, HAS_BIAS, BLOCK_M, BLOCK_N,
            EVEN_M, EVEN_N, WIDE, INTERPRETED,
        )  # fmt: skip
        tl.store(counters + tile, 0)


@triton.jit(do_not_specialize=["M"])
def reduce_partials_kernel(
    partials, bias, out, M, N, stride_om, stride_on, stride_bias,
    SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[m, n] = round(sum(partials[:, m, n]) + bias[n])``; grid ``(M, cdiv(N, BLOCK_N))``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = sum_partials(partials, M, N, row, column, column < N, SPLIT_K)
    if HAS_BIAS:
        columns = column.to(tl.int64) if WIDE else column
        total += widen(tl.load(bias + columns * stride_bias, mask=column < N, other=0.0), INTERPRETED)
    value = round_to(total, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * stride_om + column.to(tl.int64) * stride_on, value, mask=column < N)
