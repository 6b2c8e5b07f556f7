"""What tuning measured as a routing table: its rows, how a table grows by them, and how several become one.

A row's place is its size, its formats, the form of its weight, the number of compute units, the kind of CPU and its
route. What is
measured anew replaces what the table has in the same place; the other routes of a size stay, and so do other sizes,
formats, forms and machines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm import files
from mxgemm._version import __version__
from mxgemm.cpu import variants
from mxgemm.device import Machine, machine_of
from mxgemm.files import FileError
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.forms import SAID, Form
from mxgemm.measure.timing import CALL_METHOD
from mxgemm.measure.tune import Timing
from mxgemm.mx.prepared import is_made_on
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.routing.tables import Row, Table
from mxgemm.triton.support import triton_version

Place = tuple[int, int, int, str, str, str | None, int, str | None, str]
"""(M, N, K), formats of A and B, form of the weight, compute units, kind of CPU, route."""

_SIGNIFICANT: Final = 4
_MARK: Final = files.json_mark(tables.KIND)
_LOCK: Final = ".mxgemm-tables.lock"


def rows(timings: Iterable[Timing], device: torch.device, source: str) -> list[Row]:
    """Return a row for each place that something right was measured for, with its fastest configuration."""
    best: dict[Place, tuple[float, Timing]] = {}
    units, cpu = machine_of(device).cu_count, cpu_of(device)
    for timing in timings:
        place = place_of(timing, units, cpu)
        if timing.us is not None and (place not in best or timing.us < best[place][0]):
            best[place] = timing.us, timing
    return [
        Row(
            *(*timing.shape, timing.route, source, "measured", float(f"{us:.{_SIGNIFICANT}g}")),
            a_format=timing.a_format,
            cu_count=units,
            derived=timing.derived,
            cpu=cpu,
            config=timing.config.to_mapping(),
        )
        for us, timing in sorted(best.values(), key=lambda item: (item[1].shape, item[1].a_format, item[0]))
    ]


def of_all_forms(found: Sequence[Row], arch: str) -> list[Row]:
    """Return rows with those of the forms of a weight in which a row's route reads the same bytes there."""
    return [replace(row, derived=form) for row in found for form in alike(row.route, row.derived, arch)]


def cpu_of(device: torch.device) -> str | None:
    """Return the kind of a CPU that rows of it name, None for another device."""
    return variants.kind() or None if device.type == "cpu" else None


def places_of(timing: Timing, machine: Machine, cpu: str | None = None) -> set[Place]:
    """Return where a timing's row belongs, and those of :func:`of_all_forms`."""
    forms = alike(timing.route, timing.derived, machine.arch)
    return {place_of(replace(timing, derived=form), machine.cu_count, cpu) for form in forms}


def alike(route: str, form: str | None, arch: str) -> tuple[str | None, ...]:
    """Return the forms that ``prepare()`` makes on an architecture in which a route reads what it reads in this one."""
    every = ROUTES[route].alike if route in ROUTES else ()
    forms = next((forms for forms in every if form in forms), ())
    return tuple(one for one in forms if is_made_on(one, arch)) or (form,)


def place_of(timing: Timing, units: int, cpu: str | None = None) -> Place:
    """Return where a timing's row belongs, on a machine of so many compute units or of such a CPU."""
    return *timing.shape, timing.a_format, "e2m1", timing.derived, units, cpu, timing.route


def source_of(
    device: torch.device, form: Form, now: datetime | None = None, method: str = ""
) -> tuple[str, dict[str, str]]:
    """Return a name for this run, and what a table says about it: device, date, versions, what is timed.

    Args:
        device: that was measured.
        form: of the weights.
        now: when.
        method: how a time was taken, in words; by default as single calls are.
    """
    machine, version = machine_of(device), triton_version()
    how = method or CALL_METHOD[device.type]
    date = (now or datetime.now(timezone.utc)).isoformat(timespec="seconds")
    versions = [f"mxgemm {__version__}", f"torch {torch.__version__}"]
    versions += [f"triton {version[0]}.{version[1]}"] if version else []
    units = f", {machine.cu_count} compute units" if machine.cu_count else ""
    units += f" ({_cpu(device)}), {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"tune {date}{'' if form == 'fast' else f' {form}'}", {
        "title": f"mxgemm tune on {machine.name}{units}, {date}, {', '.join(versions)}",
        "scope": "call",
        "covers": f"{how}; weights {SAID[form]}",
    }


def existing(path: Path, arch: str, *, force: bool = False) -> Table | None:
    """Return the table that :func:`write` would add to, None if there is none.

    Args:
        path: of the table.
        arch: that it must be for.
        force: a file that is no such table is none, and will be replaced.

    Raises:
        TableError: the file is no table, or one for another architecture.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return None
    try:
        table = tables.load(path)
        if table.arch != arch:
            raise tables.TableError(f"{path}: got a table for {table.arch}, want one for {arch}, or another file")
    except tables.TableError as error:
        if force and path.is_file():
            return None
        hint = "; --force replaces it" if path.is_file() else ""
        raise tables.TableError(f"{error}{hint}") from error
    return table


def check_writable(path: Path, arch: str, *, force: bool = False) -> None:
    """Find out before the work whether :func:`write` will be able to.

    Raises:
        FileError: the file is no table for ``arch`` and ``force`` is not set, or cannot be written.
    """
    ours = existing(path, arch, force=force) is not None
    files.check_writable(path, _MARK, force=force or ours)


def add(
    path: Path,
    arch: str,
    sources: Mapping[str, Mapping[str, str]],
    measured: Sequence[Row],
    *,
    replaced: Collection[Place] = (),
    rules: Sequence[tables.Rule] = (),
    force: bool = False,
) -> None:
    """Write a table, or add to the one that is there.

    Whoever else adds to the same table meanwhile waits, in this process and in others.

    Args:
        path: of the table.
        arch: that it is for.
        sources: of the rows, by name.
        measured: new rows.
        replaced: places whose rows go although nothing new comes there: what was measured and is not right.
        rules: new rules, behind those of the table.
        force: see :func:`existing`.

    Raises:
        FileError: as :func:`check_writable`.
        OSError: there is no place for the lock.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(target.parent / _LOCK):
        old = existing(path, arch, force=force)
        text = text_of(document_of(arch, sources, measured, old, replaced=replaced, rules=rules))
        files.write(path, text, _MARK, force=force or old is not None)


