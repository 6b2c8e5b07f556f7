"""Find a compiler for an architecture: whatever the machine has, tried in order, and proved on a one-line kernel.

For AMD GPUs: the command in ``MXGEMM_HIPCC`` (then nothing else); ROCm's ``amdclang++`` or ``hipcc``; ROCm's run-time
compiler hiprtc; a plain clang of version 20 or above with its lld, device only, for which no part of ROCm is needed.
For NVIDIA GPUs: NVRTC, then ``nvcc``. A proof is kept in the build cache, by the compiler's path, size and time; a
failure is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from mxgemm import build_cache
from mxgemm.errors import BuildError, Refusal
from mxgemm.hip import libraries, rtc

HIPCC_VARIABLE: Final = "MXGEMM_HIPCC"
_ENVIRONMENT: Final = (HIPCC_VARIABLE, "ROCM_PATH", "CUDA_HOME", "CUDA_PATH", "PATH")
_PLAIN_CLANGS: Final = range(30, 19, -1)
"""gfx950 came with LLVM 20."""

_AMD_FLAGS: Final = (
    *("--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc", "-O3", "-std=c++20"),
    "-fuse-cuid=none",  # else a symbol is named after the temporary folder, and no two builds are the same
)
PRELOAD: Final = ("-mllvm", "-amdgpu-kernarg-preload-count=16")
"""Arguments come in registers, as far as those go (LLVM, AMDGPUUsage, "Preloaded Kernel Arguments"): a kernel does not
begin with a miss of the scalar cache. Firmware that cannot do it enters at code that loads them."""
_FEATURES: Final = {"sm_90": "sm_90a"}
"""Targets with what no later architecture has; every GPU of the architecture has it."""
_NVCC_FLAGS: Final = ("-x", "cu", "-cubin", "-O3", "-std=c++20")

_PROBE: Final = """#if defined(__CUDACC__)
extern "C" __global__ void probe(int* p) { *p = 1; }
#else
extern "C" __attribute__((global)) void probe(int* p) { *p = 1; }
#endif
"""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that is known to work for its architecture.

    Attributes:
        arch: "gfx950", "sm_90", ...
        path: the command, or the run-time compiler's library.
        version: as it says itself.
        flags: of every compilation.
        rtc: the run-time compiler, None for a command.
    """

    arch: str
    path: str
    version: str
    flags: tuple[str, ...]
    rtc: rtc.Rtc | None = None

    def __str__(self) -> str:
        return f"{self.path} ({self.version})"

    def compile(self, name: str, texts: Mapping[str, str], defines: Mapping[str, int | str]) -> bytes:
        """Compile the text called ``name``; the other ones are what it includes.

        Raises:
            BuildError: with the compiler's output.
        """
        options = [*self.flags, *(f"-D{key}={value}" for key, value in sorted(defines.items()))]
        if self.rtc is None:
            return _run(self.path, options, name, texts)
        headers = {header: text for header, text in texts.items() if header != name}
        try:
            return self.rtc.compile(texts[name], name, headers, options)
        except rtc.RtcError as error:
            raise BuildError(f"{self.path} cannot compile {name} for {self.arch}:\n{error}") from error


def find(arch: str) -> Compiler | Refusal:
    """Return a compiler for ``arch``, or say what was looked for; cached while the environment stays the same."""
    return _find(arch, tuple(os.environ.get(name) for name in _ENVIRONMENT))


@cache
def _find(arch: str, environment: tuple[str | None, ...]) -> Compiler | Refusal:
    del environment  # read again below; it is an argument so that a changed one is not answered from the cache
    if not arch.startswith(("gfx", "sm_")):
        return Refusal("arch", arch, "a GPU", "machine", f"no kernel is built for {arch}: it is no GPU")
    missed = []
    for candidate in _amd_candidates(arch) if arch.startswith("gfx") else _nvidia_candidates(arch):
        if isinstance(candidate, str):
            missed.append(candidate)
            continue
        for compiler in (_preloading(candidate), candidate) if arch == "gfx950" else (candidate,):
            try:
                return _proved(compiler)
            except BuildError as error:
                reason = " ".join(str(error).split())[:600]
        missed.append(reason)
    words = f"no compiler for {arch} found ({'; '.join(missed)})"
    return Refusal("compiler", "missing", f"one for {arch}", "installation", words)


