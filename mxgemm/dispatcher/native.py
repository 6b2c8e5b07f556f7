"""The ``native`` source: our Triton kernels compiled ahead of time, in a C library that needs no HIP toolchain.

A build has three steps: a process that cross-compiles the variants of the kernel, a header with their code objects and
argument tables, and the host's C compiler, which makes one shared library of that header and the shim.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from mxgemm.device import KNOWN_MACHINES
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.c_interface import NO_EXTENTS, interface, scale_macros
from mxgemm.dispatcher.codecs import BITS
from mxgemm.dispatcher.config import KernelConfig, joined
from mxgemm.dispatcher.errors import ToolchainMissing
from mxgemm.dispatcher.kernel_arguments import Argument, ArgumentTable
from mxgemm.dispatcher.native_kernel import (
    BLOCK,
    arguments,
    blocks,
    native_refusals,
    persistent_programs,
    wanted_instruction,
)
from mxgemm.dispatcher.operations import operation_of
from mxgemm.errors import BuildError
from mxgemm.import_closure import sources_of

PACKAGE: Final = Path(__file__).resolve().parent.parent
SHIM: Final = Path(__file__).resolve().parent / "shim"
COMPILER_VARIABLE: Final = "CC"
FLAGS: Final = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
LIBRARIES: Final = ("-ldl",)
DESCRIPTION: Final = "native.json"
"""What was compiled, beside the library: variants, instructions, registers, argument tables."""
WORKER: Final = "mxgemm.dispatcher.native_worker"
_TRITONS: Final = ("TRITON_", "AMDGCN_", "LLVM_", "MLIR_", "DISABLE_LLVM_")
_PLACES: Final = ("TRITON_CACHE_", "TRITON_HOME", "TRITON_DUMP_", "TRITON_INTERPRET")
_COMPILERS: Final = (
    "CPATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "CCC_OVERRIDE_OPTIONS",
)
"""Variables by which gcc and clang take further folders and flags."""


def library_name(config: KernelConfig, gfx_arch: str) -> str:
    """Return the file name of a configuration's library."""
    return f"lib_{config.name}_{bare_arch(gfx_arch)}.so"


def native_key(config: KernelConfig, gfx_arch: str) -> dict[str, Any]:
    """Return everything that decides the file that :func:`build_native` makes, as JSON values.

    Raises:
        ToolchainMissing: no C compiler or no triton.
    """
    sources = sources_of([__name__, WORKER])
    sources |= {f"shim/{file.name}": file.read_bytes() for file in sorted(SHIM.iterdir()) if file.is_file()}
    compiler = c_compiler()
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", check=False).stdout
    return {
        "name": config.name,
        "operation": config.operation,
        "config": dataclasses.asdict(config.pinned(gfx_arch)),
        "arch": bare_arch(gfx_arch),
        "files": {name: hashlib.sha256(text).hexdigest() for name, text in sources.items()},
        "triton": _triton_version(),
        "compiler": [compiler, said.splitlines()[0] if said else ""],
        "flags": [*FLAGS, *LIBRARIES],
        "environment": _environment() | {name: os.environ[name] for name in _COMPILERS if name in os.environ},
    }


