"""What the fields of a JSON document must hold, as values: a check takes a value and its place, and names both.

    SIZE = integer(1, 1 << 40)
    RECORD = record({"m": SIZE, "name": text()}, {"us": optional(number(above=0))})
    every(RECORD)(document["rows"], "mine.json: rows")

The last line raises ``FileError: mine.json: rows[3].us: got nan, want a finite number above 0``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mxgemm.files import FileError, shown

Check = Callable[[Any, str], None]
"""Raises FileError where a value is not what its place wants."""

_NOTHING: Final[Mapping[str, Check]] = {}


def integer(low: int, high: int, want: str = "") -> Check:
    """Return a check for an integer from ``low`` to ``high``, both included; true and false are none."""
    said = want or f"an integer from {low} to {high}"

    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise FileError(f"{where}: got {shown(value)}, want {said}")

    return check


def number(above: float, want: str = "") -> Check:
    """Return a check for a finite number above a bound."""
    said = want or f"a finite number above {above:g}"

    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or not math.isfinite(value) or value <= above:
            raise FileError(f"{where}: got {shown(value)}, want {said}")

    return check


def text(want: str = "text", *, empty: bool = False, lines: bool = False) -> Check:
    """Return a check for printable text.

    Args:
        want: what it should be, for the message.
        empty: "" will do.
        lines: it may have line breaks, and whatever else a terminal understands.
    """

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not (value or empty) or not (lines or value.isprintable()):
            raise FileError(f"{where}: got {shown(value)}, want {want}")

    return check


def flag() -> Check:
    """Return a check for true or false."""

    def check(value: Any, where: str) -> None:
        if type(value) is not bool:
            raise FileError(f"{where}: got {shown(value)}, want true or false")

    return check


def one_of(choices: Iterable[str | int]) -> Check:
    """Return a check for one of a few words or numbers."""
    allowed = {(type(choice), choice): choice for choice in choices}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str | int) or (type(value), value) not in allowed:
            listed = ", ".join(map(str, allowed.values())) or "none"
            raise FileError(f"{where}: got {shown(value)}, want one of {listed}")

    return check


def optional(check: Check) -> Check:
    """Return a check that lets null pass."""
    return lambda value, where: None if value is None else check(value, where)


def every(check: Check) -> Check:
    """Return a check for a list of such values."""

    def checked(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise FileError(f"{where}: got {type(value).__name__}, want a list")
        for index, item in enumerate(value):
            check(item, f"{where}[{index}]")

    return checked


def each(check: Check) -> Check:
    """Return a check for an object of such values, whatever their names."""

    def checked(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FileError(f"{where}: got {type(value).__name__}, want an object")
        if check is not anything:  # tables have thousands of such objects, and places cost most of reading one
            for name, item in value.items():
                check(item, f"{where}[{shown(name)}]")

    return checked


def document(kind: str, version: int) -> Check:
    """Return a check for a document of one kind and version, which is all that it looks at."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or value.get("kind") != kind:
            got = shown(value.get("kind")) if isinstance(value, dict) else type(value).__name__
            raise FileError(f"{where}: kind: got {got}, want {kind!r}")
        if type(value.get("version")) is not int or value["version"] != version:
            raise FileError(f"{where}: version: got {shown(value.get('version'))}, want {version}")

    return check


def anything(value: Any, where: str) -> None:
    """Let every value pass."""


def record(required: Mapping[str, Check], more: Mapping[str, Check] = _NOTHING, *, closed: bool = True) -> Check:
    """Return a check for an object.

    Args:
        required: fields that it must have.
        more: fields that it may have.
        closed: it has no others.
    """
    known = {**required, **more}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FileError(f"{where}: got {type(value).__name__}, want an object")
        unknown = sorted(value.keys() - known.keys()) if closed else []
        missing = sorted(required.keys() - value.keys())
        if unknown or missing:
            raise FileError(f"{where}: unknown fields {shown(unknown)}, missing fields {shown(missing)}")
        for name, checked in known.items():
            if name in value:
                checked(value[name], f"{where}.{name}")

    return check
