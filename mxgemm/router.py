"""From a problem to a route and a configuration, with the reason for the choice and of every refusal.

Order of the look-up: the route that the caller named; table rows for exactly this size; rows for the same weight
(N, K) at the nearest M; rows for the nearest weight; rules; every route in registry order. User tables go before
shipped ones at each step. A row counts only if its route can take the problem and its configuration is legal.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config, Route
from mxgemm.tables import Row, Table, from_environment, from_user, shipped

NEAREST_M_OCTAVES: Final = 2.0
"""Rows of the same weight speak for an M up to this many powers of two away."""
NEAREST_WEIGHT_OCTAVES: Final = 1.0
"""Rows of another weight speak for an N, a K and an M up to this many powers of two away each."""

logger = logging.getLogger("mxgemm")
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Choice:
    """What the router decided.

    Attributes:
        route: the route.
        config: its configuration.
        reason: which row or rule decided, in words.
        source: where that row or rule comes from.
        row: the table row behind the choice, if one was.
        covers: what the row's microseconds include.
        refusals: what was considered before and could not be taken.
    """

    route: Route
    config: Config
    reason: str
    source: str
    row: Row | None = None
    covers: str = ""
    refusals: tuple[Refusal, ...] = ()


@dataclass(slots=True)
class _Search:
    """One look-up: the problem, and the refusals met so far, each once."""

    problem: Problem
    refusals: dict[tuple[str, str, str], Refusal] = field(default_factory=dict)

    def refuse(self, refusal: Refusal) -> None:
        self.refusals.setdefault((refusal.route, refusal.field, str(refusal.value)), refusal)

    def usable(self, name: str) -> Route | None:
        route = ROUTES.get(name)
        if route is None:
            self.refuse(Refusal(name, "route", "not in this release", "a release of mxgemm that has it"))
            return None
        refusal = route.can_implement(self.problem)
        if refusal is None:
            return route
        self.refuse(refusal)
        return None

    def take_row(self, row: Row, reason: str, table: Table) -> Choice | None:
        route = self.usable(row.route)
        if route is None:
            return None
        try:
            config = route.config_type.from_mapping(row.config) if row.config else route.configs(self.problem)[0]
        except ValueError as error:
            self.refuse(Refusal(row.route, "config", dict(row.config), f"a legal row in {table.path}: {error}"))
            return None
        refusal = route.check_config(self.problem, config)
        if refusal:
            self.refuse(refusal)
            return None
        origin = table.sources[row.source]
        return self.choice(route, config, reason, origin.get("title", row.source), row, origin.get("covers", ""))

    def take(self, name: str, reason: str, source: str) -> Choice | None:
        route = self.usable(name)
        return self.choice(route, route.configs(self.problem)[0], reason, source) if route else None

    def choice(
        self, route: Route, config: Config, reason: str, source: str, row: Row | None = None, covers: str = ""
    ) -> Choice:
        return Choice(route, config, reason, source, row, covers, tuple(self.refusals.values()))


def choose(
    problem: Problem, *, route: str | None = None, tables: Iterable[str | os.PathLike[str]] | None = None
) -> Choice:
    """Choose a route and a configuration.

    Args:
        problem: what to compute, and where.
        route: a route's name to force it.
        tables: paths of tables that go before the shipped ones, instead of those in ``MXGEMM_TABLES``.

    Raises:
        RouteUnavailable: ``route`` was named and cannot take the problem.
    """
    search = _Search(problem)
    arch = problem.arch
    own = from_environment(arch) if tables is None else from_user(arch, tables)
    every_table = (*own, *shipped(arch))
    if route is not None:
        return _forced(search, route, every_table)
    for table, row, reason in _rows(problem, every_table):
        found = search.take_row(row, reason, table)
        if found:
            return found
    for table in every_table:
        for rule in table.rules:
            if rule.applies(problem.m, problem.n, problem.k, problem.a_format, problem.derived):
                title = table.sources[rule.source].get("title", rule.source)
                chosen = search.take(rule.route, f"rule: {rule}", title)
                if chosen:
                    return chosen
    for name in ROUTES:
        chosen = search.take(name, "the first route that can", "registry order")
        if chosen:
            return chosen
    raise AssertionError("the reference route takes every problem")


def _forced(search: _Search, name: str, tables: Iterable[Table]) -> Choice:
    route = search.usable(name)
    if route is None:
        raise RouteUnavailable(next(iter(search.refusals.values())))
    for table, row, reason in _rows(search.problem, tables):
        found = search.take_row(row, f"asked for; config from the {reason}", table) if row.route == name else None
        if found:
            return found
    return search.choice(route, route.configs(search.problem)[0], "asked for", "the caller")


def _rows(problem: Problem, tables: Iterable[Table]) -> Iterator[tuple[Table, Row, str]]:
    """Yield the rows that speak for a problem, the nearest first; tables in order within each step."""
    tables = tuple(tables)
    for table in tables:
        for row in _ranked(problem, _same_formats(problem, table.by_weight.get((problem.n, problem.k), ()))):
            if row.m == problem.m:
                yield table, row, f"{row.grade} row for exactly this size"
    for table in tables:
        for row in _ranked(problem, _same_formats(problem, table.by_weight.get((problem.n, problem.k), ()))):
            if row.m != problem.m and _octaves(row.m, problem.m) <= NEAREST_M_OCTAVES:
                yield table, row, f"{row.grade} row for the same weight at the nearest M = {row.m}"
    for table in tables:
        others = [
            row
            for (n, k), rows in table.by_weight.items()
            if (n, k) != (problem.n, problem.k)
            and max(_octaves(n, problem.n), _octaves(k, problem.k)) <= NEAREST_WEIGHT_OCTAVES
            for row in rows
            if _octaves(row.m, problem.m) <= NEAREST_WEIGHT_OCTAVES
        ]
        for row in _ranked(problem, _same_formats(problem, others)):
            yield table, row, f"{row.grade} row for the nearest size (M, N, K) = ({row.m}, {row.n}, {row.k})"


def _same_formats(problem: Problem, rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if (row.a_format, row.b_format) == (problem.a_format, problem.b_format)]


def _ranked(problem: Problem, rows: Iterable[Row]) -> list[Row]:
    """Sort by distance in octaves; measured before predicted; the same CU count is a tie-break, never a condition."""

    def rank(row: Row) -> tuple[float, bool, bool, float]:
        distance = _octaves(row.m, problem.m) + _octaves(row.n, problem.n) + _octaves(row.k, problem.k)
        other_machine = row.cu_count not in (0, problem.machine.cu_count)
        return distance, other_machine, row.grade != "measured", row.us if row.us is not None else math.inf

    return sorted(rows, key=rank)


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(a / b))


def tell(choice: Choice, problem: Problem) -> None:
    """Log, once per reason, that a GPU's call passed a better route over because something is missing."""
    if choice.row is None and problem.arch != "cpu":
        for refusal in choice.refusals:
            # Two routes that miss the same thing say so in one line.
            reason = f"{choice.route.name} {problem.arch} {refusal.field} {refusal.value}"
            if reason not in _told:
                _told.add(reason)
                logger.warning("using %s on %s; %s", choice.route.name, problem.arch, refusal)