def _preloading(compiler: Compiler) -> Compiler:
    """Return the compiler with the option of LLVM's that not every release need have."""
    return replace(compiler, flags=(*compiler.flags, *PRELOAD))


def _amd_candidates(arch: str) -> Iterator[Compiler | str]:
    flags = ("-x", "hip", f"--offload-arch={arch}", *_AMD_FLAGS)
    named = os.environ.get(HIPCC_VARIABLE)
    if named:
        path = shutil.which(named)
        yield _command(arch, path, flags) if path else f"{HIPCC_VARIABLE} is {named}, which cannot be run"
        return
    folder = libraries.rocm_folder() / "bin"
    installed = [shutil.which(tool, path=str(folder)) or shutil.which(tool) for tool in ("amdclang++", "hipcc")]
    yield from (_command(arch, path, flags) for path in installed if path)
    if not any(installed):
        yield f"amdclang++ and hipcc are neither in {folder} nor on PATH"
    yield _run_time(rtc.HIPRTC, arch, (f"--offload-arch={arch}", "-O3", "-std=c++20"))
    plain = [path for version in _PLAIN_CLANGS if (path := shutil.which(f"clang-{version}"))]
    yield from (_command(arch, path, flags) for path in plain)
    if not plain:
        yield "no clang-20 or above on PATH (Debian and Ubuntu: apt install clang-22 lld-22)"


def _nvidia_candidates(arch: str) -> Iterator[Compiler | str]:
    target = f"-arch={_FEATURES.get(arch, arch)}"
    yield _run_time(rtc.NVRTC, arch, (target, "-std=c++20"))  # in this process, and it needs no host compiler
    folder = libraries.cuda_folder() / "bin"
    path = shutil.which("nvcc") or shutil.which("nvcc", path=str(folder))
    yield _command(arch, path, (*_NVCC_FLAGS, target)) if path else f"nvcc is neither on PATH nor in {folder}"


def _run_time(api: rtc.Api, arch: str, flags: tuple[str, ...]) -> Compiler | str:
    found = rtc.find(api)
    if isinstance(found, str):
        return f"{api.library} cannot be used: {found}"
    # The file that links lead to is named by its whole release (libhiprtc.so.7.0.70002); the library tells but "7.0".
    path = os.path.realpath(found.path) if os.path.exists(found.path) else found.path
    return Compiler(arch, path, f"{api.prefix} {found.version}", flags, found)


def _command(arch: str, path: str, flags: tuple[str, ...]) -> Compiler | str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} --version failed: {error}"
    lines = [line.strip() for line in done.stdout.splitlines() if "ersion" in line or "release" in line]
    return Compiler(arch, path, ", ".join(lines) or "of unknown version", flags)


def _proved(compiler: Compiler) -> Compiler:
    """Return the compiler if it compiles and links one kernel for its architecture."""
    file = Path(compiler.path)
    stat = file.stat() if file.exists() else None  # a library may be named without its folder
    parts = {
        "proof": _PROBE,
        "compiler": (compiler.path, compiler.version, compiler.flags),
        "file": (stat.st_size, stat.st_mtime_ns) if stat else None,
    }

    def compile_probe() -> bytes:
        return compiler.compile("probe.hip", {"probe.hip": _PROBE}, {})

    build_cache.cached_bytes(parts, "probe", compile_probe, f"a first kernel with {compiler.path}")
    return compiler


def _run(path: str, options: list[str], name: str, texts: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mxgemm-") as folder:
        for file, text in texts.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        out = Path(folder) / "out"
        command = [path, *options, name, "-o", str(out)]
        try:
            done = subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        except OSError as error:
            raise BuildError(f"{path} cannot be run: {error}") from error
        if done.returncode or not out.is_file():
            raise BuildError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout.strip()}")
        return out.read_bytes()
