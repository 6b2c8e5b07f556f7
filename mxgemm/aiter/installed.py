"""AMD's AITER: is it here, which functions has it, and how is each called. The only file that imports it.

Importing AITER initialises HIP, and its decorators hide signatures behind ``*args``. So what is installed is read from
its source text: nothing is imported before a route that needs it is bound. Arguments changed over time (docs/aiter.md
lists the forms); a form that is not known is refused with the version, never guessed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.errors import Refusal

INSTALL: Final = "amd-aiter (pip install 'mxgemm[rocm]')"
SOURCE: Final = Path("ops/gemm_op_a4w4.py")
"""Where AITER defines the functions below, relative to the package."""

_OPERANDS: Final = ("A", "B", "A_scale", "B_scale")
_OPTIONAL: Final = frozenset({"bias", "alpha", "beta", "apreshuffle", "global_A_scale", "global_B_scale"})
"""Parameters whose default is what mxgemm wants: nothing added, nothing scaled, A row-major."""

logger = logging.getLogger("mxgemm")

AsmCall = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""A, B, A's scales, B's scales, out; bytes as uint8."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of one of AITER's functions."""

    name: str
    required: bool


@dataclass(frozen=True, slots=True)
class Installation:
    """What was found of AITER.

    Attributes:
        version: of the distribution, "unknown" for a bare source tree.
        folder: of the package ``aiter``.
        functions: parameters of each function that the source defines.
    """

    version: str
    folder: Path
    functions: Mapping[str, tuple[Parameter, ...]]


def _lacks(value: str, needed: str = INSTALL) -> Refusal:
    return Refusal("aiter", value, needed, "installation")


