"""The kernel argument segment: values one after the other, each at a multiple of its size.

This is the packed convention of ``hipModuleLaunchKernel`` and ``cuLaunchKernel`` (their ``extra`` argument), and the
order of a kernel's parameters in its source::

    SHUFFLE = Layout("PPqI")  # const u8*, u8*, i64, u32
    function.launch(grid, block, SHUFFLE.pack(source.data_ptr(), target.data_ptr(), stride, rows))
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

_CODES: Final = {"P": "Q", "q": "q", "Q": "Q", "i": "i", "I": "I", "f": "f"}


class Layout:
    """The types of a kernel's parameters; ``pack`` is one call of ``struct`` with every offset settled.

    Attributes:
        codes: a letter a parameter: ``P`` pointer, ``q``/``Q`` 64-bit and ``i``/``I`` 32-bit integers (lower case is
            signed), ``f`` float32.
        size: bytes of the segment.
        offsets: of each parameter in it.
        pack: values in order to bytes; ``struct.error`` for a wrong number of values or one out of range.
        pack_into: a buffer and an offset, then values that are written there.
    """

    __slots__ = ("codes", "offsets", "pack", "pack_into", "size")

    pack: Callable[..., bytes]
    pack_into: Callable[..., None]

    def __init__(self, codes: str) -> None:
        spelled, size, offsets = ["<"], 0, []
        for code in codes:
            if code not in _CODES:
                raise ValueError(f"codes: got {code!r} in {codes!r}, want letters of {''.join(_CODES)}")
            width = struct.calcsize("<" + _CODES[code])
            padding = -size % width
            spelled.append("x" * padding + _CODES[code])
            offsets.append(size + padding)
            size += padding + width
        packer = struct.Struct("".join(spelled))
        self.codes = codes
        self.size = packer.size
        self.offsets = tuple(offsets)
        self.pack = packer.pack
        self.pack_into = packer.pack_into

    def __repr__(self) -> str:
        return f"Layout({self.codes!r})"
