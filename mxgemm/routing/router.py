"""From a problem to a route and a configuration, with the reason for the choice and of every refusal.

Order of the look-up: the route that the caller named; table rows for exactly this size; rows for the same weight
(N, K) at other M; rows for the nearest weight; rules; every route in registry order (``nearby.py``). User tables go
before shipped ones at each step. The nearest row whose route can take the problem names a weight: of the routes that
have rows for it, the one that is the fastest at this M is taken, by its rows below and above. So along M the choice
changes where times cross, and nowhere else.

A row whose microseconds are those of the GEMM kernel alone cannot be compared with what times or rules a whole call. It
never turns a choice to another route: it gives its configuration to its own one, where a rule or the row of a whole
call that names no configuration has chosen that; the nearest legal one does. With the first usable rule's route it
stands where it is: before whole calls of farther steps, behind those of its own. Only where neither a rule nor a whole
call speaks is the row's route taken, before registry order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from mxgemm.errors import Refusal, Refused, RouteUnavailable
from mxgemm.notices import say_once
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config, Route
from mxgemm.routing.nearby import (
    Found,
    is_near,
    kept_as,
    near_weight,
    of_one_weight,
    same_size,
    same_weight,
    title_of,
    us_at,
)
from mxgemm.routing.tables import Row, Rule, Scope, Table, from_user, of_user, shipped

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
        table: path of the table whose row or rule that is, "" for those that come with the package.
        refusals: what was considered before and could not be taken.
    """

    route: Route
    config: Config
    reason: str
    source: str
    row: Row | None = None
    covers: str = ""
    scope: Scope = "call"
    table: str = ""
    refusals: tuple[Refused, ...] = ()


