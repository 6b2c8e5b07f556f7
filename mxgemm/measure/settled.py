"""What a table is without the rows that contradict others: a choice that flickers, a kernel that no warm-up compiles.

Two things are asked of the rows of a weight in one format and one form of it, along M:

* the fastest route changes at most :data:`MOST_CHANGES` times: more are noise where two routes take alike;
* what is taken at any M is taken at a size that ``mxgemm.warmup`` warms: a row that another route beats at its own M
  and that gives its configuration to others would have its kernel compiled in a call. Where its route would then be
  taken there by the rows around it, those go too.

The rows to go are as few as will do, those by which the routed time grows least, by all rows; of equal ones the first
in M and routes. Rows without a time, of the kernel alone, or for any form of the weight stay. That fewer rows of A take
longer than more by one route is no contradiction: vendors' products do so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from mxgemm.device import Machine
from mxgemm.measure import tuned
from mxgemm.problem import Config, Problem
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.routing.explain import problem_of
from mxgemm.routing.nearby import is_near, ranked, us_at
from mxgemm.routing.tables import Row, Table
from mxgemm.warmup import SIZES

MOST_CHANGES: Final = 3
_FINER: Final = 4
"""Steps an octave at which the choice is looked at, beside every warmed size and every row's M."""

Kind = tuple[int, int, str, str, str, str | None, int, str | None]
"""N, K, formats of A and B, grade, form of the weight, compute units, kind of CPU: rows that are compared."""


class Dropped(NamedTuple):
    """A row that goes.

    Attributes:
        row: which.
        why: in words.
    """

    row: Row
    why: str

    def __str__(self) -> str:
        row = self.row
        return f"{row.m},{row.n},{row.k} {row.a_format} {row.route}: {self.why}"


def contradictions(table: Table, machine: Machine, weights: Collection[tuple[int, int]] | None = None) -> list[Dropped]:
    """Return the rows of a table that go.

    Args:
        table: of this machine's architecture.
        machine: says which route takes which M.
        weights: (N, K) to look at; None for all.
    """
    found = []
    for (n, k), rows in table.by_weight.items():
        if weights is None or (n, k) in weights:
            timed = [row for row in rows if row.us is not None and table.scope_of(row) == "call"]
            for kind in dict.fromkeys(map(kind_of, timed)):
                found += _Rows(timed, kind, machine).settle()
    return found


def settle(path: Path, machine: Machine, weights: Collection[tuple[int, int]] | None = None) -> list[Dropped]:
    """Take the rows that contradict others out of a table's file, and return them.

    Args:
        path: of the table.
        machine: see :func:`contradictions`.
        weights: see :func:`contradictions`.

    Raises:
        FileError: the table cannot be read or written.
    """
    found = contradictions(tables.load(path), machine, weights)
    if found:
        tuned.write(path, machine.arch, {}, [], replaced={tuned.place_of_row(one.row) for one in found})
    return found


def kind_of(row: Row) -> Kind:
    """Return what a row is compared by."""
    return row.n, row.k, row.a_format, row.b_format, row.grade, row.derived, row.cu_count, row.cpu


Points = Mapping[str, Mapping[int, Row]]
"""By route and M."""


