"""Rows that are measured anew: which tasks they were, and what became of their times.

Of rows whose kernels have changed since, or that a machine's driver has made old, no more is measured than they say.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mxgemm.measure.forms import FORMS, form_of_kind
from mxgemm.measure.tune import Task
from mxgemm.measure.tuned import Place, alike, place_of_row
from mxgemm.routes import ROUTES
from mxgemm.routing.tables import Row, Table


class Again(NamedTuple):
    """What rows ask for.

    Attributes:
        tasks: each once, the sizes of one weight one after the other.
        routes: that are measured on each.
    """

    tasks: list[Task]
    routes: list[str]


class Change(NamedTuple):
    """What became of the rows of one route that a table had.

    Attributes:
        route: its name.
        rows: how many there were.
        median: of the times now over those before.
        least: of these.
        most: of these.
    """

    route: str
    rows: int
    median: float
    least: float
    most: float


def again(table: Table, source: str, routes: Sequence[str] = ()) -> Again:
    """Return what the rows of a table whose source's name holds ``source`` were measured on.

    Args:
        table: that has them.
        source: a part of its name; "" for all sources.
        routes: of the rows; none for all. These are the routes that are measured.

    Raises:
        ValueError: there are no such rows that tuning can measure.
    """
    rows = [row for row in table.rows if source in row.source and (not routes or row.route in routes)]
    rows = [row for row in rows if row.b_format == "e2m1" and row.route in ROUTES]
    tasks = dict.fromkeys(_task(row, table.arch) for row in rows)
    if not tasks:
        raise ValueError(f"--again: {table.path} has no row whose source's name holds {source!r} and that can be tuned")
    ordered = sorted(tasks, key=lambda task: (task.shape[1:], FORMS.index(task.form), task.shape[0], task.a_format))
    return Again(ordered, list(routes) or [name for name in ROUTES if any(row.route == name for row in rows)])


def before(rows: Iterable[Row], old: Table | None) -> dict[Place, float]:
    """Return the times that a table had in the places of rows, or had there for any CPU."""
    had = {place_of_row(row): row.us for row in old.rows if row.us is not None} if old else {}
    found = {}
    for row in rows:
        us = had.get(place_of_row(row), had.get(place_of_row(replace(row, cpu=None))))
        if us is not None:
            found[place_of_row(row)] = us
    return found


def changes(rows: Iterable[Row], had: Mapping[Place, float]) -> list[Change]:
    """Sum up what became of the times of each route."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        us = had.get(place_of_row(row))
        if us is not None and row.us is not None:
            ratios.setdefault(row.route, []).append(row.us / us)
    return [
        Change(route, len(found), statistics.median(found), min(found), max(found)) for route, found in ratios.items()
    ]


def _task(row: Row, arch: str) -> Task:
    """Return what a row was measured on; of the forms in which its route reads the same bytes the first, or none."""
    forms = alike(row.route, row.derived, arch)
    form = form_of_kind(None if "" in forms else forms[0])
    return Task((row.m, row.n, row.k), row.a_format, form)  # type: ignore[arg-type]