@cache
def find() -> Installation | Refusal:
    """Look for AITER without importing it, or say what is in its place; once a process."""
    spec = importlib.util.find_spec("aiter")
    if spec is None:
        return _lacks("not installed")
    if not spec.submodule_search_locations:
        return _lacks(f"a single module ({spec.origin}), not AMD's package")
    folder = Path(next(iter(spec.submodule_search_locations)))
    amd, other = _version("amd-aiter"), _version("aiter")
    source = folder / SOURCE
    if not source.is_file():
        if amd is None:
            name = f"PyPI's unrelated package aiter {other}" if other else f"a package without AMD's kernels ({folder})"
            return _lacks(name, f"{INSTALL} in its place: both are imported as aiter")
        return _lacks(f"amd-aiter {amd}, which lacks {SOURCE.as_posix()}", "a release of amd-aiter that has it")
    try:
        functions = _functions(source.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return _lacks(f"amd-aiter {amd or other}, whose {source} cannot be read ({error})", "an intact amd-aiter")
    return Installation(amd or other or "unknown", folder, functions)


def describe() -> str:
    """Say in a few words what was found, for ``mxgemm doctor``."""
    found = find()
    if isinstance(found, Refusal):
        return str(found.value)
    known = ("gemm_a4w4", "gemm_a4w4_asm", "gemm_a4w4_blockscale")
    return f"amd-aiter {found.version}: {', '.join(name for name in known if name in found.functions) or 'no a4w4'}"


def refusal(function: str) -> Refusal | None:
    """Say why nothing can call one of AITER's functions, or None if it can.

    On a ROCm build of torch that takes the import: it can fail there for many reasons, and another route shall serve
    then. Elsewhere, where the question is hypothetical, nothing is imported.
    """
    found = find()
    if isinstance(found, Refusal):
        return found
    keywords = _keywords(found, function)
    if isinstance(keywords, Refusal):
        return keywords
    failure = _import_failure()
    if failure:
        value = f"amd-aiter {found.version}, which cannot be imported ({failure})"
        return _lacks(value, "an amd-aiter that fits this torch and this ROCm")
    return None


def bind_asm(symbol: str, *, preshuffled: bool) -> AsmCall:
    """Bind ``gemm_a4w4_asm`` to one of its kernels, by mangled name, or to its heuristic by "". Imports AITER.

    Raises:
        RuntimeError: this release has no such function, or an unknown form of it.
    """
    function, keywords = _load("gemm_a4w4_asm")
    # Splits add bf16 partial sums with atomics: neither reproducible nor within the error gates.
    options = {"kernelName": symbol, "bpreshuffle": preshuffled, "log2_k_split": 0}
    constant = {name: value for name, value in options.items() if name in keywords}
    fp4, e8m0 = _dtypes()

    def call(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out: Tensor) -> None:
        function(a.view(fp4), b.view(fp4), a_scales.view(e8m0), b_scales.view(e8m0), out, **constant)

    return call


def bind_blockscale(name: str) -> AsmCall:
    """Bind ``gemm_a4w4_blockscale`` to one of its CK kernels. Imports AITER.

    Raises:
        RuntimeError: this release has no such function, or cannot be told which kernel to take.
    """
    function, _ = _load("gemm_a4w4_blockscale")
    fp4, e8m0 = _dtypes()

    def call(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out: Tensor) -> None:
        function(a.view(fp4), b.view(fp4), a_scales.view(e8m0), b_scales.view(e8m0), out, splitK=0, kernelName=name)

    return call


def bind_pick() -> AsmCall:
    """Bind a ``gemm_a4w4`` that :func:`pick_takes_output`, for a preshuffled weight. Imports AITER.

    It picks a kernel itself; rows of the output must be a multiple of 32.

    Raises:
        RuntimeError: this release has no such function, or an unknown form of it.
    """
    function, keywords = _load("gemm_a4w4")
    constant = {"bpreshuffle": True} if "bpreshuffle" in keywords else {}
    fp4, e8m0 = _dtypes()

    def call(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out: Tensor) -> None:
        function(a.view(fp4), b.view(fp4), a_scales.view(e8m0), b_scales.view(e8m0), out, **constant)

    return call


def pick_takes_output() -> bool:
    """Say whether ``gemm_a4w4`` takes an output to fill, or returns memory of its own.

    What is returned may be the library's to use again (``AITER_GEMM_A4W4_OUT_SCRATCH_REUSE``: one buffer a shape and
    stream), for all threads. So nothing that is returned is used: where no output is taken, call what it would call.
    """
    found = find()
    return isinstance(found, Installation) and any(p.name == "out" for p in found.functions.get("gemm_a4w4", ()))


def tuned_row(m: int, n: int, k: int) -> tuple[str, int] | None:
    """Return (kernel, log2 of the splits) of the tuned row that ``gemm_a4w4`` will find. Imports AITER.

    Returns:
        None where it finds none and falls back on its heuristic.
    """
    module = importlib.import_module("aiter.ops.gemm_op_a4w4")
    row = module.get_GEMM_config(m, n, k)
    if row is None:
        return None
    return str(row["kernelName"]), int(row.get("splitK") or 0)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _functions(source: str) -> dict[str, tuple[Parameter, ...]]:
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            positional = [*node.args.posonlyargs, *node.args.args]
            first_default = len(positional) - len(node.args.defaults)
            found[node.name] = (
                *(Parameter(argument.arg, i < first_default) for i, argument in enumerate(positional)),
                *(
                    Parameter(argument.arg, default is None)
                    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                ),
            )
    return found


_KNOWN: Final[Mapping[str, tuple[tuple[str, ...], frozenset[str], frozenset[str]]]] = {
    # function: leading parameters, further ones that mxgemm sets where they exist, those that it cannot do without
    "gemm_a4w4": (_OPERANDS, frozenset({"out", "dtype", "bpreshuffle"}), frozenset({"bpreshuffle"})),
    "gemm_a4w4_asm": (
        (*_OPERANDS, "out"),
        frozenset({"kernelName", "bpreshuffle", "log2_k_split"}),
        frozenset({"kernelName", "bpreshuffle"}),
    ),
    "gemm_a4w4_blockscale": (
        ("XQ", "WQ", "x_scale", "w_scale", "Out"),
        frozenset({"splitK", "kernelName"}),
        frozenset({"splitK", "kernelName"}),
    ),
}


_EVERY_KNOWN: Final = _OPTIONAL.union(*(({*leading} | settable) for leading, settable, _ in _KNOWN.values()))


def _keywords(found: Installation, function: str) -> frozenset[str] | Refusal:
    """Return the names to pass besides the leading operands, or say what is wrong with the function."""

    def unknown_form(what: str) -> Refusal:
        return _lacks(f"amd-aiter {found.version}, {what}", "a release whose form is known")

    parameters = found.functions.get(function)
    if parameters is None:
        return unknown_form(f"which lacks {function}")
    if function == "gemm_a4w4" and "get_GEMM_config" not in found.functions:
        return unknown_form("which lacks get_GEMM_config: nobody can say which kernel its gemm_a4w4 picks")
    leading, settable, needed = _KNOWN[function]
    names = [parameter.name for parameter in parameters]
    if tuple(names[: len(leading)]) != leading:
        begins = f"({', '.join(names[: len(leading)])}), want ({', '.join(leading)})"
        return unknown_form(f"whose {function} begins {begins}")
    rest = parameters[len(leading) :]
    keywords = frozenset(parameter.name for parameter in rest) & settable
    if needed - keywords:
        return unknown_form(f"whose {function} has no {', '.join(sorted(needed - keywords))}")
    unknown = [p.name for p in rest if p.required and p.name not in settable]
    if unknown:
        wants = f"requires {', '.join(unknown)}, which this release of mxgemm does not know"
        return unknown_form(f"whose {function} {wants}")
    if "out" in keywords and names.index("out") != len(leading):
        return unknown_form(f"whose {function} takes out at an unknown place")
    return keywords


def _load(function: str) -> tuple[Callable[..., Any], frozenset[str]]:
    found = find()
    if isinstance(found, Refusal):
        raise RuntimeError(f"aiter: {found.value}; needs {found.needed}")
    keywords = _keywords(found, function)
    if isinstance(keywords, Refusal):
        raise RuntimeError(str(keywords.value))
    new = [p.name for p in found.functions[function] if p.name not in _EVERY_KNOWN]
    if new:
        logger.info("amd-aiter %s: options of %s left at their defaults: %s", found.version, function, ", ".join(new))
    module = _module()
    try:
        return getattr(module, function), keywords
    except AttributeError as error:
        raise RuntimeError(
            f"amd-aiter {found.version}: {SOURCE.as_posix()} defines {function}, aiter lacks it"
        ) from error


@cache
def _module() -> ModuleType:
    logger.info("importing aiter; a first call of one of its functions may build a C++ module, once")
    return importlib.import_module("aiter")


@cache
def _import_failure() -> str | None:
    if torch.version.hip is None:
        return None
    try:
        _module()
    except Exception as error:  # whatever a package that builds and loads libraries at import may raise
        return f"{type(error).__name__}: {error}"
    return None


def _dtypes() -> tuple[torch.dtype, torch.dtype]:
    """AITER checks the dtype of packed e2m1 and of scales: torch's own where torch has them, else uint8."""
    dtypes = _module().dtypes
    return dtypes.fp4x2, dtypes.fp8_e8m0
