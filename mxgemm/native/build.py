"""Build the extension module of ``source/`` for this Python, at first use, and keep it in the build cache."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final

from mxgemm import build_cache, c_compiler, shared_library
from mxgemm.errors import BuildError

SOURCE: Final = Path(__file__).parent / "source"
NAME: Final = "mxgemm_steady"
FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared")


def built() -> ModuleType:
    """Return the module, built unless it is in the cache.

    Raises:
        BuildError: this Python cannot have it, or no compiler makes it.
        OSError: it cannot be kept or loaded.
        ImportError: Python does not take it.
    """
    headers = Path(sysconfig.get_paths()["include"])
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("it is for CPython with a global lock alone")
    if os.name != "posix" or not (headers / "Python.h").is_file():
        raise BuildError(f"{headers} has no Python.h")
    missed = []
    for command in c_compiler.commands():
        if isinstance(command, str):
            missed.append(command)
            continue
        try:
            return _opened(_built_by(command, headers))
        except BuildError as error:
            missed.append(str(error))
    raise BuildError("; ".join(missed))


def _built_by(command: list[str], headers: Path) -> Path:
    parts = {
        "kind": "native",
        "texts": {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCE.iterdir())},
        "options": FLAGS,
        "compiler": c_compiler.identity(command),
        "python": (sys.version, str(headers)),
    }

    def make(folder: Path) -> None:
        options = [*FLAGS, f"-I{headers}", str(SOURCE / "steady.c")]
        c_compiler.run([*command, *options, "-o", str(folder / f"{NAME}.so")], folder)

    return build_cache.cached(parts, f"{NAME}.so", make, f"the steady call in C with {command[0]}")


def _opened(path: Path) -> ModuleType:
    shared_library.load(path)  # whole, and what was built
    loader = ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
