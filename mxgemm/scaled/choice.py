"""Which route a quantised GEMM takes: rules as data, the first that fits and whose route can, else the first that can.

The rules of sm_90 are what was measured on an H200 (bench/results/quant_gemm_h200.json).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.notices import say_once
from mxgemm.scaled.bridge import Bridge
from mxgemm.scaled.mx import MX, DequantMM
from mxgemm.scaled.problem import QuantProblem
from mxgemm.scaled.reference import Reference
from mxgemm.scaled.route import QuantRoute
from mxgemm.scaled.scaled_mm import ScaledMM
from mxgemm.scaled.triton_gemm import TritonGemm

ROUTES: Final[dict[str, QuantRoute]] = {
    r.name: r for r in (MX(), TritonGemm(), ScaledMM(), DequantMM(), Reference(), Bridge())
}
DEFAULTS: Final = ("mx", "triton", "scaled_mm", "reference")
"""In this order, where no rule fits. The bridge's kernel is taken where it is named, and never by itself."""
NOT_ON_A_CPU: Final = ("triton",)
"""What runs there, in an interpreter, for tests alone."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A route for some problems.

    Attributes:
        route: its name.
        arch: of the machine.
        schemes: names of schemes.
        least_m: rows of A from which on it holds.
        most_m: the last for which it holds.
        least_weight: elements of B from which on it holds.
    """

    route: str
    arch: str
    schemes: tuple[str, ...]
    least_m: int = 1
    most_m: int = 1 << 30
    least_weight: int = 0

    def fits(self, problem: QuantProblem) -> bool:
        """Say whether the rule is for a problem."""
        return (
            problem.arch == self.arch
            and problem.scheme.name in self.schemes
            and self.least_m <= problem.m <= self.most_m
            and problem.n * problem.k >= self.least_weight
        )


RULES: Final = (
    Rule("scaled_mm", "sm_90", ("tensor_quant", "rowcolquant"), least_m=129),
    Rule("scaled_mm", "sm_90", ("abquant",), least_m=33),
    Rule("scaled_mm", "sm_90", ("aquant", "bquant"), least_m=129),
    Rule("mx", "sm_90", ("bquant",)),
    Rule("dequant_mm", "sm_90", ("bquant",), least_m=65),
    Rule("scaled_mm", "gfx950", ("tensor_quant", "rowcolquant"), least_m=257),
)


def choose(problem: QuantProblem, route: str | None) -> QuantRoute:
    """Return the route of a problem.

    Raises:
        RouteUnavailable: the route that is named cannot run here.
    """
    if route is not None:
        refusal = ROUTES[route].refusal(problem)
        if refusal is not None:
            raise RouteUnavailable(route, refusal)
        return ROUTES[route]
    names = [rule.route for rule in RULES if rule.fits(problem)]
    refusals: list[tuple[str, Refusal]] = []
    for name in (*names, *DEFAULTS):
        if problem.arch == "cpu" and name in NOT_ON_A_CPU:
            continue
        refusal = ROUTES[name].refusal(problem)
        if refusal is None:
            _tell(name, problem, refusals)
            return ROUTES[name]
        refusals.append((name, refusal))
    raise AssertionError("reference takes everything")


def _tell(name: str, problem: QuantProblem, refusals: list[tuple[str, Refusal]]) -> None:
    """Say once that a GPU's call goes to the reference, and what would change that."""
    if name == "reference" and problem.arch != "cpu":
        reasons = "; ".join(f"{route}: {refusal}" for route, refusal in refusals)
        say_once(f"quant_gemm on {problem.arch} runs by the slow reference: {reasons}", ("quant_gemm", reasons))
