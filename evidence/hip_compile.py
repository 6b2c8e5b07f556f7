"""Compile a HIP kernel of this package for gfx950 with a plain clang, warnings being errors: code object, or assembly.

What a user's machine builds goes through ``mxgemm/hip/build.py``; the assembly text, which ``evidence/isa.py`` reads,
the warnings are wanted here only.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evidence.tritons import ROOT
from mxgemm.hip.compilers import PRELOAD

COMPILER: Final = "clang-22"
LINKER: Final = "ld.lld-22"
INSTALL: Final = "on Debian and Ubuntu: apt install clang-22 lld-22 llvm-22"
KERNELS: Final = ROOT / "mxgemm" / "hip" / "kernels"
# fmt: off
DEVICE_ONLY: Final = (
    "-x", "hip", "--offload-arch=gfx950", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc",
    "-O3", "-Werror",
)
# fmt: on
FLAGS: Final = (*DEVICE_ONLY, *PRELOAD, "-std=c++20", "-Wall", "-Wextra")


def missing() -> str | None:
    """Say which tool is not installed, or return None."""
    absent = [tool for tool in (COMPILER, LINKER) if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not installed; {INSTALL}" if absent else None


def code_object(source: str, defines: Mapping[str, int | str]) -> bytes:
    """Compile and link a source of ``mxgemm/hip/kernels``."""
    return _compiled(source, tuple(sorted(defines.items())), ())


def assembly(source: str, defines: Mapping[str, int | str]) -> str:
    """Compile a source to assembly text."""
    return _compiled(source, tuple(sorted(defines.items())), ("-S",)).decode()


@functools.cache
def _compiled(source: str, defines: tuple[tuple[str, int | str], ...], more: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        macros = [f"-D{name}={value}" for name, value in defines]
        command = [COMPILER, *FLAGS, *more, *macros, str(KERNELS / source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        return out.read_bytes()