class _Rows:
    """Rows of one kind, and those for any form beside them, which stay."""

    def __init__(self, rows: Sequence[Row], kind: Kind, machine: Machine) -> None:
        self._kind, self._machine = kind, machine
        self._rows = [row for row in rows if row.route in ROUTES and _is_beside(kind_of(row), kind)]
        self._every = _points(self._rows)
        self._ms = _grid(self._every.values())
        self._usable = {m: [name for name in self._every if _takes(name, self._problem(m))] for m in self._ms}
        self._dropped: list[Dropped] = []

    def settle(self) -> list[Dropped]:
        while self._drop(self._flickering()) or self._drop(self._never_warm()):
            pass
        return self._dropped

    def _drop(self, found: list[Dropped]) -> bool:
        gone = {id(one.row) for one in found}
        self._rows = [row for row in self._rows if id(row) not in gone]
        self._dropped += found
        return bool(found)

    def _flickering(self) -> list[Dropped]:
        chosen = self._chosen(self._rows)
        before = _changes(chosen)
        if before <= MOST_CHANGES:
            return []
        best = min(self._sets(chosen), key=lambda rows: self._worth(rows, before), default=())
        why = f"the fastest route would change {before} times along M"
        return [Dropped(row, why) for row in best]

    def _worth(self, rows: Sequence[Row], before: int) -> tuple[bool, int, float]:
        """Return how good it is to drop rows, the least the best: fewer changes first, by few rows, at little cost."""
        gone = {id(row) for row in rows}
        chosen = self._chosen([row for row in self._rows if id(row) not in gone])
        return _changes(chosen) >= before, len(rows), self._cost(chosen)

    def _cost(self, chosen: Mapping[int, str]) -> float:
        """Return by how much a choice's times exceed the best, in logarithms, by all rows that there were."""
        times = {name: _times(rows) for name, rows in self._every.items()}
        total = 0.0
        for m, name in chosen.items():
            total += math.log(us_at(times[name], m) / min(us_at(times[one], m) for one in self._usable[m]))
        return round(total, 9)

    def _sets(self, chosen: Mapping[int, str]) -> Iterator[tuple[Row, ...]]:
        """Yield what may be dropped: each row, a route's rows where it is taken in one go, all rows of a route."""
        rows = sorted((row for row in self._rows if self._may_go(row)), key=lambda row: (row.m, row.route))
        yield from ((row,) for row in rows)
        for name, low, high in _runs(chosen):
            yield tuple(row for row in rows if row.route == name and low <= row.m <= high)
        for name in sorted({row.route for row in rows}):
            yield tuple(row for row in rows if row.route == name)

    def _never_warm(self) -> list[Dropped]:
        points = _points(self._rows)
        chosen = self._chosen(self._rows)
        taken = {m: self._row_of(points[name], m) for m, name in chosen.items()}
        warm = {(one[0].route, one[1]) for m, one in taken.items() if m in SIZES and one is not None}
        for m, one in sorted(taken.items()):
            if one is None:
                continue
            row, config = one
            if (row.route, config) not in warm and self._may_go(row):
                beaten = chosen.get(row.m, row.route)
                if beaten != row.route:
                    why = f"{beaten} takes less at M = {row.m}, and M = {m} would compile what no warm-up does"
                    return [Dropped(one, why) for one in min(self._around(row), key=partial(self._harm, row))]
        return []

    def _around(self, row: Row) -> Iterator[list[Row]]:
        """Yield what may go with a row: nothing, or its route's rows for more rows of A, or for fewer."""
        same = [one for one in self._rows if one.route == row.route and self._may_go(one)]
        yield [row]
        yield [one for one in same if one.m >= row.m]
        yield [one for one in same if one.m <= row.m]

    def _harm(self, row: Row, rows: Sequence[Row]) -> tuple[bool, float, int]:
        """Return how bad it is to drop rows: first, whether between others the route is taken where it is beaten."""
        gone = {id(one) for one in rows}
        chosen = self._chosen([one for one in self._rows if id(one) not in gone])
        return chosen.get(row.m) == row.route, self._cost(chosen), len(rows)

    def _row_of(self, rows: Mapping[int, Row], m: int) -> tuple[Row, Config | None] | None:
        """Return the row whose configuration the router takes, and that: the nearest one that is legal.

        None where no row decides, and the route's own guess serves.
        """
        problem = self._problem(m)
        nearest = ranked(problem, rows.values())
        if ROUTES[nearest[0].route].fitted and not is_near(problem, nearest[0]):
            return None
        for row in nearest:
            if not row.config:
                return row, None  # the route's guess, whichever it is
            try:
                config = ROUTES[row.route].config_type.from_mapping(row.config)
            except ValueError:  # of another release
                continue
            if ROUTES[row.route].check_config(problem, config) is None:
                return row, config
        return None

    def _chosen(self, rows: Iterable[Row]) -> dict[int, str]:
        """Return the fastest route at each M that some route takes."""
        times = {name: _times(rows) for name, rows in _points(rows).items()}
        found = {}
        for m in self._ms:
            usable = [name for name in self._usable[m] if name in times]
            if usable:
                found[m] = min(usable, key=lambda name: us_at(times[name], m))
        return found

    def _problem(self, m: int) -> Problem:
        n, k, a_format, _, _, derived, _, _ = self._kind
        return _problem(m, n, k, self._machine, a_format, derived)

    def _may_go(self, row: Row) -> bool:
        return kind_of(row) == self._kind


def _is_beside(one: Kind, kind: Kind) -> bool:
    """Say whether rows of one kind speak for another too: they are its, or for any form, GPU or CPU."""
    wider = all(a in (none, b) for a, b, none in zip(one[5:], kind[5:], (None, 0, None), strict=True))
    return wider and one[:5] == kind[:5]


@cache
def _problem(m: int, n: int, k: int, machine: Machine, a_format: str, derived: str | None) -> Problem:
    return problem_of(m, n, k, machine, a_format=a_format, derived=derived)


def _takes(route: str, problem: Problem) -> bool:
    """Say whether a route is for a call on such a machine; what is installed here does not count."""
    missing = ROUTES[route].missing(problem.machine)
    of_machine = missing is None or missing.about == "installation"
    return of_machine and ROUTES[route].can_implement(problem) is None


def _us(row: Row) -> float:
    assert row.us is not None
    return row.us


def _points(rows: Iterable[Row]) -> dict[str, dict[int, Row]]:
    """Sort rows by route and M; one that names the form or the machine goes before one for any."""
    found: dict[str, dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: (row.derived is None) + (row.cu_count == 0) + (row.cpu is None)):
        found.setdefault(row.route, {}).setdefault(row.m, row)
    return found


def _times(rows: Mapping[int, Row]) -> list[tuple[int, float]]:
    return [(m, _us(row)) for m, row in rows.items()]


def _grid(of_routes: Iterable[Iterable[int]]) -> list[int]:
    """Return what M is looked at, from the least to the largest of rows: also where the nearest row is another one."""
    rows, between = set[int](), set[int]()
    for ms in map(sorted, of_routes):
        rows.update(ms)
        between.update(math.isqrt(low * high) + more for low, high in itertools.pairwise(ms) for more in (0, 1))
    low, high = min(rows), max(rows)
    steps = {round(2 ** (step / _FINER)) for step in range(_FINER * high.bit_length() + 1)}
    return sorted(m for m in {*rows, *between, *steps, *SIZES, *(size - 1 for size in SIZES)} if low <= m <= high)


def _runs(chosen: Mapping[int, str]) -> Iterator[tuple[str, int, int]]:
    """Yield where a route is taken in one go: its name, the least and the largest M."""
    name, low, high = "", 0, 0
    for m, one in sorted(chosen.items()):
        if one != name:
            if name:
                yield name, low, high
            name, low = one, m
        high = m
    if name:
        yield name, low, high


def _changes(chosen: Mapping[int, str]) -> int:
    return max(0, len(list(_runs(chosen))) - 1)
