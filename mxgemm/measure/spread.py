"""A timed quantity: the median of its runs, how far they spread, and how many there were."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds since some fixed moment."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds of one call over repeated runs.

    Attributes:
        us: the median.
        low: first quartile.
        high: third quartile.
        runs: how many runs.
        method: how a run was timed: "graph", "queued", "flushed", "event", "host", "wall" or "thread"; see
            ``mxgemm.measure.timing``.
    """

    us: float
    low: float
    high: float
    runs: int
    method: str


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    if len(times) < 2:
        return times[0], times[0], times[0]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


def spread_of(times: Sequence[float], method: str) -> Spread:
    """Summarise runs, in microseconds."""
    low, middle, high = quartiles(times)
    return Spread(middle, low, high, len(times), method)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to repeat a measurement.

    Attributes:
        seconds: stop after this long.
        least: but not before this many runs.
        most: and at the latest after this many.
    """

    seconds: float = 0.5
    least: int = 3
    most: int = 200


def repeat(run: Callable[[], float], effort: Effort, clock: Clock = time.perf_counter) -> list[float]:
    """Call ``run``, which returns microseconds, until the effort is spent.

    Args:
        run: one run, timed by itself.
        effort: when to stop.
        clock: what the seconds are counted on.
    """
    times: list[float] = []
    end = clock() + effort.seconds
    while len(times) < effort.least or (len(times) < effort.most and clock() < end):
        times.append(run())
    return times
