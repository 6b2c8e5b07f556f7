"""Which source files decide what a module does: itself, and whatever of this package its imports reach.

Imports are read from the text, inside functions too, as ``hip/build.py`` reads a kernel's includes: a list kept by hand
would miss the next one. A package's ``__init__`` counts where something is imported from it, not where it only stands
on the way to a module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent
PACKAGE: Final = ROOT.name


def sources_of(modules: Iterable[str], root: Path = ROOT) -> dict[str, bytes]:
    """Return the sources of modules and of what they import of this package, however deep.

    Args:
        modules: dotted names, "mxgemm.device".
        root: the package's folder.

    Returns:
        contents by path below ``root``, in the order of the paths.

    Raises:
        ValueError: there is no such module.
    """
    found: dict[str, bytes] = {}
    wanted = list(modules)
    while wanted:
        module = wanted.pop()
        path = _path(module, root)
        if path is None:
            raise ValueError(f"module: got {module!r}, want one of {PACKAGE} in {root}")
        name = path.relative_to(root).as_posix()
        if name in found:
            continue
        found[name] = path.read_bytes()
        for base, imported in _imports(found[name], module, path.name == "__init__.py"):
            inner = f"{base}.{imported}"
            wanted.append(inner if imported and _path(inner, root) else base)
    return dict(sorted(found.items()))


def _path(module: str, root: Path) -> Path | None:
    place = root.joinpath(*module.split(".")[1:])
    candidates = (place.with_suffix(".py"), place / "__init__.py") if place != root else (root / "__init__.py",)
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imports(source: bytes, module: str, is_package: bool) -> tuple[tuple[str, str], ...]:
    """Return (module, name imported from it or "") of every import of this package in a text."""
    return tuple(_found(ast.parse(source), module, is_package))


def _found(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            if base.partition(".")[0] == PACKAGE:
                yield from ((base, alias.name) for alias in node.names)
