"""A walk over the head of a GGUF file before the ``gguf`` package reads it: every length must lie within the file.

The package believes what lengths say, so that a damaged one of an array would keep it busy for ever.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from mxgemm.checkpoints.store import check_regular
from mxgemm.files import FileError

MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each scalar type of a value."""
_STRING: Final = 8
_ARRAY: Final = 9
_LONGEST_NAME: Final = 1 << 16
_DIMENSIONS: Final = 4


class _Head:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self.at = data, path, 0

    def skip(self, size: int, what: str) -> int:
        """Pass over bytes, and return where they begin."""
        start = self.at
        if size > len(self._data) - start:
            raise FileError(f"{self._path}: {what} at byte {start} is {size} bytes long, past the end of the file")
        self.at += size
        return start

    def number(self, code: str, what: str) -> int:
        """Read a little-endian integer."""
        start = self.skip(struct.calcsize(code), what)
        value: int = struct.unpack_from(f"<{code}", self._data, start)[0]
        return value

    def name(self, what: str) -> None:
        """Pass over a name."""
        length = self.number("Q", what)
        if length > _LONGEST_NAME:
            raise FileError(f"{self._path}: {what}: got {length} bytes, want at most {_LONGEST_NAME}")
        self.skip(length, what)

    def value(self, kind: int, depth: int = 0) -> None:
        """Pass over a value."""
        if kind in _SCALARS:
            self.skip(_SCALARS[kind], "a value")
        elif kind == _STRING:
            self.skip(self.number("Q", "a text"), "a text")
        elif kind == _ARRAY and depth == 0:
            inner, count = self.number("I", "an array"), self.number("Q", "an array")
            if inner in _SCALARS:
                self.skip(count * _SCALARS[inner], "an array")
                return
            if count > len(self._data):
                raise FileError(
                    f"{self._path}: an array says that it has {count} elements, more than the file has bytes"
                )
            for _ in range(count):
                self.value(inner, depth + 1)
        else:
            raise FileError(f"{self._path}: a value of type {kind}, want one that GGUF has")


def check_header(path: Path) -> None:
    """Check that every length in the head of a GGUF file lies within the file.

    Raises:
        FileError: one does not, or it is no GGUF file of version 2 or 3 in little-endian order.
    """
    check_regular(path)
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise FileError(f"{path}: no GGUF file: it does not begin with {MAGIC.decode()}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            head = _Head(data, path)
            head.skip(len(MAGIC), "the magic")
            version = head.number("I", "the version")
            if version not in (2, 3):
                raise FileError(f"{path}: got version {version}, want 2 or 3, little-endian")
            tensors, fields = head.number("Q", "a count"), head.number("Q", "a count")
            if max(tensors, fields) > len(data):
                raise FileError(f"{path}: says that it has {tensors} tensors and {fields} fields, more than bytes")
            for _ in range(fields):
                head.name("a key")
                head.value(head.number("I", "a type"))
            for _ in range(tensors):
                head.name("a tensor's name")
                dimensions = head.number("I", "a tensor's dimensions")
                if not 1 <= dimensions <= _DIMENSIONS:
                    raise FileError(f"{path}: a tensor of {dimensions} dimensions, want 1 to {_DIMENSIONS}")
                head.skip(8 * dimensions + 4 + 8, "a tensor's description")
