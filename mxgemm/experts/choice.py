"""Which route grouped products take: the one that is named, else the first that can, fastest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mxgemm.arguments import one_of
from mxgemm.device import Machine
from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.experts.cpu_native import CpuNative
from mxgemm.experts.problem import GroupedProblem
from mxgemm.experts.reference import Reference
from mxgemm.experts.route import ExpertsRoute
from mxgemm.experts.triton_gemm import TritonGrouped
from mxgemm.experts.w4_mma import GroupedMMA
from mxgemm.experts.w4_wgmma import GroupedWgmma
from mxgemm.notices import say_once

ROUTES: Final[dict[str, ExpertsRoute]] = {
    r.name: r for r in (CpuNative(), GroupedWgmma(), GroupedMMA(), TritonGrouped(), Reference())
}
NOT_ON_A_CPU: Final = ("triton",)
"""What runs there, in an interpreter, for tests alone."""


def check_route(route: str | None) -> None:
    """Raise ValueError unless a route is one of these, or None."""
    if route is not None:
        one_of("route", route, ROUTES)


def choose(problems: Sequence[GroupedProblem], route: str | None) -> ExpertsRoute:
    """Return the route that takes all of some problems on one machine.

    Raises:
        RouteUnavailable: the route that is named cannot run here.
    """
    machine = problems[0].machine
    if route is not None:
        refusal = first_refusal(ROUTES[route], problems)
        if refusal is not None:
            raise RouteUnavailable(route, refusal)
        return ROUTES[route]
    refused: list[str] = []
    for name, candidate in ROUTES.items():
        if machine.arch == "cpu" and name in NOT_ON_A_CPU:
            continue
        if not all(map(candidate.suits, problems)):
            continue
        refusal = first_refusal(candidate, problems)
        if refusal is None:
            if name == "reference" and machine.arch != "cpu":
                reasons = "; ".join(refused)
                say_once(f"experts on {machine.arch} run by the slow reference: {reasons}", ("experts", reasons))
            return candidate
        refused.append(f"{name}: {refusal}")
    raise AssertionError("reference takes everything")


def first_refusal(route: ExpertsRoute, problems: Sequence[GroupedProblem]) -> Refusal | None:
    """Say why a route does not take one of some problems, or None."""
    return next((refusal for refusal in map(route.refusal, problems) if refusal is not None), None)


def adder(machine: Machine) -> ExpertsRoute:
    """Return the route that adds up results on a machine where nothing is multiplied: the first that is here."""
    here = (r for name, r in ROUTES.items() if machine.arch != "cpu" or name not in NOT_ON_A_CPU)
    return next(route for route in here if route.missing(machine) is None)
