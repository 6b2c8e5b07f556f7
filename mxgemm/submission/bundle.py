"""Make one file of a module and of everything that it imports from this package.

Modules are laid one after another, dependencies first, each under a heading with its own description. Their imports of
each other go (names are the same everywhere), their other imports move to the top, and every other line, comments
included, stays as it is. Names at the top of modules must differ, which is checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGE: Final = "mxgemm"
ROOT: Final = Path(__file__).resolve().parent.parent

_FOR_OUR_TOOLS = re.compile(r"  # (fmt: skip|type: ignore\[[\w, -]+\]|noqa: \w+)(?=$|  #)")
"""Comments that speak to this repository's formatter and type checker."""


@dataclass
class Bundle:
    """Modules in order, and what they import from elsewhere."""

    sections: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    named: dict[str, set[str]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Imports, then the modules."""
        named = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.named.items())]
        return "\n".join([*sorted(self.imports), *named, "", "", "\n\n\n".join(self.sections)]) + "\n"


def bundle(module: str, replacements: Mapping[str, str] | None = None) -> str:
    """Return the text of a module with everything that it imports from this package laid before it.

    Args:
        module: its dotted name.
        replacements: module name -> the text to use in place of its source.

    Raises:
        ValueError: an import that cannot be inlined, or a name that two modules define.
    """
    made = Bundle()
    _add(module, dict(replacements or {}), made, set())
    return made.text


def _add(module: str, replacements: Mapping[str, str], made: Bundle, seen: set[str]) -> None:
    if module in seen:
        return
    seen.add(module)
    source = replacements.get(module) or _path(module).read_text(encoding="utf-8")
    tree = ast.parse(source)
    drop: set[int] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            drop.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            inlined = _inlined(module, node)
            if inlined:
                _add(inlined, replacements, made, seen)
            elif isinstance(node, ast.Import):
                made.imports.add(ast.unparse(node))
            elif node.module != "__future__":
                names = made.named.setdefault(node.module or "", set())
                names.update(ast.unparse(alias) for alias in node.names)
    _check_nested_imports(module, tree)
    for name in _top_level_names(tree):
        owner = made.owners.setdefault(name, module)
        if owner != module:
            raise ValueError(f"{name}: defined by {owner} and by {module}, want different names")
    description = ast.get_docstring(tree)
    if description:
        first = tree.body[0]
        drop.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = [line for number, line in enumerate(source.splitlines(), 1) if number not in drop]
    body = "\n".join(_FOR_OUR_TOOLS.sub("", line) for line in lines).strip("\n")
    made.sections.append(f"{_heading(module, description)}\n\n{body}")


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")


def _inlined(module: str, node: ast.Import | ast.ImportFrom) -> str | None:
    """Return the module of this package that a statement imports names from, or None for another package's."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    relative = isinstance(node, ast.ImportFrom) and node.level
    if not relative and all(name.partition(".")[0] != PACKAGE for name in names):
        return None
    if relative or isinstance(node, ast.Import) or any(alias.asname for alias in node.names):
        raise ValueError(f"{module}: got {ast.unparse(node)!r}, want 'from {PACKAGE}.module import name'")
    return names[0]


def _check_nested_imports(module: str, tree: ast.Module) -> None:
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in top and _inlined(module, node):
            raise ValueError(f"{module}: line {node.lineno} imports {PACKAGE} inside a function; cannot be inlined")


def _top_level_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def _heading(module: str, description: str | None) -> str:
    rule = "# " + "-" * 118
    lines = [f"# {line}".rstrip() for line in (description or "").splitlines()]
    return "\n".join([rule, f"# {module}", "#", *lines, rule])
