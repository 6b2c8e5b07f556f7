"""What the documents say: snippets run, names, paths, links, commands and variables exist, and none is forgotten.

A fence ``python`` is executed, those of a page one after the other in one namespace. A fence ``python no-run``, beside
which the page says what it would need, is compiled: its imports must work, its names must be bound.
"""

import ast
import builtins
import dataclasses
import functools
import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import mxgemm

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "gfx950emu/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
API, ENVIRONMENT, RELIABILITY = (ROOT / "docs" / f"{name}.md" for name in ("api", "environment", "reliability"))
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
VARIABLE = re.compile(r"\b(?:MXGEMM|GFX950EMU)_[A-Z0-9]+(?:_[A-Z0-9]+)*\b")


class Fence(NamedTuple):
    info: str
    text: str
    line: int


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fences(page: Path) -> list[Fence]:
    text = read(page)
    return [
        Fence(found[1].strip(), found[2], text.count("\n", 0, found.start()) + 1)
        for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    ]


def prose(page: Path) -> str:
    """A page without its fences."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)


def test_fences_are_of_a_known_kind() -> None:
    known = {"python", "python no-run", "sh", "c", "text"}
    wrong = [
        f"{page}:{fence.line}: {fence.info!r}" for page in PAGES for fence in fences(page) if fence.info not in known
    ]
    assert not wrong, wrong


# ---- Python


RUNS = [page for page in PAGES if any(fence.info.startswith("python") for fence in fences(page))]


@pytest.mark.parametrize("page", RUNS, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if any(re.search(r"^(?:from|import) transformers\b", fence.text, re.MULTILINE) for fence in fences(page)):
        pytest.importorskip("transformers", reason="pip install 'mxgemm[transformers]'")
    space: dict[str, Any] = {"__name__": "page"}
    for fence in fences(page):
        if not fence.info.startswith("python"):
            continue
        tree = ast.parse("\n" * fence.line + fence.text, str(page))
        if fence.info == "python":
            exec(compile(tree, str(page), "exec"), space)
        else:
            imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), str(page), "exec"), space)
            assert not (unbound := unbound_names(tree, space)), f"{page.name}:{fence.line}: {unbound}"


def unbound_names(tree: ast.Module, space: dict[str, Any]) -> list[str]:
    """Names that a snippet reads and nothing before binds, and attributes that what it imports has not."""
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound | space.keys() | vars(builtins).keys():
            wrong.append(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in bound:
            owner = space.get(node.value.id)
            if inspect.ismodule(owner) and not hasattr(owner, node.attr):
                wrong.append(f"{node.value.id}.{node.attr}")
    return wrong


def test_unbound_names_are_seen() -> None:
    space = {"torch": torch, "x": 1}
    wrong = unbound_names(ast.parse("y = x + len([z])\ntorch.nothing(y)"), space)
    assert sorted(wrong) == ["torch.nothing", "z"]
    assert not unbound_names(ast.parse("y = x\ny.anything(torch.ones(1))"), space)


# ---- commands


class Line(NamedTuple):
    page: str
    words: list[str]


def lines() -> Iterator[Line]:
    """Command lines of ``sh`` fences, without comments and variables before them; and those in backquotes."""
    for page, name in zip(PAGES, NAMES, strict=True):
        texts = [fence.text for fence in fences(page) if fence.info == "sh"]
        spans = re.findall(r"`(mxgemm [a-z][^`]*)`", prose(page))
        for text in [*"".join(texts).replace("\\\n", " ").splitlines(), *spans]:
            for part in re.split(r"&&|\|", text):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    del words[0]
                if words:
                    yield Line(name, words)


HELP = """
import contextlib, io, json, runpy, sys
texts = []
for command in json.loads(sys.argv.pop()):
    sys.argv = ["mxgemm", *command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_module("mxgemm", run_name="__main__")
    texts.append(out.getvalue())
print(json.dumps(texts))
"""


@functools.cache
def helps() -> dict[tuple[str, ...], str]:
    """What ``mxgemm COMMAND --help`` prints, of every command: the one place that knows how the program is called."""
    pytest.importorskip("rich", reason="runs the command line")
    commands = [(), ("dispatcher",), *COMMANDS]
    line = [sys.executable, "-c", HELP, json.dumps(commands)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout), strict=True))


def documented_commands() -> dict[tuple[str, ...], set[str]]:
    """The table of docs/api.md: command -> its options."""
    rows = re.findall(r"^\| `mxgemm ([a-z ]+)` \|(.*)\|$", read(API), flags=re.MULTILINE)
    return {tuple(command.split()): set(OPTION.findall(options)) for command, options in rows}


COMMANDS = documented_commands()


def test_no_command_is_forgotten() -> None:
    for group in ((), ("dispatcher",)):
        named = set(re.findall(r"^ {1,4}([a-z]+)(?: {2,}\S|$)", helps()[group], flags=re.MULTILINE))
        assert named == {command[len(group)] for command in COMMANDS if command[: len(group)] == group}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_options_are_those_of_the_command(command: tuple[str, ...]) -> None:
    described = re.findall(r"^ {2,4}(-.*?)(?: {2,}|$)", helps()[command], flags=re.MULTILINE)
    assert set(OPTION.findall(" ".join(described))) - {"--help"} == COMMANDS[command]


def test_mxgemm_lines_name_commands_and_options() -> None:
    seen = 0
    for page, words in lines():
        if Path(words[0]).name != "mxgemm":
            continue
        seen += 1
        command = tuple(words[1:3]) if tuple(words[1:3]) in COMMANDS else (words[1],)
        if command == ("dispatcher",) and len(words) == 2:
            continue
        assert command in COMMANDS, f"{page}: {shlex.join(words)}"
        unknown = set(OPTION.findall(" ".join(words))) - COMMANDS[command]
        assert not unknown, f"{page}: {shlex.join(words)}: {unknown}"
    assert seen > 5


def test_python_lines_name_scripts_and_options() -> None:
    """A script of ours exists and its text (or that of what it is a front of) has each option."""
    seen = 0
    for page, words in lines():
        if Path(words[0]).name not in ("python", "python3"):
            continue
        module = words[1] == "-m"
        if module and words[2] in ("pytest", "mxgemm"):
            named = [word.partition("::")[0] for word in words if word.startswith("tests/")]
            assert all((ROOT / path).exists() for path in named), f"{page}: {shlex.join(words)}"
            continue
        path = ROOT / (words[2].replace(".", "/") if module else words[1])
        found = [path] if path.is_file() else [*path.glob("*.py"), *path.parent.glob(f"{path.name}.py")]
        assert found, f"{page}: {shlex.join(words)}"
        text = "".join(read(file) for file in found)
        unknown = [option for option in OPTION.findall(" ".join(words)) if f'"{option}"' not in text]
        assert not unknown, f"{page}: {shlex.join(words)}: {unknown}"
        seen += 1
    assert seen > 5


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)$", read(ROOT / "Makefile"), flags=re.MULTILINE)[0].split())
    named = {words[1] for _, words in lines() if words[0] == "make"}
    assert named
    assert named <= targets


# ---- the API


def signature(name: str, function: Any) -> str:
    """A signature without annotations, as docs/api.md writes it."""
    parts, marked = [], False
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            parts.append("*")
            marked = True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}".replace("'", '"')
        parts.append(parameter.name + default)
    return f"{name}({', '.join(parts)})"


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def public(owner: type) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("_")}


def blocks() -> str:
    return squeezed("".join(fence.text for fence in fences(API) if fence.info == "text"))


def test_every_public_function_is_documented() -> None:
    written = blocks()
    for name in mxgemm.__all__:
        value = getattr(mxgemm, name)
        if inspect.isfunction(value) or value is mxgemm.MXTensor:
            assert signature(f"mxgemm.{name}", value) in written
        else:
            assert f"`mxgemm.{name}`" in read(API)
    made_by_prepare = {field.name for field in dataclasses.fields(mxgemm.MXTensor) if not field.init}
    for name, value in public(mxgemm.MXTensor).items():
        function = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(function):
            bound = getattr(mxgemm.MXTensor, name) if isinstance(value, classmethod) else function
            assert signature(f"MXTensor.{name}", bound) in written
        elif name not in made_by_prepare:
            assert f"`{name}`" in read(API)
    for owner in (mxgemm.Explanation, mxgemm.Refusal):
        for name in public(owner):
            assert f"`{name}`" in read(API), f"{owner.__name__}.{name}"


def test_every_function_of_checkpoints_is_documented() -> None:
    for name in mxgemm.checkpoints.__all__:
        value = getattr(mxgemm.checkpoints, name)
        if inspect.isfunction(value):
            assert signature(f"checkpoints.{name}", value) in blocks()
    for name in public(mxgemm.checkpoints.Checkpoint):
        assert f"`{name}" in read(API), name


def test_no_documented_name_is_of_nothing() -> None:
    for owner, name in re.findall(r"\b(mxgemm|MXTensor)\.([A-Za-z_]\w*)\(", blocks()):
        assert hasattr(mxgemm if owner == "mxgemm" else mxgemm.MXTensor, name), name
    for name in re.findall(r"`mxgemm\.(\w+)`", read(API)):
        assert name in mxgemm.__all__ or importlib.util.find_spec(f"mxgemm.{name}"), name
    for name in re.findall(
        r"^\| `([a-z_]+)`", read(API).split("| attribute | what |")[1].split("\n\n")[0], re.MULTILINE
    ):
        assert name in mxgemm.MXTensor.__dataclass_fields__ or hasattr(mxgemm.MXTensor, name), name


def test_the_operators_schemas() -> None:
    text = read(API).split("## torch operators")[1].split("## ")[0]
    written = squeezed(re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)[0])
    operators = re.findall(r"(\w+)\(Tensor", written)
    schemas = [str(getattr(torch.ops.mxgemm, name).default._schema).removeprefix("mxgemm::") for name in operators]
    assert written.strip() == " ".join(schemas)
    source = "".join(read(ROOT / "mxgemm" / room / "ops.py") for room in ("", "scaled", "experts"))
    assert sorted(operators) == sorted(re.findall(r'custom_op\("mxgemm::(\w+)"', source))


# ---- variables


def test_every_variable_is_documented() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("no git checkout")
    suffixes = {".py", ".c", ".h", ".hpp", ".cpp", ".hip", ".toml", ".sh"}
    sources = [ROOT / name for name in tracked if Path(name).suffix in suffixes or name == "Makefile"]
    used = set()
    for path in sources:
        if path.exists() and path != Path(__file__):
            used |= {name for name in VARIABLE.findall(read(path)) if not re.search(rf"#define\s+{name}\b", read(path))}
    table = set(re.findall(r"^\| `((?:MXGEMM|GFX950EMU)_\w+)` \|", read(ENVIRONMENT), flags=re.MULTILINE))
    assert table == used
    for page, name in zip(PAGES, NAMES, strict=True):
        assert set(VARIABLE.findall(read(page))) <= table, name


# ---- tests, paths, links


@functools.cache
def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(read(path))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_named_tests_exist() -> None:
    """``path::name``, and ``::name`` of the path before it."""
    count = 0
    for page in PAGES:
        for line in read(page).splitlines():
            path: Path | None = None
            for file, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", line):
                path = ROOT / file if file else path
                if name:
                    assert path, f"{page.name}: ::{name} follows no path"
                    assert name in names_of_tests(path), f"{page.name}: {path.name}::{name}"
                    count += 1
    assert count > 100


def test_every_kind_of_the_reliability_page_names_a_test() -> None:
    for line in read(RELIABILITY).splitlines():
        if line.startswith("| ") and not line.startswith(("| kind |", "|---")):
            kind, _, test, figures = (cell.strip() for cell in line.strip("|").split(" | "))
            assert "`tests/" in test, kind
            assert figures, kind


TOP = "mxgemm|mxgemm_cli|tests|bench|evidence|docs|routing_tables|examples|gfx950emu"


def test_named_paths_exist() -> None:
    for page, name in zip(PAGES, NAMES, strict=True):
        for path in re.findall(rf"(?<![\w/.-])((?:{TOP})/[\w./*-]*\w)", read(page)):
            found = any(ROOT.glob(path.partition("::")[0].rstrip(".")))
            assert found, f"{name}: {path}"


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere() -> None:
    for page, name in zip(PAGES, NAMES, strict=True):
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if target.startswith("http"):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", prose(file), flags=re.MULTILINE)
                assert anchor in {slug(heading) for heading in headings}, f"{name}: {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", read(ROOT / "README.md")))
    assert linked == {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
