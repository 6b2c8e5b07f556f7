"""Load a shared library that was built: whole, and what was built, or not at all."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from mxgemm import build_cache, files
from mxgemm.files import FileError

_ELF64: Final = b"\x7fELF\x02\x01"
_PT_LOAD: Final = 1


def load(path: Path) -> ctypes.CDLL:
    """Load a shared library.

    It is opened under its own name, not from a copy: ROCm's runtime reads the file again, by the name that the process
    has it mapped under, to find the kernels in it.

    Raises:
        OSError: it cannot be read, its end is missing (which the loader would find out by SIGBUS), it is not what the
            manifest of the build cache beside it says, or it is no library of this machine.
    """
    try:
        before = os.stat(path)
        image = files.read_bytes(path, build_cache.FILE_LIMIT)
    except FileError as error:
        raise OSError(str(error)) from error
    if build_cache.differs(path, image):
        raise OSError(f"{path}: damaged: it is not what was built; build it again")
    missing = truncation(image)
    if missing:
        raise OSError(f"{path}: damaged or truncated: {missing}")
    library = ctypes.CDLL(str(path))
    after = os.stat(path)
    if not os.path.samestat(before, after) or before.st_mtime_ns != after.st_mtime_ns:
        raise OSError(f"{path}: changed while it was loaded")
    return library


def truncation(image: bytes) -> str:
    """Say what a loader would map beyond a file's end, or return "", as for what is no ELF file."""
    if not image.startswith(_ELF64):
        return ""
    try:
        (table,) = struct.unpack_from("<Q", image, 0x20)
        size, count = struct.unpack_from("<HH", image, 0x36)
        for index in range(count):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", image, table + index * size)
            if kind == _PT_LOAD and offset + length > len(image):
                return f"a segment reaches to byte {offset + length} of {len(image)}"
    except struct.error:
        return f"its program headers lie beyond its {len(image)} bytes"
    return ""
