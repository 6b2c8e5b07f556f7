"""Routing tables: what was measured or predicted, as checked data.

A table is a JSON object for one architecture::

    {"kind": "mxgemm-routing-table", "version": 1, "arch": "gfx950",
     "sources": {"aiter": {"title": "...", "url": "...", "scope": "call", "covers": "what the microseconds include"}},
     "rules": [{"m_max": 32, "k_max": 1024, "route": "a16wfp4", "source": "..."}],
     "rows":  [{"m": 64, "n": 7168, "k": 2048, "route": "ck_gemm", "config": {}, "us": 6.81,
                "grade": "measured", "source": "aiter"}]}

A source's ``scope`` is "call" where its microseconds are those of a whole call, as they are without the field, or
"kernel" where they are those of the GEMM kernel alone: such rows do not choose between routes (``mxgemm.router``).
Rows may name ``a_format``, ``b_format`` (default "e2m1") and ``cu_count``. Rules are tried in order when no row
fits. Tables that a user names in ``MXGEMM_TABLES`` (paths, separated like PATH) go before the shipped ones.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from mxgemm.formats import ACTIVATION_FORMATS, FORMATS

TABLES_VARIABLE: Final = "MXGEMM_TABLES"
KIND: Final = "mxgemm-routing-table"
VERSION: Final = 1

Grade = Literal["measured", "predicted"]
Scope = Literal["call", "kernel"]

logger = logging.getLogger("mxgemm")


class TableError(ValueError):
    """A routing table that cannot be used; the message names the file and the place in it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one table says about one problem size."""

    m: int
    n: int
    k: int
    route: str
    source: str
    grade: Grade
    us: float | None = None
    a_format: str = "e2m1"
    b_format: str = "e2m1"
    cu_count: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which route to take where no row fits: inclusive bounds, None for no bound."""

    route: str
    source: str
    m_max: int | None = None
    k_max: int | None = None
    a_format: str | None = None
    derived: str | None = None
    nk_min: int | None = None

    def applies(self, m: int, n: int, k: int, a_format: str, derived: str) -> bool:
        """Say whether a problem lies within the bounds; ``derived`` is what ``prepare()`` made of its weight."""
        return (
            (self.derived is None or self.derived == derived)
            and (self.nk_min is None or n * k >= self.nk_min)
            and (self.m_max is None or m <= self.m_max)
            and (self.k_max is None or k <= self.k_max)
            and (self.a_format is None or self.a_format == a_format)
        )

    def __str__(self) -> str:
        bounds = [f"{name} <= {top}" for name, top in (("M", self.m_max), ("K", self.k_max)) if top is not None]
        if self.nk_min is not None:
            bounds.append(f"N K >= {self.nk_min}")
        if self.a_format:
            bounds.append(f"a_format {self.a_format}")
        if self.derived:
            bounds.append(f"weight prepared as {self.derived}")
        return " and ".join(bounds) or "any shape"


@dataclass(frozen=True, slots=True)
class Table:
    """One checked file; ``by_weight`` maps (n, k) to its rows."""

    path: str
    arch: str
    sources: Mapping[str, Mapping[str, str]]
    rules: tuple[Rule, ...]
    rows: tuple[Row, ...]
    by_weight: Mapping[tuple[int, int], tuple[Row, ...]]

    def scope_of(self, row: Row) -> Scope:
        """Say what the microseconds of a row are those of."""
        return "kernel" if self.sources[row.source].get("scope") == "kernel" else "call"


def load(path: str | os.PathLike[str]) -> Table:
    """Read and check one table.

    Raises:
        TableError: unreadable, truncated, of another kind or version, or a row of the wrong form.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: not JSON ({error})") from error
    return _check(raw, str(path))


@cache
def shipped(arch: str) -> tuple[Table, ...]:
    """Return the tables that come with the package for an architecture."""
    return tuple(load(path) for path in sorted(shipped_folder().glob(f"{arch}*.json")))


def shipped_folder() -> Path:
    """Find ``routing_tables``: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "routing_tables", package.parent / "routing_tables"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"routing_tables: not in {package} nor beside it; the installation is incomplete")


def from_user(arch: str, paths: Iterable[str | os.PathLike[str]]) -> tuple[Table, ...]:
    """Return the user's tables for ``arch``; one that cannot be used is named in a warning and left out."""
    tables = []
    for path in paths:
        try:
            table = load(path)
        except TableError as error:
            logger.warning("routing table ignored, the shipped ones are used: %s", error)
            continue
        if table.arch == arch:
            tables.append(table)
    return tuple(tables)