@dataclass
class _Search:
    """One look-up: the problem, the tables, and the refusals met so far, each once."""

    problem: Problem
    own: tuple[Table, ...]
    shipped: tuple[Table, ...]
    refusals: dict[tuple[str, str, str], Refused] = field(default_factory=dict)
    routes: dict[str, Route | None] = field(default_factory=dict)
    compared: dict[tuple[int, int, int, str], list[Found]] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them, the user's first."""
        return *self.own, *self.shipped

    def rows(self) -> Iterator[Found]:
        """Yield the rows that speak for the problem: the nearest step first, in it whole calls first."""
        for step in (same_size, same_weight, near_weight):
            found = [found for table in self.tables for found in step(self.problem, table)]
            yield from sorted(found, key=lambda found: found.scope != "call")

    @cached_property
    def first_rule(self) -> tuple[Route, Rule, Table] | None:
        """The first rule that applies and whose route can be taken."""
        p = self.problem
        for table in self.tables:
            for rule in table.rules:
                if rule.applies(p.m, p.n, p.k, p.a_format, kept_as(p)):
                    route = self.usable(rule.route)
                    if route:
                        return route, rule, table
        return None

    @cached_property
    def rule(self) -> Choice | None:
        """What that rule chooses."""
        if self.first_rule is None:
            return None
        route, rule, table = self.first_rule
        return self.configured(route, f"rule: {rule}", title_of(table, rule.source), table)

    def is_partial(self, found: Found) -> bool:
        """Say whether a shipped row speaks for routes that were never compared with the rule's.

        A table grows route by route. Of a weight that has no row of the route that a rule names here, the rows say
        nothing of that route, and what was measured at many rows of A would reach down to where the rule knows better.
        What a user has measured stands.
        """
        if self.is_own(found.table) or self.first_rule is None:
            return False
        named = self.first_rule[0].name
        return all(other.row.route != named for other in self.beside(found))

    def beside(self, found: Found) -> list[Found]:
        """Return the rows that can be compared with one, the nearest first."""
        key = id(found.table), found.row.n, found.row.k, found.row.grade
        if key not in self.compared:
            self.compared[key] = of_one_weight(self.problem, found)
        return self.compared[key]

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

    def config_of(self, found: Found, route: Route) -> Config | None:
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

    def take_call(self, found: Found) -> Choice | None:
        """Choose by the row of a whole call and those beside it: the route that is the fastest at this M by its rows.

        Its configuration is that of its nearest row whose configuration is legal. Where none is, and the nearest is one
        of another size, the route's guess serves: what does not fit here is the tile, and not the route. It also serves
        where the nearest is one of another weight, or far in M, if the route's guesses are fitted.
        """
        if self.usable(found.row.route) is None:
            return None
        if found.row.us is None:
            return self.take_row(found, found.reason)
        points: dict[str, dict[int, float]] = {}
        beside = self.beside(found)
        for other in beside:
            if other.row.us is not None and self.usable(other.row.route):
                points.setdefault(other.row.route, {}).setdefault(other.row.m, other.row.us)
        fastest = self.fastest(points)
        of_route = [other for other in beside if other.row.route == fastest]
        route, first = self.usable(fastest), of_route[0]
        size = self.problem.m, self.problem.n, self.problem.k
        if route is not None and route.fitted and not is_near(self.problem, first.row):
            return self.guessed(route, first, "; the configuration is the route's own for this size")
        for other in of_route:
            chosen = self.take_row(other, other.reason)
            if chosen:
                return chosen
        if route is None or size == (first.row.m, first.row.n, first.row.k) or not self.reads(first, route):
            return None
        return self.guessed(route, first, ", whose configuration is for another size: the route's guess")

    def fastest(self, points: Mapping[str, Mapping[int, float]]) -> str:
        """Return the route of the least time at this M; by its times at others.

        A rule's route goes before one whose rows are all for more rows of A, where its own are all for fewer: both
        times are bounds then, and the one in proportion to M is much the looser one.
        """
        m = self.problem.m
        first = min(points, key=lambda name: us_at(list(points[name].items()), m))
        named = self.first_rule[0].name if self.first_rule else first
        return named if named in points and max(points[named]) < m < min(points[first]) else first

    def guessed(self, route: Route, found: Found, why: str) -> Choice:
        """Choose the route of a row, with the route's own configuration."""
        chosen = self.configured(route, f"{found.reason}{why}", found.title, found.table)
        return replace(chosen, row=found.row, covers=found.covers, scope=found.scope)

    def reads(self, found: Found, route: Route) -> bool:
        """Say whether a row's configuration is one of this release, whatever it is for."""
        try:
            route.config_type.from_mapping(found.row.config)
        except ValueError:
            return False
        return True

    def take_row(self, found: Found, reason: str) -> Choice | None:
        row, where = found.row, self.named(found.table)
        route = self.usable(row.route)
        if route is None:
            return None
        if row.config:
            config = self.config_of(found, route)
            if config is None:
                return None
            return Choice(route, config, reason, found.title, row, found.covers, found.scope, where)
        chosen = self.configured(route, reason, found.title, found.table)
        return replace(chosen, row=row, covers=found.covers, scope=found.scope)

    def configured(self, route: Route, reason: str, source: str, table: Table | None = None) -> Choice:
        """Choose a route for a reason that names no configuration: the nearest kernel row's, or the route's guess."""
        where = "" if table is None else self.named(table)
        for found in self.rows():
            if found.scope == "kernel" and found.row.route == route.name and found.row.config:
                config = self.config_of(found, route)
                if config:
                    reason = f"{reason}; config from the kernel-only {found.reason}"
                    source = f"{source}; config: {found.title}"
                    return Choice(route, config, reason, source, found.row, found.covers, "kernel", where)
        return Choice(route, route.configs(self.problem)[0], reason, source, table=where)

    def named(self, table: Table) -> str:
        """Return a table's path, "" where it came with the package."""
        return table.path if self.is_own(table) else ""

    def is_own(self, table: Table) -> bool:
        """Say whether a table is the user's."""
        return any(table is one for one in self.own)

    def done(self, choice: Choice) -> Choice:
        return replace(choice, refusals=tuple(self.refusals.values()))


def choose(
    problem: Problem, *, route: str | None = None, tables: Iterable[str | os.PathLike[str]] | None = None
) -> Choice:
    """Choose a route and a configuration.

    Args:
        problem: what to compute, and where.
        route: a route's name to force it.
        tables: paths of tables that go before the shipped ones, instead of those in ``MXGEMM_TABLES`` and of the one
            in the user's cache folder.

    Raises:
        RouteUnavailable: ``route`` was named and cannot take the problem.
    """
    arch = problem.arch
    own = of_user(arch) if tables is None else from_user(arch, tables)
    search = _Search(problem, own, shipped(arch))
    return search.done(_free(search) if route is None else _forced(search, route))


def _free(search: _Search) -> Choice:
    for found in search.rows():
        if found.scope == "call":
            chosen = None if search.is_partial(found) else search.take_call(found)
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
        if found.row.route == name and (is_near(search.problem, found.row) or not route.fitted):
            what = f"config from the {found.reason}" if found.row.config else found.reason
            chosen = search.take_row(found, f"asked for; {what}")
            if chosen:
                return chosen
    return Choice(route, route.configs(search.problem)[0], "asked for", "the caller")


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
