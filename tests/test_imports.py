"""Dependencies point one way: the imports of every module against the one table of docs/design.md."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAVES = (
    *("_version", "shared_library", "build_cache", "fields", "import_closure", "workspace", "device", "files"),
    *("notices", "ambient", "memory", "allocation", "arguments", "c_compiler", "capture", "errors"),
)
"""Each may import those behind it."""


def modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules("mxgemm") | modules("mxgemm_cli") | modules("gfx950emu")


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "mxgemm" and len(parts) > 1 else parts[0]


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports anywhere in it, but for the types of a circle."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in MODULES:
                    yield whole
                elif node.module in MODULES:
                    yield str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            if isinstance(name, ast.Constant) and name.value in MODULES:
                yield str(name.value)


def written() -> dict[str, set[str]]:
    """The table of docs/design.md: room -> rooms that it may import."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.split("| room | what it is | imports |")[1].split("\n\n")[0]
    allowed: dict[str, set[str]] = {}
    for line in table.splitlines()[2:]:
        rooms, _, named = (cell.strip() for cell in line.strip("|").split(" | "))
        may = set(re.findall(r"`(\w+)`", named)) | (set(LEAVES) if "leaves" in named else set())
        if named.strip(" |") == "everything above":
            may = {*allowed, *LEAVES}
        for name in re.findall(r"`(\w+)/?`", rooms):
            allowed[name] = may | {name}
    return allowed


def test_imports_are_those_of_the_table() -> None:
    allowed = written() | {leaf: set(LEAVES[i:]) for i, leaf in enumerate(LEAVES)}
    wrong = []
    for module, path in MODULES.items():
        here = room(module)
        if here in ("mxgemm", "__main__"):  # what the package offers
            continue
        assert here in allowed, f"{here}: no such room in docs/design.md"
        wrong += [
            f"{module} imports {other}" for other in imports(path) if room(other) not in (*allowed[here], "mxgemm")
        ]
    assert not wrong, "\n".join(wrong)


def test_rooms_form_no_circle() -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        below[room(module)] |= {room(other) for other in imports(path)} - {room(module), "mxgemm"}

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        for other in below[name]:
            visit(other, (*way, name))

    for name in list(below):
        if name != "mxgemm":
            visit(name, ())


def test_modules_of_a_room_form_no_circle() -> None:
    below = {module: set(imports(path)) - {module} for module, path in MODULES.items() if module.startswith("mxgemm.")}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for other in below.get(name, ()):
                visit(other, (*way, name))
            done.add(name)

    for name in below:
        visit(name, ())


FOR_A_PROCESS = ("conftest.py", "vllm_worker.py")  # pytest's own, and what runs in a process of its own
CODE = ("mxgemm", "mxgemm_cli", "gfx950emu", "evidence", "bench")


def environment_changes(tree: ast.Module) -> list[int]:
    """Lines that change ``os.environ`` whenever the file is imported, which a script does for its own process only."""
    inside = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        or (isinstance(block, ast.If) and "__name__" in ast.unparse(block.test))
        for node in ast.walk(block)
    }
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            changes = name.startswith("os.environ.") and not name.endswith((".get", ".items", ".copy"))
        else:
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
            changes = any(ast.unparse(target).startswith("os.environ[") for target in targets)
        if changes and id(node) not in inside:
            lines.append(getattr(node, "lineno", 0))
    return sorted(lines)


def test_importing_leaves_the_environment_alone() -> None:
    """Where one file of a process chose Triton's interpreter at import, every GPU test of the process lost its GPU."""
    assert environment_changes(ast.parse("import os\nos.environ.setdefault('A', '1')\nos.environ['B'] = '1'")) == [2, 3]
    paths = [
        *(path for folder in CODE for path in (ROOT / folder).rglob("*.py")),
        *(path for path in (ROOT / "tests").rglob("*.py") if path.name not in FOR_A_PROCESS),
    ]  # fmt: skip
    found = {
        path.relative_to(ROOT).as_posix(): environment_changes(ast.parse(path.read_text("utf-8"))) for path in paths
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
