"""What long runs share: one thing to do, an end by the clock, and what becomes of a step that ends the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from mxgemm.measure.spread import Clock

ATTEMPTS: Final = 2
"""Times that a step is begun where the process ends in it."""

End = Literal["finished", "budget", "device"]
"""Nothing is left; the time is over; the device answers no longer, and a new process is wanted."""

Section = Literal["results", "baselines", "tuned"]
"""Lists of a report: verdicts on routes, times of ``torch.mm``, configurations that were tuned."""


class Budget:
    """Seconds after which no step is begun, but for the first."""

    def __init__(self, seconds: float | None, clock: Clock) -> None:
        """Begin now; None has no end."""
        self._seconds, self._clock, self._start, self._begun = seconds, clock, clock(), False

    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return self._clock() - self._start

    def allows(self) -> bool:
        """Say whether one more step may be begun."""
        over = self._begun and self._seconds is not None and self.spent() >= self._seconds
        self._begun = True
        return not over


class Attempts:
    """How often a step was begun, by the note that a file holds while one runs: a process may end in it."""

    def __init__(self, running: Mapping[str, Any] | None) -> None:
        """Take up the note that an earlier process left, if one did."""
        self._made: dict[str, int] = {} if running is None else {running["step"]: running["attempts"]}

    def refusal(self, step: str) -> str:
        """Say why a step had better not be begun again, or return ""."""
        again = self._made.get(step, 0) >= ATTEMPTS
        return f"the process ended while this ran, {ATTEMPTS} times" if again else ""

    def note(self, step: str) -> dict[str, Any]:
        """Return what the file shall hold while a step runs."""
        return {"step": step, "attempts": self._made.get(step, 0) + 1}


@dataclass(frozen=True, slots=True)
class Step:
    """What may be done, and need not be where a report has it already.

    Attributes:
        name: of this step alone, the same in every run of the same request.
        part: of the run, for people.
        section: of a report, where its record goes.
        who: what it is about, as the record begins.
        measure: does it, and returns the rest of the record: "state" and, where that is not "passed", "reason".
        decided: nothing is launched: only the reason for that is recorded.
    """

    name: str
    part: str
    section: Section
    who: dict[str, Any]
    measure: Callable[[], dict[str, Any]]
    decided: bool = False


def answers(device: torch.device) -> bool:
    """Say whether a device still computes: after a fault every call on it fails, whoever makes it."""
    try:
        return bool(torch.ones(1, dtype=torch.float32, device=device).add_(1).item() == 2)
    except RuntimeError:
        return False
