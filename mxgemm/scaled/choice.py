"""Which route a quantised GEMM takes: that of the first rule that fits and whose route can, else the first that can."""

from __future__ import annotations

from typing import Final

from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.notices import say_once
from mxgemm.scaled.bridge import Bridge
from mxgemm.scaled.dequant_mm import DequantMM
from mxgemm.scaled.mx import MX
from mxgemm.scaled.problem import QuantProblem
from mxgemm.scaled.reference import Reference
from mxgemm.scaled.route import QuantRoute
from mxgemm.scaled.rules import named
from mxgemm.scaled.scaled_mm import ScaledMM
from mxgemm.scaled.triton_gemm import TritonGemm
from mxgemm.scaled.unpack_mm import UnpackMM

ROUTES: Final[dict[str, QuantRoute]] = {
    r.name: r for r in (MX(), TritonGemm(), ScaledMM(), UnpackMM(), DequantMM(), Reference(), Bridge())
}
DEFAULTS: Final = ("mx", "triton", "scaled_mm", "reference")
"""In this order, where no rule fits. The bridge's kernel is taken where it is named, and never by itself."""
NOT_ON_A_CPU: Final = ("triton",)
"""What runs there, in an interpreter, for tests alone."""


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
    refusals: list[tuple[str, Refusal]] = []
    for name in (*named(problem), *DEFAULTS):
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
