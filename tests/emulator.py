"""What the tests of gfx950 machine code share: compilers that may be missing, and the emulator behind a fixture."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from evidence.hip_compile import DEVICE_ONLY, INSTALL, missing


def require_objdump() -> None:
    """Skip where no disassembler is: the emulator reads LLVM's text."""
    names = [os.environ.get("GFX950EMU_OBJDUMP", ""), *(f"llvm-objdump-{v}" for v in (22, 21, 20)), "llvm-objdump"]
    if not any(name and shutil.which(name) for name in names):
        pytest.skip(f"llvm-objdump is not installed; {INSTALL}")


def require_hip_compiler() -> None:
    """Skip where the library's HIP kernels cannot be compiled."""
    reason = missing()
    if reason:
        pytest.skip(reason)


@functools.cache
def compile_hip(source: Path, *flags: str) -> bytes:
    """Compile a .hip file for gfx950 and return the code object."""
    require_objdump()
    for tool in ("clang-22", "ld.lld-22"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed; {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "code.hsaco"
        subprocess.run(["clang-22", *DEVICE_ONLY, *flags, str(source), "-o", str(out)], check=True)
        return out.read_bytes()
