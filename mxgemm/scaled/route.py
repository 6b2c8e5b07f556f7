"""What a route of ``quant_gemm`` is: the questions of :class:`mxgemm.routes.Route`, of a quantised problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.problem import Operands, QuantProblem

Launch = Callable[[Operands], Tensor | None]
"""Fill ``out`` and return None, or return the result in fresh memory and leave ``out`` alone."""


class QuantRoute(ABC):
    """One way to compute a quantised GEMM. Stateless: everything it needs arrives with the problem."""

    name: ClassVar[str]
    takes: ClassVar[str]
    """Which calls it is for, in a few words; :meth:`can_implement` decides."""

    @abstractmethod
    def missing(self, machine: Machine) -> Refusal | None:
        """Say what this route lacks on ``machine``, or None."""

    @abstractmethod
    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """Say why this route does not take ``problem`` although nothing is missing, or None."""

    def refusal(self, problem: QuantProblem) -> Refusal | None:
        """Ask both questions, :meth:`missing` first."""
        return self.missing(problem.machine) or self.can_implement(problem)

    def fills_output(self, problem: QuantProblem) -> bool:
        """Say whether the launcher fills ``out``; otherwise it returns ``[M, N]`` and leaves ``out`` alone."""
        del problem
        return True

    def accumulate_bits(self, problem: QuantProblem) -> int:
        """Return the fraction bits of the sums, 24 for fp32; the elementwise error gate follows (docs/numbers.md)."""
        del problem
        return 24

    @abstractmethod
    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher, with everything constant bound into it."""
