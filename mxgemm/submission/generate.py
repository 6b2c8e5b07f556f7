"""Put the submission file together: leaderboard tags, what it is, and the bundled modules."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mxgemm import files
from mxgemm._version import __version__
from mxgemm.device import KNOWN_MACHINES
from mxgemm.files import Name
from mxgemm.submission import hip_text, triton_text
from mxgemm.submission.bundle import PACKAGE, bundle
from mxgemm.submission.parts.shapes import PUBLISHED

FORMS: Final = {
    "hip": "one HIP launch, compiled by hiprtc, for the published shapes on gfx950",
    "triton": "one Triton launch that quantises A in registers (two where K is split)",
    "aiter": "AITER's quantiser, scale shuffle and gemm_a4w4, three launches",
}
"""The forms of the product that a file can carry, in the order in which it tries them."""

TAGS: Final = "#!POPCORN leaderboard amd-mxfp4-mm\n#!POPCORN gpu MI355X\n"
FORBIDDEN: Final = "stream"
"""The leaderboard refuses a file with this anywhere in it, in any case, in code and comments alike."""

MARK: Final = files.Mark(
    "a submission made by mxgemm", rb"\A%b\s*\"\"\"MXFP4 GEMM(?s:.)*Made by mxgemm" % re.escape(TAGS.encode())
)

Shape = tuple[int, int, int]

_PARTS: Final = "mxgemm.submission.parts"


def render(
    forms: Sequence[str] = tuple(FORMS), *, arch: str = triton_text.ARCH, shapes: Sequence[Shape] = PUBLISHED
) -> str:
    """Return the text of a submission.

    Args:
        forms: which to carry, in the order in which they are tried.
        arch: the machine whose Triton launches are written down, a key of ``KNOWN_MACHINES``; the leaderboard's is
            gfx950. "sm_90" and "cpu" (Triton's interpreter) are for judging the file on another one.
        shapes: (m, n, k) of those launches, built at import.

    Raises:
        ValueError: a form that there is none of, none at all, another ``arch``, or a text that the leaderboard would
            refuse.
        RouteUnavailable: the form "triton" is wanted, and triton is missing or does not compile it for ``arch``.
    """
    _check_forms(forms)
    if arch not in KNOWN_MACHINES:
        raise ValueError(f"arch: got {arch!r}, want one of {', '.join(KNOWN_MACHINES)}")
    replacements = {f"{_PARTS}.shapes": _shapes_module(shapes), f"{_PARTS}.forms": _forms_module(forms)}
    if "hip" in forms:
        replacements[f"{_PARTS}.hip_data"] = hip_text.render()
    if "triton" in forms:
        replacements[f"{_PARTS}.triton_data"] = triton_text.render(shapes, arch)
    text = f"{TAGS}\n{_description(forms)}\n{bundle(f'{_PARTS}.entry', replacements)}"
    check(text)
    return text


def write(
    path: Name,
    forms: Sequence[str] = tuple(FORMS),
    *,
    arch: str = triton_text.ARCH,
    shapes: Sequence[Shape] = PUBLISHED,
    force: bool = False,
) -> Path:
    """Write a submission and return its path.

    Args:
        path: a new file, or an earlier submission made here, which is told by its first lines.
        forms: as in :func:`render`, like ``arch`` and ``shapes``.
        arch: as there.
        shapes: as there.
        force: replace whatever file is there.

    Raises:
        ValueError, RouteUnavailable: as :func:`render`.
        FileError: a ValueError: the file cannot be written, or is there and is no submission made here.
    """
    _check_forms(forms)  # before a folder is made for the file
    files.check_writable(path, MARK, force=force)
    return files.save(path, render(forms, arch=arch, shapes=shapes), MARK, force=force)


def _check_forms(forms: Sequence[str]) -> None:
    if not forms or len(set(forms)) != len(forms) or not set(forms) <= FORMS.keys():
        raise ValueError(f"forms: got {', '.join(forms) or 'none'}, want some of {', '.join(FORMS)}, each once")


def check(text: str) -> None:
    """Refuse a text that the leaderboard would refuse, or that does not stand alone.

    Raises:
        ValueError: says what is wrong, and where.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if FORBIDDEN in line.lower():
            raise ValueError(f"line {number}: contains {FORBIDDEN!r}, which the leaderboard refuses: {line.strip()!r}")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if any(name.partition(".")[0] == PACKAGE for name in names):
            raise ValueError(f"line {node.lineno}: imports {PACKAGE}; a submission must stand alone")
    if not text.startswith(TAGS):
        raise ValueError(f"line 1: want the tags {TAGS!r}")


def _shapes_module(shapes: Sequence[Shape]) -> str:
    rows = "\n".join(f"    {shape}," for shape in shapes)
    return f'"""The published shapes (m, n, k)."""\n\nPUBLISHED = (\n{rows}\n)\n'


def _forms_module(forms: Sequence[str]) -> str:
    imports = [f"from {_PARTS}.{form}_form import {form}_form, {form}_tiles" for form in forms]
    items = [f'    "{form}": FormKind({form}_tiles, {form}_form),' for form in forms]
    lines = [
        '"""The forms of the product, in the order in which they are tried."""',
        f"from {_PARTS}.form import FormKind",
        *imports,
        "FORMS = {",
        *items,
        "}",
        "",
    ]
    return "\n".join(lines)


def _description(forms: Sequence[str]) -> str:
    listed = ";\n".join(f"{index}. {FORMS[form]}" for index, form in enumerate(forms, 1)) + "."
    return f'''"""MXFP4 GEMM for the GPU MODE leaderboard amd-mxfp4-mm: bf16 A, quantised to MXFP4, times MXFP4 B.

Made by mxgemm {__version__} (mxgemm submission) from that library's kernels; do not edit, make it anew.

For each shape those of these forms that build and, on synthetic operands, agree with plain arithmetic are timed, some
tiles of each, and the fastest is used; where nothing can be timed it is the first:

{textwrap.indent(listed, "  ")}

The published shapes are built when this file is imported, others at their first call; standard error says which form
is used. Tiles are predicted from machine code, not measured on an MI355X; the kernels were executed for gfx950 in an
emulator only.
"""
'''
