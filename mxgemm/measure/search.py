"""In which order configurations are measured, and when enough were: a search that knows nothing of devices or clocks.

The most promising configuration of each route comes first, then those that tables name for this size or one nearby,
then all others, by the estimates of ``cost.py``. A route is left when :data:`PATIENCE` of its configurations, one after
the other, were no faster than its best, or when its best takes :data:`FAR` times as long as another route's: estimates
choose what is measured first, never what is fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mxgemm.problem import Config

PATIENCE: Final = 12
"""Configurations of a route in a row that were not faster than its best, after which the others are not measured."""
FAR: Final = 2.0
"""Times as long as the fastest route takes, from which on a route is left with what was measured of it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may be measured.

    Attributes:
        route: its name.
        config: legal for the problem.
        estimate_us: about how long it takes.
        known: a table names it for this size or one nearby.
    """

    route: str
    config: Config
    estimate_us: float
    known: bool = False


def ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort candidates: of each route the most promising one, known ones, the rest; equal ones stay as they come.

    Known ones too: they come as the rows do that name them, the nearest first, which says more than their estimates.
    """
    by_estimate = sorted(candidates, key=lambda candidate: candidate.estimate_us)
    first = {candidate.route: candidate for candidate in reversed(by_estimate)}
    heads = sorted(first.values(), key=lambda one: one.estimate_us)
    known = [one for one in candidates if one.known and first[one.route] is not one]
    return [*heads, *known, *(one for one in by_estimate if not one.known and first[one.route] is not one)]


class Search:
    """The search over one problem.

    Attributes:
        measured: how many were taken.
        known: how many there are.
    """

    def __init__(self, candidates: Sequence[Candidate], patience: int = PATIENCE) -> None:
        """Begin.

        Args:
            candidates: each once.
            patience: see :data:`PATIENCE`; 0 measures all of them.
        """
        self._left = ordered(candidates)
        self._patience = patience
        self._beaten: dict[str, int] = {}
        self._best: dict[str, tuple[float, Candidate]] = {}
        self.measured, self.known = 0, len(self._left)

    @property
    def best(self) -> dict[str, tuple[float, Candidate]]:
        """Return of each route microseconds and the candidate, the fastest route first."""
        return dict(sorted(self._best.items(), key=lambda item: item[1][0]))

    def next(self) -> Candidate | None:
        """Return what is to be measured now, None where nothing is left."""
        self._left = [candidate for candidate in self._left if not self._is_left_out(candidate.route)]
        return self._left[0] if self._left else None

    def take(self, candidate: Candidate, us: float | None) -> None:
        """Take in a candidate's time, None where it did not pass: such a one neither wins nor beats the others."""
        if candidate not in self._left:
            return  # of an earlier run, whose candidates were others
        self._left.remove(candidate)
        self.measured += 1
        if us is None:
            return
        route = candidate.route
        if route in self._best and self._best[route][0] <= us:
            self._beaten[route] += 1
        else:
            self._best[route], self._beaten[route] = (us, candidate), 0

    def _is_left_out(self, route: str) -> bool:
        if self._patience == 0 or route not in self._best:
            return False
        fastest = min(us for us, _ in self._best.values())
        return self._patience <= self._beaten[route] or self._best[route][0] >= FAR * fastest