def write(
    path: Path,
    arch: str,
    sources: Mapping[str, Mapping[str, str]],
    measured: Sequence[Row],
    **more: Any,
) -> None:
    """Add to a table as :func:`add`; what cannot be written there is kept elsewhere.

    Raises:
        FileError: as :func:`check_writable`; the message says where the rows are instead.
    """
    try:
        add(path, arch, sources, measured, **more)
    except (FileError, OSError) as error:
        alone = text_of(document_of(arch, sources, measured, None, rules=more.get("rules", ())))
        raise FileError(f"{error}; {files.rescue(path.name, alone)}") from error


def merge(path: Path, others: Sequence[Path], *, force: bool = False) -> Table:
    """Add tables to one, each after the other: of two rows for one place a measured one stays, else the later one.

    Args:
        path: of the table to write or to add to.
        others: tables of one architecture.
        force: see :func:`existing`.

    Returns:
        the table as it is then.

    Raises:
        TableError: one of the others is no table, or of another architecture; nothing is written then.
        FileError: as :func:`write`.
    """
    found = [tables.load(other) for other in others]
    arch = found[0].arch
    for table in found:
        if table.arch != arch:
            raise tables.TableError(f"{table.path}: got a table for {table.arch}, want one for {arch}, as the first is")
    check_writable(path, arch, force=force)
    mine = existing(path, arch, force=force)
    measured = {place_of_row(row) for row in mine.rows if row.grade == "measured"} if mine else set()
    sources: dict[str, Mapping[str, str]] = dict(mine.sources) if mine else {}
    places: dict[Place, Row] = {}
    rules: list[tables.Rule] = []
    for table in found:
        names = _added(sources, table.sources)
        rules += [replace(rule, source=names[rule.source]) for rule in table.rules]
        for row in table.rows:
            place = place_of_row(row)
            if row.grade == "measured" or place not in measured:
                places[place] = replace(row, source=names[row.source])
            if row.grade == "measured":
                measured.add(place)
    write(path, arch, sources, list(places.values()), rules=rules, force=force)
    return tables.load(path)


def document_of(
    arch: str,
    sources: Mapping[str, Mapping[str, str]],
    measured: Sequence[Row],
    old: Table | None,
    *,
    replaced: Collection[Place] = (),
    rules: Sequence[tables.Rule] = (),
) -> dict[str, Any]:
    """Return a table of what was measured, added to an old one where there is one."""
    gone = {place_of_row(row) for row in measured} | set(replaced)
    kept = [row for row in old.rows if place_of_row(row) not in gone] if old else []
    every = list(dict.fromkeys((*(old.rules if old else ()), *rules)))
    rows = [*kept, *measured]
    used = {row.source for row in rows} | {rule.source for rule in every}
    known = {**(old.sources if old else {}), **sources}
    document = {
        "kind": tables.KIND,
        "version": tables.VERSION,
        "arch": arch,
        "sources": {name: dict(text) for name, text in known.items() if name in used},
        "rules": [_without_defaults(rule) for rule in every],
        "rows": [_without_defaults(row) | _config_of(row) for row in in_order(rows)],
    }
    tables.parse(document, "what was measured")  # nobody shall find a table that cannot be read
    return document


def text_of(document: Mapping[str, Any]) -> str:
    """Return a table as its file holds it: a line a row, so that what a run changes can be read."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["rows"])
    head = json.dumps({name: value for name, value in document.items() if name != "rows"}, indent=1)
    return f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n' if rows else f'{head[:-2]},\n "rows": []\n}}\n'


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Sort rows by weight, M, formats and form, the fastest route first; equal ones stay as they come."""
    return sorted(
        rows,
        key=lambda row: (
            *(row.n, row.k, row.m, row.a_format, row.b_format, row.derived or "", row.us is None, row.us or 0.0),
        ),
    )


def _without_defaults(one: Row | tables.Rule) -> dict[str, Any]:
    return {
        field.name: getattr(one, field.name)
        for field in fields(one)
        if field.name != "config" and getattr(one, field.name) != field.default
    }


def _config_of(row: Row) -> dict[str, Any]:
    """Return what a row says of its configuration: no value that is the default, but one value where there are any."""
    if not row.config:
        return {}
    plain = ROUTES[row.route].config_type().to_mapping() if row.route in ROUTES else {}
    other = {name: value for name, value in row.config.items() if name not in plain or value != plain[name]}
    return {"config": other or dict(row.config)}


def place_of_row(row: Row) -> Place:
    """Return the place of a row."""
    return row.m, row.n, row.k, row.a_format, row.b_format, row.derived, row.cu_count, row.cpu, row.route


def _cpu(device: torch.device) -> str:
    name, kind = describe_environment(device)["device"], cpu_of(device)
    return f"{name}, {kind}" if kind else str(name)


def _added(known: dict[str, Mapping[str, str]], more: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Add sources to those that are known, and return the names that they have now: two runs may share one."""
    names = {}
    for name, text in more.items():
        new, number = name, 1
        while known.get(new, text) != text:
            number += 1
            new = f"{name} ({number})"
        known[new] = text
        names[name] = new
    return names
