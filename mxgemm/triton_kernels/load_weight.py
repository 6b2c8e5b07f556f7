"""Load one tile of a weight and of its scales from any layout, row-major in registers afterwards.

Layouts: ``mxgemm.layouts``. Bytes past N or K are never read, or replaced before use: what padding holds
does not reach a result.
"""

import triton
import triton.language as tl


@triton.jit
def load_packed(
    b, pn, k, N, K, stride_n, stride_k, PRESHUFFLED: tl.constexpr, PACK: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Bytes ``[BLOCK_N, BLOCK_K/PACK]`` of rows from ``pn * BLOCK_N`` and elements from ``k``."""
    BYTES: tl.constexpr = BLOCK_K // PACK
    if PRESHUFFLED:
        # [N/16, (BYTES/32, 2, 16, 16)] = (n1; kb, kh, n0, byte): a contiguous run per group of 16 rows.
        group = pn * (BLOCK_N // 16) + tl.arange(0, BLOCK_N // 16)
        run = tl.arange(0, BYTES * 16)
        rows = group.to(tl.int64) if WIDE else group
        pointers = b + rows[:, None] * (stride_n * 16) + (k // PACK * 16 + run)[None, :]
        inside = (group < N // 16)[:, None] if not EVEN_N else tl.full((1, 1), True, tl.int1)
        if not EVEN_K:
            inside = inside & (run < (K - k) // PACK * 16)[None, :]
        if EVEN_N and EVEN_K:
            tile = tl.load(pointers, cache_modifier=CACHE)
        else:
            tile = tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)
        tile = tile.reshape(BLOCK_N // 16, BYTES // 32, 2, 16, 16).permute(0, 3, 1, 2, 4)
        return tile.reshape(BLOCK_N, BYTES)
    row = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BYTES)
    rows = row.to(tl.int64) if WIDE else row
    columns = k // PACK + column
    columns = columns.to(tl.int64) if WIDE else columns
    pointers = b + rows[:, None] * stride_n + columns[None, :] * stride_k
    if EVEN_N and EVEN_K:
        return tl.load(pointers, cache_modifier=CACHE)
    inside = (row < N)[:, None] & (column < (K - k) // PACK)[None, :]
    return tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)


@triton.jit
def load_scales(
    scales, pn, k, N, K, stride_n, stride_k, SHUFFLED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Scale bytes ``[BLOCK_N, BLOCK_K/32]``; 0 past K. Shuffled scales are padded to 256 x 8: no read is outside."""
    COLUMNS: tl.constexpr = BLOCK_K // 32
    column = k // 32 + tl.arange(0, COLUMNS)
    if SHUFFLED and BLOCK_N % 32 == 0 and BLOCK_K % 256 == 0:
        # [R/32, (C/8, 4, 16, 2, 2)] = (r2; c2, c0, r0, c1, r1): contiguous, permuted in registers.
        group = pn * (BLOCK_N // 32) + tl.arange(0, BLOCK_N // 32)
        run = tl.arange(0, COLUMNS * 32)
        rows = group.to(tl.int64) if WIDE else group
        tile = tl.load(scales + rows[:, None] * (stride_n * 32) + (k + run)[None, :], cache_modifier=CACHE)
        tile = tile.reshape(BLOCK_N // 32, COLUMNS // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2)
        tile = tile.reshape(BLOCK_N, COLUMNS)
        if not EVEN_K:
            tile = tl.where((column < K // 32)[None, :], tile, 0)
        return tile
    row = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = row.to(tl.int64) if WIDE else row
    if SHUFFLED:
        along_rows = (rows // 32) * (stride_n * 32) + (row % 16) * 4 + (row % 32) // 16
        along_columns = (column // 8) * 256 + (column % 4) * 64 + ((column % 8) // 4) * 2
        pointers = scales + along_rows[:, None] + along_columns[None, :]
    else:
        columns = column.to(tl.int64) if WIDE else column
        pointers = scales + rows[:, None] * stride_n + columns[None, :] * stride_k
    if EVEN_N and EVEN_K:
        return tl.load(pointers, cache_modifier=CACHE)
    inside = (row < N)[:, None] & (column < K // 32)[None, :]
    return tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)
