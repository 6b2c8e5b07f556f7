"""The ``ck_tile`` source: a kernel as CK tile's own templates make it, compiled where CK and ``hipcc`` are given.

The C++ is in ``ck_tile_csrc``: one file an operation, one for the C interface. What a configuration decides is the
header of ``ck_tile_header.py``, force-included before it. Evidence: header and C++ are compiled and run against small
stand-ins for CK and HIP in the tests; no real CK, no AMD GPU has seen them (docs/dispatcher.md, "not verified").
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from mxgemm.dispatcher.arch import bare_arch, fp8_is_ocp
from mxgemm.dispatcher.ck_tile_header import SOURCES, ck_tile_refusals, header
from mxgemm.dispatcher.config import KernelConfig, joined
from mxgemm.dispatcher.errors import ToolchainMissing
from mxgemm.errors import BuildError
from mxgemm.hip.build import FLAGS_FROM

INCLUDE_VARIABLE: Final = "MXGEMM_CK_INCLUDE"
HIPCC_VARIABLE: Final = "MXGEMM_HIPCC"
CSRC: Final = Path(__file__).parent / "ck_tile_csrc"
COMPILE_SECONDS: Final = 1800

# CK's tile engine compiles its kernels with these; without them registers spill, and the same source is slower.
_OPTIMISATION: Final = (
    *("-mllvm", "-amdgpu-early-inline-all=true"),
    *("-mllvm", "-amdgpu-function-calls=false"),
    *("-mllvm", "--lsr-drop-solution=1"),
    *("-mllvm", "-enable-post-misched=0"),
    "-fno-offload-uniform-block",
    "--offload-compress",
)
_COERCE: Final = ("-mllvm", "-amdgpu-coerce-illegal-types=1")  # clang 22 (ROCm 7.2) no longer knows it


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What compiles CK tile.

    Attributes:
        include: CK's include tree, the folder that holds ``ck_tile``.
        hipcc: the compiler.
    """

    include: Path
    hipcc: Path


def find_toolchain(include: Path | None = None, hipcc: Path | None = None) -> Toolchain:
    """Return the toolchain: as given, else from ``MXGEMM_CK_INCLUDE`` and ``MXGEMM_HIPCC``, else ROCm's ``hipcc``.

    Raises:
        ToolchainMissing: CK or the compiler is missing; the text says how to name it.
    """
    tree = include or (Path(os.environ[INCLUDE_VARIABLE]) if os.environ.get(INCLUDE_VARIABLE) else None)
    if tree is None or not (tree / "ck_tile").is_dir():
        raise ToolchainMissing(
            f"ck_tile: got {tree or 'no CK include tree'}, want the folder that holds ck_tile/ "
            f"(composablekernel/include of ROCm/rocm-libraries): pass ck_include= or set {INCLUDE_VARIABLE}"
        )
    named = os.environ.get(HIPCC_VARIABLE)
    compiler = str(hipcc or named or shutil.which("hipcc") or "/opt/rocm/bin/hipcc")
    found = shutil.which(compiler)
    if found is None:
        raise ToolchainMissing(f"ck_tile: got no {compiler}, want hipcc of ROCm: pass hipcc= or set {HIPCC_VARIABLE}")
    return Toolchain(tree, Path(found))


def source_file(config: KernelConfig) -> Path:
    """Return the operation's C++ source."""
    return CSRC / f"{SOURCES.get(config.operation, config.operation)}.cpp"


@cache
def accepts_coerce_flag(hipcc: Path) -> bool:
    """Return whether a compiler knows the flag that newer ones dropped; it is asked once."""
    probe = [str(hipcc), "-x", "hip", *_COERCE, "-c", "-", "-o", os.devnull]
    return _run(probe, 120, "int main() { return 0; }\n").returncode == 0


def flags(toolchain: Toolchain, gfx_arch: str) -> tuple[str, ...]:
    """Return the compiler's flags, apart from the files."""
    arch = bare_arch(gfx_arch)
    macros = ["-D__HIP_PLATFORM_AMD__", f'-DGFX_ARCH="{arch}"']
    if fp8_is_ocp(arch):
        macros += ["-DCK_USE_OCP_FP8", "-DCK_TILE_USE_OCP_FP8=1"]
    if arch == "gfx950":
        macros += ["-DCK_USE_NATIVE_MX_SUPPORT", "-DCK_GFX950_SUPPORT"]
    coerce = _COERCE if accepts_coerce_flag(toolchain.hipcc) else ()
    warnings = ("-Wno-undefined-func-template", "-Wno-float-equal")
    base = ("-x", "hip", "-shared", "-fPIC", "-O3", "-std=c++20", f"--offload-arch={arch}")
    return (*base, *coerce, *_OPTIMISATION, *macros, *warnings, f"-I{toolchain.include}", f"-I{CSRC}")


def ck_tile_key(config: KernelConfig, gfx_arch: str, toolchain: Toolchain) -> dict[str, Any]:
    """Return all that decides the library: sources, CK's headers, flags, compiler."""
    version = _run([str(toolchain.hipcc), "--version"], 60)
    return {
        "header": header(config),
        "sources": _digest_of([source_file(config), *(file for file in _files(CSRC) if file.suffix != ".cpp")]),
        "ck": _digest_of(_files(toolchain.include / "ck_tile")),
        "flags": [flag.replace(str(CSRC), "csrc") for flag in flags(toolchain, gfx_arch)],
        "compiler": version.stdout,
        "environment": {name: os.environ.get(name, "") for name in FLAGS_FROM},
    }


def build_ck_tile(config: KernelConfig, gfx_arch: str, folder: Path, toolchain: Toolchain) -> Path:
    """Compile a kernel's library into a folder and return its path.

    Raises:
        ValueError: CK has no such kernel; every reason is named.
        BuildError: the compiler failed; the text ends with what it said.
    """
    refusals = ck_tile_refusals(config)
    if refusals:
        raise ValueError(f"{config.name}: {joined(refusals)}")
    included = folder / "kernel.hpp"
    included.write_text(header(config), encoding="utf-8")
    library = folder / "kernel.so"
    files = ["-include", str(included), str(source_file(config)), "-o", str(library)]
    ran = _run([str(toolchain.hipcc), *flags(toolchain, gfx_arch), *files], COMPILE_SECONDS)
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip()
        raise BuildError(f"{config.name}: {toolchain.hipcc} ended with {ran.returncode}:\n{said}")
    return library


def _run(command: list[str], seconds: float, text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error


def _files(folder: Path) -> list[Path]:
    """Return every file below a folder, whatever its name ends in: an include may name any."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest_of(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        total.update(f"{file.name} {len(data)}\n".encode() + data)
    return total.hexdigest()
