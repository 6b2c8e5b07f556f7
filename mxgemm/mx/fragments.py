"""The fragment order of an MXFP4 weight: its codes and scales as the lanes of a warp read them for ``mma.sync``.

A *chunk* is 16 rows by 128 elements along K, four blocks of a row: lane ``4 g + t`` of 32 has block t of the rows g and
g + 8, so rows are ``(tile, half, g)`` and elements ``(chunk, t, word, 8)``. N is padded to 32 with zeros and K to 128.
Codes come first, uint32 words in the order ``(tile, chunk, half, g, t, word)``; then the scale bytes, in the order
``(tile / 2, chunk, g, t, tile % 2, half)``.

A word has eight codes, two to a pair of bf16, each in bits of its own::

    pair    sign     magnitude
      0    15, 31    8 to 6, 24 to 22       as in a pair of bf16 that are 126 binades down
      1    18,  2   11 to 9, 27 to 25       the same, 3 bits to the left and round the end
      2     3, 19    1, 0, 4, 17, 16, 20
      3    21,  5   14 to 12, 30 to 28      as pair 0, 6 bits to the left and round the end

so that few instructions make pairs of bf16 of them. Pair j has the codes 2 j and 2 j + 1, as activations lie; in a
stack of experts' weights j and j + 4, as weights that nobody put in order give them. Padding aside it is as large as
the row-major bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from mxgemm.mx.layouts import FRAGMENT_COLUMNS, FRAGMENT_ROWS, round_up

ROWS: Final = FRAGMENT_ROWS
"""What N is padded to: two tiles of 16 rows."""
CHUNK: Final = FRAGMENT_COLUMNS
"""What K is padded to."""
_PADDED_SCALE: Final = 127
_PLACES: Final = (
    *(((3, 1, 15), (0, 7, 6)), ((3, 1, 18), (0, 7, 9)), ((3, 1, 3), (1, 3, 0), (0, 1, 4)), ((3, 1, 21), (0, 7, 12))),
    *(((3, 1, 31), (0, 7, 22)), ((3, 1, 2), (0, 7, 25)), ((3, 1, 19), (1, 3, 16), (0, 1, 20)), ((3, 1, 5), (0, 7, 28))),
)
"""Of the lower codes of four pairs, then of the upper ones: lowest bit in the code, a mask of it and those that follow,
lowest bit in the word."""


def code_bytes(n: int, k: int) -> int:
    """Return the bytes of the codes, which the scales follow."""
    return round_up(n, ROWS) * round_up(k, CHUNK) // 2


def scale_bytes(n: int, k: int) -> int:
    """Return the bytes of the scales."""
    return round_up(n, ROWS) * round_up(k, CHUNK) // 32


def fragment_bytes(n: int, k: int) -> int:
    """Return the bytes of an (N, K) weight in fragment order."""
    return code_bytes(n, k) + scale_bytes(n, k)


def fragment_order(data: Tensor, scales: Tensor, *, neighbours: bool = True) -> Tensor:
    """Put an MXFP4 weight into fragment order.

    Args:
        data: uint8 ``[N, K/2]``, row-major.
        scales: uint8 ``[N, K/32]``, row-major.
        neighbours: pairs are of the codes 2 j and 2 j + 1, not of j and j + 4.

    Returns:
        uint8 ``[fragment_bytes(N, K)]``.
    """
    n, k = data.shape[0], 2 * data.shape[1]
    made = torch.empty(fragment_bytes(n, k), dtype=torch.uint8, device=data.device)
    if not made.numel():
        return made
    codes, of_scales = made[: code_bytes(n, k)], made[code_bytes(n, k) :]
    rows, chunks = round_up(n, ROWS), round_up(k, CHUNK) // CHUNK
    padded = _padded(data, rows, chunks * CHUNK // 2, 0)
    # tile, half, g, chunk, t, word, four bytes
    placed = _placed(padded, neighbours).view(torch.uint8).view(rows // 16, 2, 8, chunks, 4, 4, 4)
    codes.view(rows // 16, chunks, 2, 8, 4, 4, 4).copy_(placed.permute(0, 3, 1, 2, 4, 5, 6))
    # pair of tiles, tile, half, g, chunk, t
    padded = _padded(scales, rows, chunks * 4, _PADDED_SCALE).view(rows // 32, 2, 2, 8, chunks, 4)
    of_scales.view(rows // 32, chunks, 8, 4, 2, 2).copy_(padded.permute(0, 4, 3, 5, 1, 2))
    return made


def stack_fragments(data: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Put every weight of a stack into fragment order, codes and scales in tensors of their own.

    Args:
        data: uint8 ``[E, N, K/2]``, row-major.
        scales: uint8 ``[E, N, K/32]``, row-major.

    Returns:
        uint8 ``[E, code_bytes(N, K)]`` and ``[E, scale_bytes(N, K)]``.
    """
    experts, n, columns = data.shape
    size = code_bytes(n, 2 * columns)
    codes = data.new_empty((experts, size))
    of_scales = data.new_empty((experts, scale_bytes(n, 2 * columns)))
    for expert in range(experts):
        made = fragment_order(data[expert], scales[expert], neighbours=False)
        codes[expert].copy_(made[:size])
        of_scales[expert].copy_(made[size:])
    return codes, of_scales


