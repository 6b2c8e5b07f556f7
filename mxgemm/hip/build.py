"""Build kernel sources on demand: one text, whatever compiler there is, each result kept by everything that decided it.

    image = build("shuffle_scales.hip", arch="gfx950")

Results lie in the build cache (``mxgemm/build_cache.py``), which notices a damaged file and has it built again; where
that cache cannot be used, the build is done all the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mxgemm import build_cache
from mxgemm.errors import BuildError, Refusal
from mxgemm.hip import code_object, compilers
from mxgemm.hip.code_object import CodeObjectError
from mxgemm.hip.compilers import Compiler

KERNELS: Final = Path(__file__).parent / "kernels"
_SOURCES: Final = (".hip", ".cu")
_INCLUDE: Final = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FLAGS_FROM: Final = ("HIPCC_COMPILE_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables by which hipcc, clang and nvcc take further flags."""
_NO_DEFINES: Final[Mapping[str, int | str]] = {}


def compiler_refusal(arch: str) -> Refusal | None:
    """Say why nothing here can build kernels for ``arch``, or return None; the search is made once."""
    found = compilers.find(arch)
    return found if isinstance(found, Refusal) else None


def compiler_missing(arch: str) -> Refusal | None:
    """Say of a route whose kernels are built for an architecture that there is no compiler for it, or None."""
    lacking = compiler_refusal(arch)
    return Refusal("compiler", "missing", str(lacking), "installation") if lacking else None


def build(
    source: str, *, arch: str, defines: Mapping[str, int | str] = _NO_DEFINES, folder: Path | None = None
) -> bytes:
    """Return the code object (``gfx*``) or cubin (``sm_*``) of a source, from the cache or built now.

    Args:
        source: name of a file in ``folder``.
        arch: "gfx950", "sm_90", ...
        defines: macros, ``-DNAME=value``.
        folder: of the source and the headers that it includes, by default ``mxgemm/hip/kernels``.

    Raises:
        BuildError: no compiler, or it refuses; the message has its output.
        ValueError: there is no such source.
    """
    compiler = compilers.find(arch)
    if isinstance(compiler, Refusal):
        raise BuildError(str(compiler))
    texts = texts_of(source, folder)
    parts = {
        "texts": texts,
        "defines": {name: str(value) for name, value in defines.items()},
        "arch": arch,
        "compiler": (compiler.path, compiler.version, compiler.flags),
        "environment": {name: os.environ.get(name, "") for name in FLAGS_FROM},
    }
    name = f"{Path(source).stem}.{'hsaco' if arch.startswith('gfx') else 'cubin'}"

    return build_cache.cached_bytes(
        parts, name, lambda: _compiled(compiler, source, texts, defines), f"{source} for {arch}"
    )


def texts_of(source: str, folder: Path | None = None) -> dict[str, str]:
    """Return the texts of a source and of the headers that it includes, however deep, by file name.

    Args:
        source: the file's name.
        folder: where it and its headers lie, by default ``mxgemm/hip/kernels``.

    Raises:
        ValueError: there is no such source.
    """
    found: dict[str, str] = {}
    wanted = [source]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        path = (folder or KERNELS) / name
        if not path.is_file():
            have = ", ".join(sorted(file.name for file in path.parent.iterdir() if file.suffix in _SOURCES))
            raise ValueError(f"source: got {name!r}, want one of {have} (or a header beside them)")
        found[name] = path.read_text(encoding="utf-8")
        wanted += _INCLUDE.findall(found[name])
    return found


def _compiled(compiler: Compiler, source: str, texts: Mapping[str, str], defines: Mapping[str, int | str]) -> bytes:
    image = compiler.compile(source, texts, defines)
    reason: Refusal | CodeObjectError | None
    try:
        reason = code_object.refusal(code_object.inspect(image), compiler.arch)
    except CodeObjectError as error:
        reason = error
    if reason:
        raise BuildError(f"{compiler} made of {source} something else than was asked for: {reason}")
    return image
