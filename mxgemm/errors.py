"""What the library raises besides TypeError and ValueError, and the one form of a no."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Subject = Literal["call", "machine", "installation"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something cannot be had: a route for a problem, a configuration, a kernel, a compiler, a place to run in.

    It does not say who refuses; whoever asks several adds that (:class:`Refused`).

    Attributes:
        field: what about the problem or the machine is in the way ("arch", "k", "triton", ...).
        value: what it is.
        needed: what it would have to be, or what the user can do about it.
        about: what would have to change: the call, the kind of machine, or what is installed and configured on it.
        words: the reason as a sentence of its own, where the usual one would not say it well.
    """

    field: str
    value: object
    needed: str
    about: Subject = "call"
    words: str = ""

    @property
    def missing(self) -> bool:
        """Something is not here, whatever the call."""
        return self.about != "call"

    @property
    def reason(self) -> str:
        """The refusal in words."""
        return self.words or f"{self.field} is {self.value}; needs {self.needed}"

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, and the route that it is of."""

    route: str
    refusal: Refusal

    def __str__(self) -> str:
        return f"{self.route}: {self.refusal}"


def by_reason(refused: Iterable[Refused]) -> list[str]:
    """Return a line for each reason, with every route that it holds for."""
    routes: dict[str, list[str]] = {}
    for one in refused:
        routes.setdefault(one.refusal.reason, []).append(one.route)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in routes.items()]


def lines_of_others(refused: Sequence[Refused], possible: Sequence[str]) -> list[str]:
    """Return what an explanation says of the routes that are not taken, indented under their titles."""
    lines: list[str] = []
    for title, missing in (("missing here", True), ("not for this call", False)):
        reasons = by_reason(one for one in refused if one.refusal.missing is missing)
        lines += [f"  {title}", *(f"    {reason}" for reason in reasons)] if reasons else []
    return [*lines, f"  possible  {', '.join(possible)}"] if possible else lines


class RouteUnavailable(RuntimeError):
    """A route was asked for by name and cannot run here.

    Attributes:
        route: its name.
        refusal: the reason, field by field.
    """

    def __init__(self, route: str, refusal: Refusal) -> None:
        super().__init__(f"route {route!r} cannot run: {refusal}")
        self.route, self.refusal = route, refusal


class BuildError(RuntimeError):
    """A kernel cannot be built; the message ends with what the compiler said, if one ran."""
