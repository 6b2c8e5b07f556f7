"""Rows of a table that speak for a problem, how near they are, and what they say of a route between them.

Three steps, the nearest first: rows for exactly the size; rows for the same weight (N, K), up to two octaves from M, or
anywhere between two rows of one route; rows for weights up to an octave away in N and in K, up to an octave from M or
between two rows as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mxgemm.cpu import variants
from mxgemm.mx.layouts import FRAGMENTS
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routing.tables import Row, Scope, Table

NEAREST_M_OCTAVES: Final = 2.0
"""Rows of the same weight speak for an M up to this many powers of two away."""
NEAREST_WEIGHT_OCTAVES: Final = 1.0
"""Rows of another weight speak for an N, a K and an M up to this many powers of two away each."""

PRESHUFFLED: Final = "preshuffled"
"""The order of a weight's bytes that is a form of its own to rows; rows of row-major ones speak for it too."""


class Found(NamedTuple):
    """A row that speaks for a problem, and where it stands."""

    table: Table
    row: Row
    reason: str

    @property
    def scope(self) -> Scope:
        """Say what its microseconds are those of."""
        return self.table.scope_of(self.row)

    @property
    def title(self) -> str:
        """Name its source."""
        return title_of(self.table, self.row.source)

    @property
    def covers(self) -> str:
        """Say what its microseconds include."""
        return self.table.sources[self.row.source].get("covers", "")


def same_size(problem: Problem, table: Table) -> Iterator[Found]:
    """Yield the rows for exactly this size, the best first."""
    yield from (found for found in _of_weight(problem, table) if found.row.m == problem.m)


def same_weight(problem: Problem, table: Table) -> Iterator[Found]:
    """Yield the rows for the same weight at another M, the nearest first."""
    every = list(_of_weight(problem, table))
    spans = _spans(found.row for found in every if found.scope == "call")
    for found in every:
        row = found.row
        if row.m != problem.m and _reaches(row, problem.m, NEAREST_M_OCTAVES, spans, found.scope):
            yield found


def near_weight(problem: Problem, table: Table) -> Iterator[Found]:
    """Yield the rows for other weights, those of the nearest size first."""
    others = list[Row]()
    for (n, k), rows in table.by_weight.items():
        far = max(_octaves(n, problem.n), _octaves(k, problem.k)) > NEAREST_WEIGHT_OCTAVES
        if far or (n, k) == (problem.n, problem.k):
            continue
        fitting = _fitting(problem, rows)
        spans = _spans(row for row in fitting if table.scope_of(row) == "call")
        for row in fitting:
            if _reaches(row, problem.m, NEAREST_WEIGHT_OCTAVES, spans, table.scope_of(row)):
                others.append(row)
    for row in ranked(problem, others):
        yield Found(table, row, _reason(problem, row))


def of_one_weight(problem: Problem, found: Found) -> list[Found]:
    """Return the rows of whole calls that can be compared with one: of its table, its weight and its grade."""
    table, row = found.table, found.row
    rows = ranked(problem, _fitting(problem, table.by_weight[row.n, row.k]))
    return [
        Found(table, other, _reason(problem, other))
        for other in rows
        if other.grade == row.grade and table.scope_of(other) == "call"
    ]


def is_near(problem: Problem, row: Row) -> bool:
    """Say whether a row is for the same weight, and for an M so near that it speaks by itself."""
    same = (row.n, row.k) == (problem.n, problem.k)
    return same and _octaves(row.m, problem.m) <= NEAREST_M_OCTAVES


def us_at(points: Sequence[tuple[int, float]], m: int) -> float:
    """Return what a route takes at M by its rows at others.

    Between two rows times are powers of M. Fewer rows of A than the first row has take no longer than that one; more
    than the last has take longer in proportion at most: both are bounds that no route's kernels exceed by much.

    Args:
        points: (M, microseconds), at least one, each M once.
        m: rows of A.
    """
    points = sorted(points)
    if m <= points[0][0]:
        return points[0][1]
    for (low, low_us), (high, high_us) in itertools.pairwise(points):
        if m <= high:
            share = math.log(m / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(low_us) + share * math.log(high_us))
    return points[-1][1] * m / points[-1][0]