@cache
def from_environment(arch: str) -> tuple[Table, ...]:
    """Return the tables named by ``MXGEMM_TABLES``, read once per architecture and process."""
    paths = [path for path in os.environ.get(TABLES_VARIABLE, "").split(os.pathsep) if path]
    return from_user(arch, paths)


def _check(raw: Any, path: str) -> Table:
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise TableError(f"{path}: kind: got {_kind_of(raw)}, want {KIND!r}")
    if raw.get("version") != VERSION:
        raise TableError(f"{path}: version: got {raw.get('version')!r}, want {VERSION}")
    arch = raw.get("arch")
    if not isinstance(arch, str) or not arch:
        raise TableError(f"{path}: arch: got {arch!r}, want an architecture's name")
    sources = raw.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(value, dict) for value in sources.values()):
        raise TableError(f"{path}: sources: want an object of objects")
    for name, source in sources.items():
        if source.get("scope", "call") not in get_args(Scope):
            wanted = " or ".join(get_args(Scope))
            raise TableError(f"{path}: sources.{name}.scope: got {source['scope']!r}, want {wanted}")
    rules = tuple(_rule(item, f"{path}: rules[{i}]", sources) for i, item in enumerate(_list(raw, "rules", path)))
    rows = tuple(_row(item, f"{path}: rows[{i}]", sources) for i, item in enumerate(_list(raw, "rows", path)))
    by_weight: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        by_weight.setdefault((row.n, row.k), []).append(row)
    return Table(path, arch, sources, rules, rows, {key: tuple(value) for key, value in by_weight.items()})


def _kind_of(raw: Any) -> str:
    return repr(raw.get("kind")) if isinstance(raw, dict) else type(raw).__name__


def _list(raw: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = raw.get(name, [])
    if not isinstance(value, list):
        raise TableError(f"{path}: {name}: got {type(value).__name__}, want a list")
    return value


def _fields(item: Any, where: str, allowed: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise TableError(f"{where}: got {type(item).__name__}, want an object")
    unknown, missing = set(item) - set(allowed), set(required) - set(item)
    if unknown or missing:
        raise TableError(f"{where}: unknown fields {sorted(unknown)}, missing fields {sorted(missing)}")
    return item


def _row(item: Any, where: str, sources: Mapping[str, Any]) -> Row:
    values = _fields(item, where, tuple(Row.__dataclass_fields__), ("m", "n", "k", "route", "source", "grade"))
    for name in ("m", "n", "k"):
        if type(values[name]) is not int or values[name] < 1:
            raise TableError(f"{where}.{name}: got {values[name]!r}, want a positive integer")
    us = values.get("us")
    if us is not None and (isinstance(us, bool) or not isinstance(us, (int, float)) or us <= 0):
        raise TableError(f"{where}.us: got {us!r}, want microseconds above 0 or null")
    if values["grade"] not in get_args(Grade):
        raise TableError(f"{where}.grade: got {values['grade']!r}, want one of {', '.join(get_args(Grade))}")
    if values.get("a_format", "e2m1") not in (*ACTIVATION_FORMATS, *FORMATS):
        raise TableError(f"{where}.a_format: got {values['a_format']!r}")
    if values.get("b_format", "e2m1") not in FORMATS:
        raise TableError(f"{where}.b_format: got {values['b_format']!r}")
    if type(values.get("cu_count", 0)) is not int:
        raise TableError(f"{where}.cu_count: got {values['cu_count']!r}, want an integer")
    if not isinstance(values.get("config", {}), dict):
        raise TableError(f"{where}.config: got {values['config']!r}, want an object")
    _check_names(values, where, sources)
    return Row(**values)


def _rule(item: Any, where: str, sources: Mapping[str, Any]) -> Rule:
    values = _fields(item, where, tuple(Rule.__dataclass_fields__), ("route", "source"))
    for name in ("m_max", "k_max", "nk_min"):
        if values.get(name) is not None and type(values[name]) is not int:
            raise TableError(f"{where}.{name}: got {values[name]!r}, want an integer or null")
    _check_names(values, where, sources)
    return Rule(**values)


def _check_names(values: Mapping[str, Any], where: str, sources: Mapping[str, Any]) -> None:
    if not isinstance(values["route"], str):
        raise TableError(f"{where}.route: got {values['route']!r}, want a route's name")
    if values["source"] not in sources:
        raise TableError(f"{where}.source: got {values['source']!r}, want one of {', '.join(sources) or 'none'}")
