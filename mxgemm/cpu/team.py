"""The OpenMP runtime that torch has loaded: the C kernels run on its threads."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

import torch

from mxgemm import files

_MAPS: Final = "/proc/self/maps"
_RUNTIME: Final = re.compile(r"lib(?:g|i)?omp[0-9]*(?:-[0-9a-f]+)?\.so[.0-9]*")


def starter() -> int | None:
    """Return the address of ``GOMP_parallel`` in torch's runtime, or None where it is not found, and in a forked child.

    Only a runtime in torch's own folders is taken: others in the process have threads that torch does not use.
    """
    return None if _forked else _found()


@cache
def _found() -> int | None:
    package = Path(torch.__file__).resolve().parent
    folders = {str(package / "lib"), f"{package}.libs"}
    try:
        lines = files.read_bytes(_MAPS).decode(errors="replace").splitlines()
    except files.FileError:
        return None
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines}
    for path in paths:
        if str(path.parent) in folders and _RUNTIME.fullmatch(path.name):
            try:
                return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value
            except (OSError, AttributeError):
                continue
    return None


_forked: Final[list[bool]] = []
"""Not empty in a forked child, in which the threads that the runtime counts on are not."""
os.register_at_fork(after_in_child=lambda: _forked.append(True))