def build_native(config: KernelConfig, gfx_arch: str, folder: Path) -> Path:
    """Build the library of a configuration for an architecture; no GPU is needed.

    Args:
        config: the kernel.
        gfx_arch: "gfx950" or "gfx942".
        folder: where the library, its code objects and ``native.json`` go.

    Raises:
        ValueError: there is no native kernel of this configuration; every reason is named.
        BuildError: a compiler is missing or failed, or the kernel came out wrong (another matrix instruction than
            the configuration's, more LDS than the architecture has).
    """
    arch = bare_arch(gfx_arch)
    refusals = native_refusals(config, arch)
    if refusals:
        raise ValueError(f"{config.name}: {joined(refusals)}")
    compiler = c_compiler()
    folder = Path(folder)
    described = _cross_compile(config.pinned(arch), arch, folder)
    for variant in described["variants"]:
        _check_variant(config, arch, variant)
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    (folder / "kernel.h").write_text(_header(config, arch, described, folder), encoding="utf-8")
    library = folder / library_name(config, arch)
    command = [compiler, *FLAGS, f"-I{folder}", str(SHIM / "shim.c"), "-o", str(library), *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        # The first errors of C are the cause; of a Python worker, below, the last lines are.
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")
    return library


def argument_table(variant: dict[str, Any]) -> ArgumentTable:
    """Return the argument table of a variant as ``native.json`` describes it."""
    return ArgumentTable(tuple(Argument(**row) for row in variant["arguments"]), variant["kernarg_size"])


def c_compiler() -> str:
    """Return the host's C compiler: the one that ``CC`` names, else cc, gcc or clang.

    Raises:
        ToolchainMissing: there is none.
    """
    named = os.environ.get(COMPILER_VARIABLE)
    for name in (named,) if named else ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return path
    raise ToolchainMissing(
        f"no C compiler: {COMPILER_VARIABLE} is {named!r}, and it is not on PATH"
        if named
        else f"no C compiler: none of cc, gcc, clang is on PATH; install one or name it in {COMPILER_VARIABLE}"
    )


def _triton_version() -> str:
    for distribution in ("triton", "pytorch-triton-rocm", "pytorch-triton"):
        try:
            return f"{distribution} {importlib.metadata.version(distribution)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ToolchainMissing("triton: not installed, want triton >= 3.6 (pip install 'mxgemm[triton]')")


def _environment() -> dict[str, str]:
    """Return the variables by which triton and LLVM may make another kernel of the same source.

    They are told by how they start, so that one of a later triton counts too; those that only say where triton keeps
    and dumps what it makes do not.
    """
    given = {
        name: value for name, value in os.environ.items() if name.startswith(_TRITONS) and not name.startswith(_PLACES)
    }
    return {"TRITON_DEFAULT_FP_FUSION": "1"} | given


def worker_job(config: KernelConfig, arch: str, folder: Path) -> str:
    """Return the line that ``native_worker`` takes for a configuration."""
    fields = dataclasses.asdict(config)
    return json.dumps({"operation": config.operation, "config": fields, "arch": arch, "folder": str(folder)}) + "\n"


def worker_environment() -> dict[str, str]:
    """Return the environment of ``native_worker``: compiling, not interpreting, and with this mxgemm."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | _environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment


def _cross_compile(config: KernelConfig, arch: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", WORKER, str(os.getpid())]
    job = worker_job(config, arch, folder)
    done = subprocess.run(command, input=job, capture_output=True, text=True, env=worker_environment(), check=False)
    if done.returncode:
        raise BuildError(f"{config.name}: the kernel did not compile for {arch}:\n{done.stderr[-4000:]}")
    described: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return described


def _check_variant(config: KernelConfig, arch: str, variant: dict[str, Any]) -> None:
    wanted, found = wanted_instruction(config, arch), variant["matrix_instructions"]
    if not found or any(not name.startswith(wanted) for name in found):
        raise BuildError(
            f"{config.name}, variant {variant['name']}: matrix instructions: got {found or 'none'}, want only {wanted}*"
        )
    most = KNOWN_MACHINES[arch].lds_bytes
    if variant["lds"] > most:
        raise BuildError(
            f"{config.name}, variant {variant['name']}: LDS: got {variant['lds']} bytes, want at most {most}"
        )


def _header(config: KernelConfig, arch: str, described: dict[str, Any], folder: Path) -> str:
    scheme, block = config.scheme, blocks(config, arch)
    names = arguments(config)
    lines = [
        "#include <stdint.h>",
        f'#define KERNEL_NAME "{config.name}"',
        f'#define KERNEL_ARCH "{arch}"',
        *(["#define SEVERAL 1"] if config.several else []),
        f"#define TILE_M {block.m}",
        f"#define TILE_N {block.n}",
        f"#define TILE_K {block.k}",
        f"#define A_BITS {BITS[scheme.a]}",
        f"#define B_BITS {BITS[scheme.b]}",
        f"#define A_COLUMN {int(config.a_is_column_major)}",
        *scale_macros(config),
        f"#define K_BLOCKS_SHARE_SCALES {int(operation_of(config).least_k == BLOCK)}",
        f"#define PROGRAMS {persistent_programs(config, arch)}",
        *(["enum { EXTENTS = 0 };", NO_EXTENTS] if config.several else interface(config, operation_of(config))),
        "enum value { " + ", ".join(f"VALUE_{name.upper()}" for name in names) + ", VALUES };",
        "struct argument { unsigned offset, size; enum value value; };",
        "struct variant { const char *name, *kernel; const unsigned char *code; int even, wide; unsigned threads, lds;",
        "                 unsigned kernarg_size, arguments; const struct argument *table; };",
    ]
    rows = []
    for variant in described["variants"]:
        name, table = variant["name"], argument_table(variant)
        code = (folder / f"{name}.hsaco").read_bytes()
        lines.append(f"static const struct argument arguments_{name}[] = {{ {table.c_rows()} }};")
        lines.append(f"static const _Alignas(4096) unsigned char code_{name}[] = {{")
        lines += [",".join(map(str, code[at : at + 32])) + "," for at in range(0, len(code), 32)]
        lines.append("};")
        rows.append(
            f'  {{ "{name}", "{variant["kernel"]}", code_{name}, {int(variant["even"])}, {int(variant["wide"])}, '
            f"{variant['threads']}, {variant['lds']}, {table.size}, "
            f"sizeof arguments_{name} / sizeof *arguments_{name}, arguments_{name} }},"
        )
    lines += ["static const struct variant variants[] = {", *rows, "};"]
    lines.append("enum { VARIANTS = sizeof variants / sizeof *variants };")
    lines.append(f"enum {{ KERNARG_BYTES = {max(v['kernarg_size'] for v in described['variants'])} }};")
    return "\n".join(lines) + "\n"
