"""The argument block of AITER's f4gemm kernels: 384 bytes, every argument at the start of a 16-byte slot.

Slots for second strides, which no kernel reads, and for C and beta, which none applies, stay zero. ``alpha`` is 1: most
kernels ignore it.
"""

from __future__ import annotations

import struct
from typing import Final

BLOCK_SIZE: Final = 384
THREADS: Final = (256, 1, 1)
"""Threads of a workgroup: four waves."""

_POINTERS: Final = {"d": 0x00, "a": 0x20, "b": 0x30, "a_scales": 0x110, "b_scales": 0x120}
_ALPHA: Final = 0x40
_WORDS: Final = {
    # AITER's headers call this slot stride_C0; what the kernels step by with it is D's row.
    "d_stride": 0x80,
    "a_stride": 0xA0,
    "b_stride": 0xC0,
    "m": 0xE0,
    "n": 0xF0,
    "k": 0x100,
    "a_scales_stride": 0x130,
    "b_scales_stride": 0x150,
}


class ArgumentBlock:
    """The block for one problem: everything but the addresses is packed once."""

    __slots__ = ("_template",)

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        d_stride: int,
        a_stride: int,
        b_stride: int,
        a_scales_stride: int,
        b_scales_stride: int,
    ) -> None:
        """Pack what does not change between launches.

        Args:
            m: rows of A and D.
            n: rows of B, columns of D.
            k: elements along the contraction.
            d_stride: from row to row of D, bf16 elements.
            a_stride: from row to row of A, bytes (two elements each).
            b_stride: from row to row of B, bytes; of preshuffled bytes K/2, as if they were row-major.
            a_scales_stride: from row to row of A's shuffled scales as a matrix, bytes.
            b_scales_stride: the same of B's.
        """
        words = {
            "d_stride": d_stride,
            "a_stride": 2 * a_stride,
            "b_stride": 2 * b_stride,
            "m": m,
            "n": n,
            "k": k,
            "a_scales_stride": a_scales_stride,
            "b_scales_stride": b_scales_stride,
        }
        self._template = bytearray(BLOCK_SIZE)
        struct.pack_into("<f", self._template, _ALPHA, 1.0)
        for name, value in words.items():
            struct.pack_into("<I", self._template, _WORDS[name], value)

    def pack(self, *, d: int, a: int, b: int, a_scales: int, b_scales: int) -> bytes:
        """Return the block for these device addresses."""
        block = bytearray(self._template)
        addresses = {"d": d, "a": a, "b": b, "a_scales": a_scales, "b_scales": b_scales}
        for name, address in addresses.items():
            struct.pack_into("<Q", block, _POINTERS[name], address)
        return bytes(block)


def unpack(block: bytes) -> dict[str, int]:
    """Read a block back: addresses and words by name, strides as they are stored (A's and B's in elements)."""
    found = {name: struct.unpack_from("<Q", block, offset)[0] for name, offset in _POINTERS.items()}
    found |= {name: struct.unpack_from("<I", block, offset)[0] for name, offset in _WORDS.items()}
    return found
