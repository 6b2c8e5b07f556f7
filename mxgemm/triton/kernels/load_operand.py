"""Load one tile of an MX operand and of its scales from any layout, row-major in registers afterwards.

Layouts: ``mxgemm.mx.layouts``. Rows past the last are clamped to it (their results are not stored), which keeps loads
wide; columns past K are masked in the one step that has them. What padding holds never reaches a result.
"""

import triton
import triton.language as tl


@triton.jit
def clamped_rows(tile, ROWS, BLOCK: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr):
    """Row numbers of tile ``tile``, none past ``ROWS - 1``; int64 where offsets need it."""
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    if not EVEN:
        rows = tl.minimum(rows, ROWS - 1)
    return rows.to(tl.int64) if WIDE else rows


@triton.jit
def load_packed(
    b, pn, k, N, K, stride_n, stride_k, PRESHUFFLED: tl.constexpr, PACK: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Bytes ``[BLOCK_N, BLOCK_K/PACK]`` of rows from ``pn * BLOCK_N`` and elements from ``k``; 0 past K if ``TAIL``."""
    BYTES: tl.constexpr = BLOCK_K // PACK
    if PRESHUFFLED:
        # [N/16, (BYTES/32, 2, 16, 16)] = (n1; kb, kh, n0, byte): a contiguous run per group of 16 rows.
        groups = clamped_rows(pn, N // 16, BLOCK_N // 16, EVEN_N, WIDE)
        run = tl.arange(0, BYTES * 16)
        if WIDE:
            pointers = b + groups[:, None] * 16 * stride_n + (tl.cast(k // PACK, tl.int64) * 16 + run)[None, :]
            inside = (run < tl.cast((K - k) // PACK, tl.int64) * 16)[None, :]
        else:
            pointers = b + groups[:, None] * (stride_n * 16) + (k // PACK * 16 + run)[None, :]
            inside = (run < (K - k) // PACK * 16)[None, :]
    else:
        rows = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
        inner = tl.arange(0, BYTES)
        columns = k // PACK + inner
        columns = columns.to(tl.int64) if WIDE else columns
        pointers = b + rows[:, None] * stride_n + columns[None, :] * stride_k
        inside = (inner < (K - k) // PACK)[None, :]
    if TAIL:
        tile = tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)
    else:
        tile = tl.load(pointers, cache_modifier=CACHE)
    if PRESHUFFLED:
        tile = tile.reshape(BLOCK_N // 16, BYTES // 32, 2, 16, 16).permute(0, 3, 1, 2, 4).reshape(BLOCK_N, BYTES)
    return tile


@triton.jit
def load_scales(
    scales, pn, k, N, K, stride_n, stride_k, ORDER: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Scale bytes ``[BLOCK_N, BLOCK_K/32]``; 0 past K if ``TAIL``.

    ``ORDER``: "row_major"; "row_major_words", the same where rows start at multiples of four bytes and are contiguous,
    for tiles of fewer bytes than the program has lanes; "shuffled", padded to 256 x 8, so no read is outside; or
    "swizzled_32_4_4", padded to 128 x 4.
    """
    COLUMNS: tl.constexpr = BLOCK_K // 32
    column = k // 32 + tl.arange(0, COLUMNS)
    inside = (column < K // 32)[None, :]
    if ORDER == "shuffled" and BLOCK_N % 32 == 0 and BLOCK_K % 256 == 0:
        # [R/32, (C/8, 4, 16, 2, 2)] = (r2; c2, c0, r0, c1, r1): contiguous, permuted in registers.
        groups = clamped_rows(pn, (N + 255) // 256 * 8, BLOCK_N // 32, True, WIDE)
        run = tl.arange(0, COLUMNS * 32)
        tile = tl.load(scales + groups[:, None] * (stride_n * 32) + (k + run)[None, :], cache_modifier=CACHE)
        tile = tile.reshape(BLOCK_N // 32, COLUMNS // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2)
        tile = tile.reshape(BLOCK_N, COLUMNS)
        if TAIL:
            tile = tl.where(inside, tile, 0)
    elif ORDER == "row_major_words" and not TAIL:
        rows = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
        words = scales.to(tl.pointer_type(tl.int32), bitcast=True)
        four = tl.load(words + rows[:, None] * (stride_n // 4) + (k // 128 + tl.arange(0, COLUMNS // 4))[None, :])
        tile = four[:, :, None] >> (tl.arange(0, 4) * 8)[None, None, :]
        tile = tile.to(tl.uint8).reshape(BLOCK_N, COLUMNS)
    else:
        rows = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
        if ORDER == "shuffled":
            along_rows = (rows // 32) * (stride_n * 32) + (rows % 16) * 4 + (rows % 32) // 16
            along_columns = (column // 8) * 256 + (column % 4) * 64 + ((column % 8) // 4) * 2
        elif ORDER == "swizzled_32_4_4":
            along_rows = (rows // 128) * (stride_n * 32) + (rows % 32) * 16 + ((rows % 128) // 32) * 4
            along_columns = ((column.to(tl.int64) if WIDE else column) // 4) * 512 + column % 4
        else:
            along_rows = rows * stride_n
            along_columns = (column.to(tl.int64) if WIDE else column) * stride_k
        pointers = scales + along_rows[:, None] + along_columns[None, :]
        if TAIL:
            tile = tl.load(pointers, mask=inside, other=0, cache_modifier=CACHE)
        else:
            tile = tl.load(pointers, cache_modifier=CACHE)
    return tile
