"""From a problem to a route and a configuration, with the reason for the choice and of every refusal.

Order of the look-up: the route that the caller named; table rows for exactly this size; rows for the same weight
(N, K) at the nearest M; rows for the nearest weight; rules; every route in registry order. User tables go before
shipped ones at each step. A row counts only if nothing that its route needs is missing, its route can take the problem
and its configuration is legal.

A row whose microseconds are those of the GEMM kernel alone cannot be compared with what times or rules a whole call. It
never turns a choice to another route: it gives its configuration to its own one, where a rule or the row of a whole
call that names no configuration has chosen that; the nearest legal one does. With the first usable rule's route it
stands where it is: before whole calls of farther steps, behind those of its own. Only where neither a rule nor a whole
call speaks is the row's route taken, before registry order.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from mxgemm.errors import Refusal, Refused, RouteUnavailable
from mxgemm.mx.layouts import FRAGMENTS
from mxgemm.notices import say_once
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config, Route
from mxgemm.routing.tables import Row, Scope, Table, from_environment, from_user, shipped

NEAREST_M_OCTAVES: Final = 2.0
"""Rows of the same weight speak for an M up to this many powers of two away."""
NEAREST_WEIGHT_OCTAVES: Final = 1.0
"""Rows of another weight speak for an N, a K and an M up to this many powers of two away each."""
LAST_RESORT: Final = "reference"
"""The route that takes everything, slowly."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the router decided.

    Attributes:
        route: the route.
        config: its configuration.
        reason: which row or rule decided, in words.
        source: where that row or rule comes from.
        row: the table row behind the choice or its configuration, if one was.
        covers: what the row's microseconds include.
        scope: whether they are those of a whole call or of the GEMM kernel alone.
        refusals: what was considered before and could not be taken.
    """

    route: Route
    config: Config
    reason: str
    source: str
    row: Row | None = None
    covers: str = ""
    scope: Scope = "call"
    refusals: tuple[Refused, ...] = ()


class _Found(NamedTuple):
    """A row that speaks for the problem, where it stands, and why it speaks."""

    table: Table
    row: Row
    reason: str

    @property
    def scope(self) -> Scope:
        return self.table.scope_of(self.row)

    @property
    def title(self) -> str:
        return _title(self.table, self.row.source)

    @property
    def covers(self) -> str:
        return self.table.sources[self.row.source].get("covers", "")


@dataclass
class _Search:
    """One look-up: the problem, the tables, and the refusals met so far, each once."""

    problem: Problem
    tables: tuple[Table, ...]
    refusals: dict[tuple[str, str, str], Refused] = field(default_factory=dict)
    routes: dict[str, Route | None] = field(default_factory=dict)

    def rows(self) -> Iterator[_Found]:
        """Yield the rows that speak for the problem: the nearest step first, in it whole calls first."""
        for step in (_same_size, _same_weight, _near_weight):
            found = [found for table in self.tables for found in step(self.problem, table)]
            yield from sorted(found, key=lambda found: found.scope != "call")

    @cached_property
    def rule(self) -> Choice | None:
        """What the first rule that applies, and whose route can be taken, chooses."""
        p = self.problem
        for table in self.tables:
            for rule in table.rules:
                if rule.applies(p.m, p.n, p.k, p.a_format, _kept_as(p)):
                    route = self.usable(rule.route)
                    if route:
                        return self.configured(route, f"rule: {rule}", _title(table, rule.source))
        return None

    def refuse(self, route: str, refusal: Refusal) -> None:
        self.refusals.setdefault((route, refusal.field, str(refusal.value)), Refused(route, refusal))

    def usable(self, name: str) -> Route | None:
        if name not in self.routes:
            route = ROUTES.get(name)
            if route is None:
                needed = "a release of mxgemm that has it"
                refusal: Refusal | None = Refusal("route", "not in this release", needed, "installation")
            else:
                refusal = route.refusal(self.problem)
            if refusal:
                self.refuse(name, refusal)
            self.routes[name] = None if refusal else route
        return self.routes[name]

    def config_of(self, found: _Found, route: Route) -> Config | None:
        """Return the legal configuration that a row names for its route, None where it names none or another."""
        row = found.row
        try:
            config = route.config_type.from_mapping(row.config)
        except ValueError as error:
            needed = f"a legal row in {found.table.path}: {error}"
            self.refuse(row.route, Refusal("config", dict(row.config), needed, "installation"))
            return None
        refusal = route.check_config(self.problem, config)
        if refusal:
            self.refuse(route.name, refusal)
        return None if refusal else config

    def take_row(self, found: _Found, reason: str) -> Choice | None:
        row = found.row
        route = self.usable(row.route)
        if route is None:
            return None
        if row.config:
            config = self.config_of(found, route)
            return Choice(route, config, reason, found.title, row, found.covers, found.scope) if config else None
        chosen = self.configured(route, reason, found.title)
        return replace(chosen, row=row, covers=found.covers, scope=found.scope)

    def configured(self, route: Route, reason: str, source: str) -> Choice:
        """Choose a route for a reason that names no configuration: the nearest kernel row's, or the route's guess."""
        for found in self.rows():
            if found.scope == "kernel" and found.row.route == route.name and found.row.config:
                config = self.config_of(found, route)
                if config:
                    reason = f"{reason}; config from the kernel-only {found.reason}"
                    source = f"{source}; config: {found.title}"
                    return Choice(route, config, reason, source, found.row, found.covers, "kernel")
        return Choice(route, route.configs(self.problem)[0], reason, source)

    def done(self, choice: Choice) -> Choice:
        return replace(choice, refusals=tuple(self.refusals.values()))


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
    arch = problem.arch
    own = from_environment(arch) if tables is None else from_user(arch, tables)
    search = _Search(problem, (*own, *shipped(arch)))
    return search.done(_free(search) if route is None else _forced(search, route))


def _free(search: _Search) -> Choice:
    for found in search.rows():
        if found.scope == "call":
            chosen = search.take_row(found, found.reason)
            if chosen:
                return chosen
        elif search.rule and search.rule.row is found.row:
            return search.rule
    if search.rule:
        return search.rule
    for found in search.rows():  # no whole call and no rule speaks for another route than these
        chosen = search.take_row(found, found.reason)
        if chosen:
            return chosen
    for name in ROUTES:
        route = search.usable(name)
        if route:
            return search.configured(route, "the first route that can", "registry order")
    raise AssertionError("the reference route takes every problem")


def _forced(search: _Search, name: str) -> Choice:
    route = search.usable(name)
    if route is None:
        raise RouteUnavailable(name, next(iter(search.refusals.values())).refusal)
    for found in search.rows():
        if found.row.route == name:
            what = f"config from the {found.reason}" if found.row.config else found.reason
            chosen = search.take_row(found, f"asked for; {what}")
            if chosen:
                return chosen
    return Choice(route, route.configs(search.problem)[0], "asked for", "the caller")


def _same_size(problem: Problem, table: Table) -> Iterator[_Found]:
    for row in _ranked(problem, table.by_weight.get((problem.n, problem.k), ())):
        if row.m == problem.m:
            yield _Found(table, row, f"{row.grade} row for exactly this size")


def _same_weight(problem: Problem, table: Table) -> Iterator[_Found]:
    for row in _ranked(problem, table.by_weight.get((problem.n, problem.k), ())):
        if row.m != problem.m and _octaves(row.m, problem.m) <= NEAREST_M_OCTAVES:
            yield _Found(table, row, f"{row.grade} row for the same weight at the nearest M = {row.m}")


def _near_weight(problem: Problem, table: Table) -> Iterator[_Found]:
    others = [
        row
        for (n, k), rows in table.by_weight.items()
        if (n, k) != (problem.n, problem.k)
        and max(_octaves(n, problem.n), _octaves(k, problem.k)) <= NEAREST_WEIGHT_OCTAVES
        for row in rows
        if _octaves(row.m, problem.m) <= NEAREST_WEIGHT_OCTAVES
    ]
    for row in _ranked(problem, others):
        yield _Found(table, row, f"{row.grade} row for the nearest size (M, N, K) = ({row.m}, {row.n}, {row.k})")


def _ranked(problem: Problem, rows: Iterable[Row]) -> list[Row]:
    """Sort the rows of the same formats and form by distance in octaves; measured before predicted.

    The same CU count is a tie-break, never a condition; so is that a row names the form.
    """

    def rank(row: Row) -> tuple[float, bool, bool, bool, float]:
        distance = _octaves(row.m, problem.m) + _octaves(row.n, problem.n) + _octaves(row.k, problem.k)
        other_machine = row.cu_count not in (0, problem.machine.cu_count)
        us = row.us if row.us is not None else math.inf
        return distance, other_machine, row.grade != "measured", row.derived is None, us

    formats = problem.a_format, problem.b_format
    fitting = (
        row for row in rows if (row.a_format, row.b_format) == formats and row.derived in (None, _form_of(problem))
    )
    return sorted(fitting, key=rank)


def _kept_as(problem: Problem) -> str:
    """Return the prepared form that rules name: fragment order alone is one, which few routes multiply."""
    return FRAGMENTS if problem.weight_layout == FRAGMENTS else problem.derived


def _form_of(problem: Problem) -> str:
    """Return the prepared form whose rows speak for a weight: its fragment order alone is read as "bf16" brings it."""
    return "bf16" if problem.weight_layout == FRAGMENTS else problem.derived


def _title(table: Table, source: str) -> str:
    return table.sources[source].get("title", source)


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(a / b))


def tell(choice: Choice, problem: Problem) -> None:
    """Log, once a process and reason, that a call passed something over because of what is installed here.

    What another kind of machine would have, and what another call could take, is no news: ``explain`` has it. But where
    nothing is left for a GPU's call except the last resort, that is said too.
    """
    slow = choice.route.name == LAST_RESORT and problem.arch != "cpu"
    for refused in choice.refusals:
        refusal = refused.refusal
        if refusal.about == "installation" or (slow and refusal.about == "call"):
            # Two routes that miss the same thing say so in one line.
            what = refusal.value if refusal.missing else refused.route
            key = problem.arch, refusal.about, refusal.field, str(what)
            say_once(f"using {choice.route.name} on {problem.arch}; {refused}", key)
