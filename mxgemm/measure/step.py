"""One thing that a long run does: what ``verify`` and ``tune`` offer, and a report takes up one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Section = Literal["results", "baselines", "tuned"]
"""Lists of a report: verdicts on routes, times of ``torch.mm``, configurations that were tuned."""


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
