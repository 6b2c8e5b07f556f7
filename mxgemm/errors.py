"""What the library raises besides TypeError and ValueError, and how a route says no."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Subject = Literal["call", "machine", "installation"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a route or a configuration cannot take a problem.

    Attributes:
        route: the route that refuses.
        field: what about the problem or the machine is in the way ("arch", "k", "triton", ...).
        value: what it is.
        needed: what it would have to be, or what the user can do about it.
        about: what would have to change: the call, the kind of machine, or what is installed and configured on it.
    """

    route: str
    field: str
    value: object
    needed: str
    about: Subject = "call"

    @property
    def missing(self) -> bool:
        """Something is not here, whatever the call."""
        return self.about != "call"

    @property
    def reason(self) -> str:
        """The refusal in words, without the route."""
        return f"{self.field} is {self.value}; needs {self.needed}"

    def __str__(self) -> str:
        return f"{self.route}: {self.reason}"


def by_reason(refusals: Iterable[Refusal]) -> list[str]:
    """Return a line for each reason, with every route that it holds for."""
    routes: dict[str, list[str]] = {}
    for refusal in refusals:
        routes.setdefault(refusal.reason, []).append(refusal.route)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in routes.items()]


class RouteUnavailable(RuntimeError):
    """A route was asked for by name and cannot run here.

    Attributes:
        refusal: the reason, field by field.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"route {refusal.route!r} cannot run: {refusal.reason}")
        self.refusal = refusal
