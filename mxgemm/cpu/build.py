"""Build the C kernels for this CPU at first use, by the compiler that is there, and keep them in the build cache.

The key has the sources, the flags (which say what the CPU has) and the compiler. A library is checked against the
oracle once, when it is built; one that fails is not kept, and the next compiler or variant is tried.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Final

from mxgemm import build_cache, c_compiler, shared_library
from mxgemm.cpu import abi, check, team, variants
from mxgemm.cpu.variants import Variant
from mxgemm.device import cpu_features
from mxgemm.errors import BuildError, Refusal
from mxgemm.mx import oracle

COMPILER_VARIABLE: Final = c_compiler.VARIABLE
KERNELS: Final = Path(__file__).parent / "kernels"
SOURCE: Final = "gemm.c"
LIBRARY: Final = "kernel.so"
FLAGS: Final = (
    *("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread"),
    "-ffp-contract=off",  # sums are rounded where the source rounds them, with whatever compiler
    *("-fno-math-errno", "-fno-trapping-math"),  # else GCC makes no vectors of a comparison
)


@cache
def library() -> ctypes.CDLL | Refusal:
    """Return the library of the best variant, built if it is not in the cache, or say what is missing."""
    found = variants.usable(variants.named())
    if isinstance(found, Refusal):
        return found
    failed = []
    for variant in found:
        try:
            return load(variant)
        except (BuildError, OSError) as error:
            said = " ".join(str(error).split())
            failed.append(said if len(said) <= 900 else f"{said[:300]} ... {said[-600:]}")  # what is wrong comes last
    words = f"no C compiler builds the CPU's kernels ({'; '.join(failed)})"
    return Refusal("compiler", "missing", "a C compiler, cc, gcc or clang", "installation", words)


def load(variant: Variant, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Build a variant, or find it built, and load it.

    Args:
        variant: of a kind of CPU that this one is.
        flags: further ones for the compiler.

    Raises:
        BuildError: no compiler makes a library of it that computes what it should.
        OSError: the library cannot be kept or loaded.
    """
    path = build(variant, flags)
    opened = shared_library.load(path)
    abi.declare(opened)
    opened.mx_use_team(team.starter())
    return opened


def build(variant: Variant, flags: tuple[str, ...] = ()) -> Path:
    """Return the file of a variant's library, built if it is not in the cache; as :func:`load`."""
    missed = []
    # An older compiler may know the variant, but not all that this CPU has besides.
    options = dict.fromkeys((variant.flags_for(cpu_features()), variant.flags))
    for command in c_compiler.commands():
        if isinstance(command, str):
            missed.append(command)
            continue
        for known in options:
            try:
                return _built_by(command, variant, (*known, *flags))
            except BuildError as error:
                missed.append(str(error))
    raise BuildError(f"{variant.name}: {'; '.join(missed)}")


def _built_by(command: list[str], variant: Variant, flags: tuple[str, ...]) -> Path:
    options = [*FLAGS, *flags]
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(KERNELS.iterdir())}
    parts = {
        "kind": "cpu",
        "texts": texts,
        "options": options,
        "compiler": c_compiler.identity(command),
        "check": Path(check.__file__).read_text(encoding="utf-8"),
    }

    def make(folder: Path) -> None:
        whole = [*command, *options, str(KERNELS / SOURCE), "-o", str(folder / LIBRARY)]
        c_compiler.run(whole, folder)
        _prove(folder / LIBRARY)

    return build_cache.cached(parts, LIBRARY, make, f"the CPU's kernels for {variant.name} with {command[0]}")


def _prove(path: Path) -> None:
    files = [str(path), str(oracle.__file__)]
    if sys.executable:
        c_compiler.run([sys.executable, check.__file__, *files], path.parent)
    else:
        reason = check.check(*map(Path, files))
        if reason:
            raise BuildError(f"{path}: {reason}")