def fragment_parts(data: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Put an MXFP4 weight that needs no padding into fragment order, codes and scales in tensors of their own.

    Args:
        data: uint8 ``[N, K/2]``, row-major, N a multiple of 32, K of 128.
        scales: uint8 ``[N, K/32]``, row-major.

    Returns:
        fresh memory of the same shapes; 32 rows of each are those of the weight.
    """
    made = fragment_order(data, scales)
    return made[: data.numel()].view(data.shape), made[data.numel() :].clone().view(scales.shape)


def row_major_parts(data: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Undo :func:`fragment_parts`, of whole weights or of multiples of 32 rows."""
    n, k = data.shape[0], 2 * data.shape[1]
    chunks = k // CHUNK
    # pair of tiles, chunk, g, t, tile, half -> pair of tiles, tile, half, g, chunk, t
    of_scales = scales.reshape(n // ROWS, chunks, 8, 4, 2, 2).permute(0, 4, 5, 2, 1, 3)
    # tile, chunk, half, g, t, bytes -> tile, half, g, chunk, t, bytes
    placed = data.reshape(n // 16, chunks, 2, 8, 4, 16).permute(0, 2, 3, 1, 4, 5).reshape(n, k // 2)
    return _taken_back(placed), of_scales.reshape(n, k // 32)


def _taken_back(placed: Tensor) -> Tensor:
    """Undo :func:`_placed` of neighbours: bytes of two codes."""
    words = placed.view(torch.int32)
    plain = torch.zeros_like(words)
    for code, bits, mask, to in _moves(neighbours=True):
        plain |= ((words >> to) & mask) << (4 * code + bits)
    return plain.view(torch.uint8)


def _padded(x: Tensor, rows: int, columns: int, value: int) -> Tensor:
    if x.shape == (rows, columns):
        return x.clone() if x.storage_offset() % 4 else x.contiguous()  # four bytes are read at once
    return torch.nn.functional.pad(x, (0, columns - x.shape[1], 0, rows - x.shape[0]), value=value)


def _placed(data: Tensor, neighbours: bool) -> Tensor:
    """Move the codes of four bytes each to their bits: int32 of a quarter as many columns."""
    words = data.view(torch.int32)  # the codes 0 to 7 from the lowest bit on
    placed = torch.zeros_like(words)
    for code, bits, mask, to in _moves(neighbours):
        placed |= ((words >> (4 * code + bits)) & mask) << to
    return placed


def _moves(neighbours: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield a code of a word's eight, which of its bits, how many as a mask, and where they lie from."""
    for place, moves in enumerate(_PLACES):
        code = 2 * (place % 4) + place // 4 if neighbours else place
        for bits, mask, to in moves:
            yield code, bits, mask, to
