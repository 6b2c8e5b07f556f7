"""Routing tables: what was measured or predicted, as checked data.

A table is a JSON object for one architecture::

    {"kind": "mxgemm-routing-table", "version": 1, "arch": "gfx950",
     "sources": {"aiter": {"title": "...", "url": "...", "scope": "call", "covers": "what the microseconds include"}},
     "rules": [{"m_max": 32, "k_max": 1024, "route": "a16wfp4", "source": "..."}],
     "rows":  [{"m": 64, "n": 7168, "k": 2048, "route": "ck_gemm", "config": {}, "us": 6.81,
                "grade": "measured", "source": "aiter"}]}

A source's ``scope`` is "call" where its microseconds are those of a whole call, as they are without the field, or
"kernel" where they are those of the GEMM kernel alone: such rows do not choose between routes (see ``router.py``).
Rows may name ``a_format``, ``b_format`` (default "e2m1"), ``cu_count`` and ``derived``, the kind of prepared weight
that they speak for ("" is none; without the field any, behind rows of the kind), and ``cpu``, the kind of CPU that
they hold for (``mxgemm.cpu.variants.kind``; without the field any, behind rows of the kind). Rules, which may name one
too, are tried in order when no row fits. Tables that a user names in ``MXGEMM_TABLES`` (paths, separated like PATH) go
first, then the one that ``mxgemm tune`` keeps in the user's cache folder, then the shipped ones. ``MXGEMM_TABLES=""``
leaves the shipped ones alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from mxgemm import build_cache
from mxgemm.cpu import variants
from mxgemm.device import cpu_features
from mxgemm.fields import Check, anything, document, each, every, integer, number, one_of, optional, record, text
from mxgemm.files import FileError, read_json
from mxgemm.mx.formats import ACTIVATION_FORMATS, FORMATS

TABLES_VARIABLE: Final = "MXGEMM_TABLES"
KIND: Final = "mxgemm-routing-table"
VERSION: Final = 1
LARGEST: Final = 1 << 40
"""Of M, N and K in a row."""

Grade = Literal["measured", "predicted"]
Scope = Literal["call", "kernel"]

logger = logging.getLogger("mxgemm")


class TableError(FileError):
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
    derived: str | None = None
    cpu: str | None = None
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
    cpu_feature: str | None = None
    cpu: str | None = None

    def applies(self, m: int, n: int, k: int, a_format: str, derived: str) -> bool:
        """Say whether a problem lies within the bounds; ``derived`` is what ``prepare()`` made of its weight."""
        return (
            (self.derived is None or self.derived == derived)
            and (self.nk_min is None or n * k >= self.nk_min)
            and (self.m_max is None or m <= self.m_max)
            and (self.k_max is None or k <= self.k_max)
            and (self.a_format is None or self.a_format == a_format)
            and (self.cpu_feature is None or self.cpu_feature in cpu_features())
            and (self.cpu is None or self.cpu == variants.kind())
        )

    def __str__(self) -> str:
        bounds = [f"{name} <= {top}" for name, top in (("M", self.m_max), ("K", self.k_max)) if top is not None]
        if self.nk_min is not None:
            bounds.append(f"N K >= {self.nk_min}")
        if self.a_format:
            bounds.append(f"a_format {self.a_format}")
        if self.cpu_feature:
            bounds.append(f"a CPU with {self.cpu_feature}")
        if self.cpu:
            bounds.append(f"a CPU of kind {self.cpu}")
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
        TableError: no file that can be read, no JSON, of another kind or version, or a field of the wrong form.
    """
    try:
        return parse(read_json(path), str(path))
    except FileError as error:
        raise TableError(str(error)) from error


@cache
def shipped(arch: str) -> tuple[Table, ...]:
    """Return the tables that come with the package for an architecture."""
    return tuple(load(path) for path in sorted(shipped_folder().glob(f"{arch}*.json")))


def shipped_folder() -> Path:
    """Find ``routing_tables``: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
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


def own_path(arch: str) -> Path:
    """Return where ``mxgemm tune`` keeps the user's table of an architecture: ``tables`` in the cache folder.

    Raises:
        CacheUnusable: an OSError: there is no cache folder, see ``mxgemm.build_cache.folder``.
    """
    return build_cache.folder() / "tables" / f"{arch}.json"


@cache
def own(arch: str) -> tuple[Table, ...]:
    """Return the user's table, read once per architecture and process; none where ``MXGEMM_TABLES`` is set to nothing.

    One that cannot be used is named in a warning and left out.
    """
    if os.environ.get(TABLES_VARIABLE) == "":
        return ()
    try:
        path = own_path(arch)
        return from_user(arch, [path]) if os.path.lexists(path) else ()
    except OSError:  # no home folder, or one that may not be entered: there is no table
        return ()


def of_user(arch: str) -> tuple[Table, ...]:
    """Return the tables that go before the shipped ones, the first first."""
    return (*from_environment(arch), *own(arch))


def parse(raw: Any, path: str) -> Table:
    """Check a document that :func:`load` read, or that is to be written.

    Raises:
        FileError: a field is not what it should be.
    """
    document(KIND, VERSION)(raw, path)
    _ARCH(raw.get("arch"), f"{path}: arch")
    sources = raw.get("sources", {})
    each(_SOURCE)(sources, f"{path}: sources")
    source = one_of(sources)
    every(record({**_RULE, "source": source}, _RULE_MORE))(raw.get("rules", []), f"{path}: rules")
    every(record({**_ROW, "source": source}, _ROW_MORE))(raw.get("rows", []), f"{path}: rows")
    rules = tuple(Rule(**item) for item in raw.get("rules", []))
    rows = tuple(Row(**item) for item in raw.get("rows", []))
    by_weight: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        by_weight.setdefault((row.n, row.k), []).append(row)
    return Table(path, raw["arch"], sources, rules, rows, {key: tuple(value) for key, value in by_weight.items()})


_BOUND: Final = integer(0, 1 << 59, "an integer from 0 to 2^59 or null")
_SIZE: Final = integer(1, LARGEST, "a positive integer up to 2^40")
_TEXT: Final = text("printable text", empty=True)
_ARCH: Final = text("an architecture's name")
_SOURCE: Final = record({}, {"title": _TEXT, "covers": _TEXT, "scope": one_of(get_args(Scope))}, closed=False)
_DERIVED: Final = optional(text("a form that prepare() makes, or null", empty=True))
_CPU: Final = optional(text("a kind of CPU as mxgemm doctor names it, or null"))
_RULE: Final[dict[str, Check]] = {"route": text("a route's name")}
_RULE_MORE: Final[dict[str, Check]] = {
    "m_max": optional(_BOUND),
    "k_max": optional(_BOUND),
    "nk_min": optional(_BOUND),
    "cpu_feature": optional(text("a feature of a CPU as Linux names it, or null")),
    "a_format": optional(one_of([*ACTIVATION_FORMATS, *FORMATS])),
    "derived": _DERIVED,
    "cpu": _CPU,
}
_ROW: Final[dict[str, Check]] = {
    "m": _SIZE,
    "n": _SIZE,
    "k": _SIZE,
    "route": text("a route's name"),
    "grade": one_of(get_args(Grade)),
}
_ROW_MORE: Final[dict[str, Check]] = {
    "us": optional(number(0, "finite microseconds above 0, or null")),
    "a_format": one_of(dict.fromkeys([*ACTIVATION_FORMATS, *FORMATS])),
    "b_format": one_of(FORMATS),
    "cu_count": integer(0, 1 << 20),
    "derived": _DERIVED,
    "cpu": _CPU,
    "config": each(anything),
}