def ranked(problem: Problem, rows: Iterable[Row]) -> list[Row]:
    """Sort rows by distance in octaves; measured before predicted.

    The same CU count is a tie-break, never a condition; so is that a row names the form.
    """
    form = form_of(problem)

    def rank(row: Row) -> tuple[float, bool, bool, bool, bool, float]:
        distance = _octaves(row.m, problem.m) + _octaves(row.n, problem.n) + _octaves(row.k, problem.k)
        other_machine = row.cu_count not in (0, problem.machine.cu_count)
        us = row.us if row.us is not None else math.inf
        return distance, other_machine, row.grade != "measured", row.derived != form, row.cpu is None, us

    return sorted(rows, key=rank)


def kept_as(problem: Problem) -> str:
    """Return the prepared form that rules name: fragment order alone is one, which few routes multiply."""
    return FRAGMENTS if problem.weight_layout == FRAGMENTS else problem.derived


def form_of(problem: Problem) -> str:
    """Return the prepared form whose rows speak for a weight, "" for one as a checkpoint holds it.

    Its fragment order alone is read as "bf16" brings it; the preshuffled order is a form as others are.
    """
    if problem.weight_layout == FRAGMENTS:
        return "bf16"
    return problem.derived or (PRESHUFFLED if problem.weight_layout == PRESHUFFLED else "")


def title_of(table: Table, source: str) -> str:
    """Return a source in words."""
    return table.sources[source].get("title", source)


def _of_weight(problem: Problem, table: Table) -> Iterator[Found]:
    for row in ranked(problem, _fitting(problem, table.by_weight.get((problem.n, problem.k), ()))):
        yield Found(table, row, _reason(problem, row))


def _fitting(problem: Problem, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the same formats and form; of the row-major one too where another order has none nearer."""
    formats, form = (problem.a_format, problem.b_format), form_of(problem)
    forms = (None, form, "") if form == PRESHUFFLED else (None, form)
    found = [row for row in rows if (row.a_format, row.b_format) == formats and row.derived in forms]
    if problem.weight_layout == FRAGMENTS:  # not of what multiplies the bf16 values beside them
        found = [row for row in found if row.derived is None or _reads_fragments(row.route)]
    if all(row.cpu is None for row in found):
        return found
    here = variants.kind()
    return [row for row in found if row.cpu in (None, here)]


def _reads_fragments(route: str) -> bool:
    """Say whether what a route reads of a weight in form "bf16" is its fragment order."""
    return route in ROUTES and any({"bf16", "fp8_fold"} <= set(forms) for forms in ROUTES[route].alike)


def _spans(rows: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """Return from which M to which each route has rows."""
    spans: dict[str, tuple[int, int]] = {}
    for row in rows:
        low, high = spans.get(row.route, (row.m, row.m))
        spans[row.route] = min(low, row.m), max(high, row.m)
    return spans


def _reaches(row: Row, m: int, octaves: float, spans: Mapping[str, tuple[int, int]], scope: Scope) -> bool:
    low, high = spans.get(row.route, (1, 0)) if scope == "call" else (1, 0)
    return _octaves(row.m, m) <= octaves or low <= m <= high


def _reason(problem: Problem, row: Row) -> str:
    on = f", on {row.cpu}" if row.cpu else ""
    if (row.n, row.k) != (problem.n, problem.k):
        return f"{row.grade} row for the nearest size (M, N, K) = ({row.m}, {row.n}, {row.k}){on}"
    if row.m == problem.m:
        return f"{row.grade} row for exactly this size{on}"
    return f"{row.grade} row for the same weight at the nearest M = {row.m}{on}"


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(a / b))
