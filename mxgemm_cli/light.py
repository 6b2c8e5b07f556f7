"""The few files of mxgemm that need nothing but Python, without the ``mxgemm`` package, which imports torch."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def load(path: str) -> ModuleType:
    """Return the module of a file of mxgemm's, ``path`` being relative to the package."""
    name = f"{__name__}:{path}"
    if name not in sys.modules:
        package = find_spec("mxgemm")  # found, and not imported
        if package is None or package.origin is None:
            raise ImportError("mxgemm is not installed beside mxgemm_cli")
        spec = spec_from_file_location(name, Path(package.origin).parent / path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: not a file of mxgemm's")
        module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]
