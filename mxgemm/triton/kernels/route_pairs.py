"""Around grouped products: pairs of tokens and experts in the order of experts, tile lists, and sums over top-k."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.interpreted import widen
from mxgemm.triton.kernels.split_k import arrive


@triton.jit
def local_expert(ids, expert_map, EXPERTS, FIRST, MAPPED: tl.constexpr, LENGTH, inside):
    """The experts of this call that ids mean, int32; -1 for dropped pairs, for another rank's, and outside."""
    if MAPPED:
        known = inside & (ids >= 0) & (ids < LENGTH)
        local = tl.load(expert_map + tl.where(known, ids, 0), mask=known, other=-1)
    else:
        known = inside & (ids >= FIRST) & (ids < FIRST + EXPERTS) & (ids >= 0)
        local = tl.where(known, ids - FIRST, -1).to(tl.int32)
    return tl.where(known & (local >= 0) & (local < EXPERTS), local, -1)


@triton.jit(do_not_specialize=["PAIRS", "FIRST", "LENGTH"])
def sort_pairs_kernel(
    ids, expert_map, index, offsets, tiles, counters, PAIRS, EXPERTS, FIRST, LENGTH,
    MAPPED: tl.constexpr, BLOCK: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    """Sort pairs by expert, those of one in their own order, and list the tiles of ``BLOCK_M`` rows that they make.

    Grid: a program an expert. It counts the pairs of those before it, which is where its own begin, and writes them;
    the last program to arrive makes the tile list. Pairs of no expert are nowhere in ``index``.
    """
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, PAIRS, BLOCK):
        pair = start + lane
        inside = pair < PAIRS
        local = local_expert(
            tl.load(ids + pair, mask=inside, other=-1), expert_map, EXPERTS, FIRST, MAPPED, LENGTH, inside
        )
        before += ((local >= 0) & (local < expert)).to(tl.int32)
    at = tl.sum(before, 0)
    tl.store(offsets + expert, at)
    for start in range(0, PAIRS, BLOCK):
        pair = start + lane
        inside = pair < PAIRS
        local = local_expert(
            tl.load(ids + pair, mask=inside, other=-1), expert_map, EXPERTS, FIRST, MAPPED, LENGTH, inside
        )
        mine = (local == expert).to(tl.int32)
        tl.store(index + at + tl.cumsum(mine, 0) - 1, pair, mask=mine > 0)
        at += tl.sum(mine, 0)
    if expert == EXPERTS - 1:
        tl.store(offsets + EXPERTS, at)
    arrived = arrive(counters, expert, AMD)
    if arrived == EXPERTS - 1:
        make_tile_list(offsets, tiles, PAIRS, EXPERTS, False, EXPERTS_BLOCK, BLOCK_M)
        tl.store(counters, 0)


@triton.jit(do_not_specialize=["ROWS"])
def tile_list_kernel(
    offsets, tiles, ROWS, EXPERTS, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """List the tiles of ``BLOCK_M`` rows of every group, and of the rows of none. Grid: one program."""
    make_tile_list(offsets, tiles, ROWS, EXPERTS, True, EXPERTS_BLOCK, BLOCK_M)


@triton.jit
def make_tile_list(
    offsets, tiles, ROWS, EXPERTS, REST: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Write the tile list of offsets ``[EXPERTS + 1]``: see ``grouped_gemm.py``.

    Group g is that of expert g - 1, and with ``REST`` the first and the last are the rows before and behind all.
    Offsets that decrease or leave 0..ROWS are cut off. ``EXPERTS_BLOCK``: a power of two from EXPERTS + 2 on.
    """
    group = tl.arange(0, EXPERTS_BLOCK)
    raw = tl.load(offsets + group, mask=group <= EXPERTS, other=0, cache_modifier=".cg")
    raw = tl.where(group <= EXPERTS, raw, ROWS)
    end = tl.minimum(tl.associative_scan(tl.maximum(raw, 0), 0, larger), ROWS)
    raw = tl.load(offsets + group - 1, mask=(group >= 1) & (group <= EXPERTS + 1), other=0, cache_modifier=".cg")
    start = tl.minimum(tl.associative_scan(tl.maximum(raw, 0), 0, larger), ROWS)
    real = (group >= 1) & (group <= EXPERTS)
    if REST:
        listed = group <= EXPERTS + 1
    else:
        listed = real
    count = tl.where(listed, tl.cdiv(end - start, BLOCK_M), 0)
    behind = tl.cumsum(count, 0)
    expert = tl.where(real, group - 1, -1)
    tl.store(tiles, tl.sum(count, 0))
    for i in range(0, tl.max(count, 0)):
        entry = tiles + (behind - count + i + 1) * 3
        first = start + i * BLOCK_M
        tl.store(entry, expert, mask=i < count)
        tl.store(entry + 1, first, mask=i < count)
        tl.store(entry + 2, tl.minimum(first + BLOCK_M, end), mask=i < count)


@triton.jit
def larger(x, y):
    """The larger of two integers."""
    return tl.maximum(x, y)


@triton.jit(do_not_specialize=["FIRST", "LENGTH"])
def sum_pairs_kernel(
    y, ids, weights, expert_map, out, EXPERTS, FIRST, LENGTH, COLUMNS, stride_om, stride_on,
    MAPPED: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[t] = round(sum_j weights[t, j] * y[t, j])``, in the order of j; dropped pairs add nothing.

    Grid: ``(tokens, cdiv(COLUMNS, BLOCK))``.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        pair = token * TOP_K + j
        there = local_expert(tl.load(ids + pair), expert_map, EXPERTS, FIRST, MAPPED, LENGTH, token >= 0) >= 0
        value = tl.load(y + pair * COLUMNS + column, mask=column < tl.where(there, COLUMNS, 0), other=0.0)
        total += tl.where(there, value * widen(tl.load(weights + pair), INTERPRETED), 0.0)
    value = round_to(total, out.dtype.element_ty, INTERPRETED)
    tl.store(out + token * stride_om + column.to(tl.int64) * stride_on, value, mask=column < COLUMNS)
