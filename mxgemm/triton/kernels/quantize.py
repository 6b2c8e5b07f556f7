"""Quantise a matrix in one pass: element bytes, and scales in row-major or shuffled order."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.convert_gfx950 import FROM_F32_PAIR
from mxgemm.triton.kernels.interpreted import widen
from mxgemm.triton.kernels.quantize_block import (
    BLOCK,
    FP32_INF_BITS,
    block_scales,
    divide,
    element_codes,
    pack_e2m1,
    scale_bytes,
)


@triton.jit(do_not_specialize=["M"])
def quantize_kernel(
    x, data, scales, M, K, stride_xm, stride_xk, stride_dm, stride_sm,
    EMAX: tl.constexpr, MANTISSA: tl.constexpr, ADDEND: tl.constexpr, HARDWARE: tl.constexpr, SHUFFLED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Quantise ``x[M, K]`` to ``data[M, K/pack]`` and ``scales``, to the byte as ``mxgemm.quantize``.

    Grid: ``(tiles of rows, tiles of columns)``. Row-major scales are ``[M, K/32]``. Shuffled ones are ``[rows,
    columns]`` in the order of ``mxgemm.mx.layouts``; every row and column of the grid is written (rows past M as
    byte 0), so the host covers whatever the consumer may read. ``HARDWARE``: gfx950's convert, for e2m1.
    """
    pm = tl.program_id(0)
    pk = tl.program_id(1)
    COLUMNS: tl.constexpr = BLOCK_K // 32
    row = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    column = pk * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = row.to(tl.int64) if WIDE else row
    columns = column.to(tl.int64) if WIDE else column
    pointers = x + rows[:, None] * stride_xm + columns[None, :] * stride_xk
    if EVEN_M and EVEN_K:
        value = tl.load(pointers)
    else:
        value = tl.load(pointers, mask=(row < M)[:, None] & (column < K)[None, :], other=0.0)
    blocks = widen(value, INTERPRETED).reshape(BLOCK_M, COLUMNS, BLOCK)
    amax, exponent = block_scales(blocks, ADDEND, EMAX)
    # Blocks of zeros and blocks with a NaN or an infinity have codes 0: one unsigned comparison finds both.
    dead = (amax - 1).to(tl.uint32, bitcast=True) >= FP32_INF_BITS - 1
    if MANTISSA == 1:
        BYTES: tl.constexpr = BLOCK_K // 2
        if HARDWARE:
            scale = tl.broadcast_to(exponent << 23, (BLOCK_M, COLUMNS, BLOCK // 2)).reshape(BLOCK_M, BYTES)
            low, high = tl.split(blocks.reshape(BLOCK_M, BYTES, 2))
            scale = scale.to(tl.float32, bitcast=True)
            packed = tl.inline_asm_elementwise(
                FROM_F32_PAIR, "=&v,v,v,v", [low, high, scale], dtype=tl.int32, is_pure=True, pack=1
            )
            live = tl.broadcast_to(dead == 0, (BLOCK_M, COLUMNS, BLOCK // 2)).reshape(BLOCK_M, BYTES)
            packed = tl.where(live, packed, 0).to(tl.uint8)
        else:
            packed = pack_e2m1(
                tl.where(dead, 0, element_codes(divide(blocks, exponent), EMAX, MANTISSA)), BLOCK_M, BLOCK_K
            )
        out_column = pk * BYTES + tl.arange(0, BYTES)
        limit = K // 2
    else:
        codes = tl.where(dead, 0, element_codes(divide(blocks, exponent), EMAX, MANTISSA))
        packed = codes.reshape(BLOCK_M, BLOCK_K).to(tl.uint8)
        out_column = column
        limit = K
    out_columns = out_column.to(tl.int64) if WIDE else out_column
    pointers = data + rows[:, None] * stride_dm + out_columns[None, :]
    if EVEN_M and EVEN_K:
        tl.store(pointers, packed)
    else:
        tl.store(pointers, packed, mask=(row < M)[:, None] & (out_column < limit)[None, :])

    byte = scale_bytes(amax, exponent, BLOCK_M, COLUMNS)
    if SHUFFLED:
        # [R, C] = (r2, r1, r0, c2, c1, c0) -> (r2; c2, c0, r0, c1, r1): permuted in registers, stored in one run.
        tile = byte.reshape(BLOCK_M // 32, 2, 16, COLUMNS // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
        group = pm * (BLOCK_M // 32) + tl.arange(0, BLOCK_M // 32)
        groups = group.to(tl.int64) if WIDE else group
        run = pk * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = (run < stride_sm * 32)[None, :]
        tl.store(
            scales + groups[:, None] * (stride_sm * 32) + run[None, :],
            tile.reshape(BLOCK_M // 32, BLOCK_K),
            mask=inside,
        )
    else:
        scale_column = pk * COLUMNS + tl.arange(0, COLUMNS)
        pointers = scales + rows[:, None] * stride_sm + scale_column[None, :]
        tl.store(pointers, byte, mask=(row < M)[:, None] & (scale_column < K // 32)[None, :])
