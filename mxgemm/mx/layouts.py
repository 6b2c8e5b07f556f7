"""Byte layouts of packed weights and scales: row-major, the orders that AITER's kernels and ours read, and cuBLAS's.

A weight of ``bytes`` columns (``K/2`` for e2m1, ``K`` for fp8) is *preshuffled* in tiles of 16 rows by 32
bytes. With rows split as ``(n1, n0) = (N/16, 16)`` and columns as ``(kb, kh, byte) = (bytes/32, 2, 16)``,
AITER's ``shuffle_weight(layout=(16, 16))`` stores the order ``(n1, kb, kh, n0, byte)``.

Scales are *shuffled* in tiles of 32 rows by 8 columns, after padding to 256 rows by 8 columns with zeros. With
``(r2, r1, r0) = (R/32, 2, 16)`` and ``(c2, c1, c0) = (C/8, 2, 4)``, AITER's ``e8m0_shuffle`` stores the order
``(r2, c2, c0, r0, c1, r1)``, so the byte of row r, column c lies at ::

    (r//32)*C*32 + (c//8)*256 + (c%4)*64 + (r%16)*4 + ((c%8)//4)*2 + (r%32)//16

Scales are *swizzled* (``swizzled_32_4_4``, torch's ``SwizzleType.SWIZZLE_32_4_4``, cuBLAS's "block scaling factors
layout") in tiles of 128 rows by 4 columns, after padding to whole tiles with zeros. With ``(r2, r1, r0) = (R/128, 4,
32)`` and ``(c1, c0) = (C/4, 4)`` the order is ``(r2, c1, r0, r1, c0)``, so the byte of row r, column c lies at ::

    ((r//128)*(C/4) + c//4)*512 + (r%32)*16 + ((r%128)//32)*4 + c%4

*Fragments* is the order of ``mxgemm.mx.fragments``, of bytes and scales together, where N and K need no padding for it.

All are bijections of the (padded) array; every function here works on any torch device and returns fresh memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from mxgemm.arguments import one_of
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK

WeightLayout = Literal["row_major", "preshuffled", "fragments"]
ScaleLayout = Literal["row_major", "shuffled", "swizzled_32_4_4", "fragments"]

WEIGHT_LAYOUTS: Final[tuple[str, ...]] = ("row_major", "preshuffled")
SCALE_LAYOUTS: Final[tuple[str, ...]] = ("row_major", "shuffled", "swizzled_32_4_4")
"""In which weights come. Each of bytes goes with each of scales."""
FRAGMENTS: Final = "fragments"
"""And the one order of both that ``prepare(keep=False)`` may leave of a weight."""
FRAGMENT_ROWS: Final = 32
FRAGMENT_COLUMNS: Final = 128

WEIGHT_TILE_ROWS: Final = 16
WEIGHT_TILE_BYTES: Final = 32
SCALE_PAD_ROWS: Final = 256
SCALE_PAD_COLUMNS: Final = 8
_SCALE_TILE_ROWS: Final = 32
SWIZZLE_ROWS: Final = 128
SWIZZLE_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """How the bytes of an MX operand lie in memory.

    Raises:
        ValueError: an unknown name.
    """

    data: WeightLayout = "row_major"
    scales: ScaleLayout = "row_major"

    def __post_init__(self) -> None:
        one_of("weight_layout", self.data, (*WEIGHT_LAYOUTS, FRAGMENTS))
        one_of("scale_layout", self.scales, (*SCALE_LAYOUTS, FRAGMENTS))
        if (self.data == FRAGMENTS) != (self.scales == FRAGMENTS):
            raise ValueError(f"scale_layout: got {self.scales!r} with {self.data} data, want {FRAGMENTS!r} of both")

    def __str__(self) -> str:
        if self.data == self.scales == "row_major":
            return "row-major"
        return f"{self.data}, scales {self.scales}".replace("_", "-")

    def __reduce__(self) -> tuple[type[Layout], tuple[str, str]]:
        return Layout, (self.data, self.scales)  # through the check, where a dataclass with slots would go past it


ROW_MAJOR: Final = Layout()


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def padded_scale_shape(rows: int, k: int) -> tuple[int, int]:
    """Shape of shuffled scales for ``rows`` rows and ``k`` elements: rows to 256, columns to 8."""
    return round_up(rows, SCALE_PAD_ROWS), round_up(-(-k // BLOCK), SCALE_PAD_COLUMNS)


def swizzled_scale_shape(rows: int, k: int) -> tuple[int, int]:
    """Shape of swizzled scales for ``rows`` rows and ``k`` elements: 32 rows of 16 bytes a tile, as torchao has it."""
    return round_up(rows, SWIZZLE_ROWS) // 4, round_up(k, SWIZZLE_COLUMNS * BLOCK) // 8


def scale_shape(layout: str, rows: int, k: int) -> tuple[int, int]:
    """Shape of the scales of a matrix of ``rows`` rows and ``k`` elements in a layout of :data:`SCALE_LAYOUTS`."""
    if layout == "shuffled":
        return padded_scale_shape(rows, k)
    return swizzled_scale_shape(rows, k) if layout == "swizzled_32_4_4" else (rows, k // BLOCK)


def scale_row(layout: str, row: int) -> int:
    """Row of a scale tensor at which those of a logical row begin; ``row`` starts a tile of the layout."""
    return row // SWIZZLE_ROWS * 32 if layout == "swizzled_32_4_4" else row


def row_major_scales(scales: Tensor, layout: str, rows: int, columns: int) -> Tensor:
    """Return scales of any layout as ``[rows, columns]``: themselves where they are row-major.

    Args:
        scales: uint8 of :func:`scale_shape`.
        layout: one of :data:`SCALE_LAYOUTS`.
        rows: logical rows.
        columns: logical columns (K/32).

    Raises:
        TypeError, ValueError: as :func:`unshuffle_scales`.
    """
    if layout == "shuffled":
        return unshuffle_scales(scales, rows, columns)
    return unswizzle_scales(scales, rows, columns) if layout == "swizzled_32_4_4" else scales


def preshuffle_weight(packed: Tensor) -> Tensor:
    """Reorder row-major weight bytes ``[N, bytes]`` for 16-byte loads straight to registers.

    Returns:
        uint8 ``[N, bytes]`` in preshuffled order.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional, N % 16 != 0 or bytes % 32 != 0 (K % 64 != 0 for e2m1).
    """
    n, columns = _check_weight(packed)
    tiles = packed.reshape(n // 16, 16, columns // 32, 2, 16)
    return tiles.permute(0, 2, 3, 1, 4).contiguous().view(n, columns)


def unpreshuffle_weight(packed: Tensor) -> Tensor:
    """Undo :func:`preshuffle_weight`; shapes and errors are the same."""
    n, columns = _check_weight(packed)
    tiles = packed.reshape(n // 16, columns // 32, 2, 16, 16)
    return tiles.permute(0, 3, 1, 2, 4).contiguous().view(n, columns)


def fragment_refusal(n: int, k: int) -> Refusal | None:
    """Say why an MXFP4 weight cannot lie in fragment order alone, or return None if it can."""
    for name, got, of in (("n", n, FRAGMENT_ROWS), ("k", k, FRAGMENT_COLUMNS)):
        if got % of:
            return Refusal(name, got, f"a multiple of {of}", words=f"{name.upper()} = {got} is not a multiple of {of}")
    return None


def preshuffle_refusal(n: int, columns: int) -> Refusal | None:
    """Say why ``[n, columns]`` weight bytes cannot be preshuffled, or return None if they can."""
    if n % WEIGHT_TILE_ROWS:
        needed = f"a multiple of {WEIGHT_TILE_ROWS}"
        return Refusal("n", n, needed, words=f"N = {n} is not {needed}")
    if columns % WEIGHT_TILE_BYTES:
        needed = f"a multiple of {WEIGHT_TILE_BYTES} (K % 64 == 0 for e2m1)"
        return Refusal("bytes a row", columns, needed, words=f"{columns} bytes a row are not {needed}")
    return None


def shuffle_scales(scales: Tensor) -> Tensor:
    """Shuffle row-major scale bytes ``[rows, columns]``, padding them with zero bytes first.

    Returns:
        uint8 of :func:`padded_scale_shape`.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional.
    """
    rows, columns = _check_bytes(scales, "scales")
    padded_rows, padded_columns = padded_scale_shape(rows, columns * BLOCK)
    padded = torch.zeros(padded_rows, padded_columns, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales
    tiles = padded.view(padded_rows // _SCALE_TILE_ROWS, 2, 16, padded_columns // 8, 2, 4)
    return tiles.permute(0, 3, 5, 2, 4, 1).contiguous().view(padded_rows, padded_columns)


def unshuffle_scales(shuffled: Tensor, rows: int, columns: int) -> Tensor:
    """Undo :func:`shuffle_scales` and drop the padding, whatever bytes it holds.

    Args:
        shuffled: uint8 ``[>= rows, >= columns]``, a multiple of 32 by a multiple of 8.
        rows: logical rows to return.
        columns: logical columns (K/32) to return.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional, not a whole number of tiles, or smaller than ``[rows, columns]``.
    """
    padded_rows, padded_columns = _check_bytes(shuffled, "shuffled")
    whole_tiles = padded_rows % _SCALE_TILE_ROWS == 0 and padded_columns % SCALE_PAD_COLUMNS == 0
    if not whole_tiles or padded_rows < rows or padded_columns < columns:
        raise ValueError(
            f"shuffled: got shape {tuple(shuffled.shape)}, want at least ({rows}, {columns}) in whole tiles of 32 x 8"
        )
    tiles = shuffled.reshape(padded_rows // _SCALE_TILE_ROWS, padded_columns // 8, 4, 16, 2, 2)
    row_major = tiles.permute(0, 5, 3, 1, 4, 2).reshape(padded_rows, padded_columns)
    return row_major[:rows, :columns].contiguous()


def swizzle_scales(scales: Tensor) -> Tensor:
    """Swizzle row-major scale bytes ``[rows, columns]``, padding them with zero bytes first.

    Returns:
        uint8 of :func:`swizzled_scale_shape`.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional.
    """
    rows, columns = _check_bytes(scales, "scales")
    tall, wide = -(-rows // SWIZZLE_ROWS), -(-columns // SWIZZLE_COLUMNS)
    shape = tall * SWIZZLE_ROWS, wide * SWIZZLE_COLUMNS
    padded = torch.zeros(shape, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales
    tiles = padded.view(tall, 4, 32, wide, SWIZZLE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().view(tall * 32, wide * 16)


def unswizzle_scales(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    """Undo :func:`swizzle_scales` and drop the padding, whatever bytes it holds.

    Args:
        swizzled: uint8, a multiple of 32 by a multiple of 16, large enough for ``[rows, columns]``.
        rows: logical rows to return.
        columns: logical columns (K/32) to return.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional, not a whole number of tiles, or smaller than ``[rows, columns]``.
    """
    tall, wide = _check_bytes(swizzled, "swizzled")
    if tall % 32 or wide % 16 or tall // 32 * SWIZZLE_ROWS < rows or wide // 16 * SWIZZLE_COLUMNS < columns:
        least = swizzled_scale_shape(rows, columns * BLOCK)
        raise ValueError(
            f"swizzled: got shape {tuple(swizzled.shape)}, want at least {least} in whole tiles of 32 x 16"
        )
    tiles = swizzled.reshape(tall // 32, wide // 16, 32, 4, SWIZZLE_COLUMNS)
    row_major = tiles.permute(0, 3, 2, 1, 4).reshape(tall // 32 * SWIZZLE_ROWS, wide // 16 * SWIZZLE_COLUMNS)
    return row_major[:rows, :columns].contiguous()


def _check_bytes(tensor: Tensor, name: str) -> tuple[int, int]:
    if tensor.dtype != torch.uint8:
        raise TypeError(f"{name}: got dtype {tensor.dtype}, want torch.uint8")
    if tensor.dim() != 2:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, want two dimensions")
    return tensor.shape[0], tensor.shape[1]


def _check_weight(packed: Tensor) -> tuple[int, int]:
    n, columns = _check_bytes(packed, "packed")
    reason = preshuffle_refusal(n, columns)
    if reason:
        raise ValueError(f"packed: got shape {tuple(packed.shape)}; {reason}, so it cannot be preshuffled")
    return n, columns
