"""What a route is: one way to compute a GEMM, as a question, a list of configurations and a launcher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.layouts import FRAGMENTS
from mxgemm.mx.prepared import WeightForm
from mxgemm.problem import Config, Problem


class Operands(NamedTuple):
    """The tensors of one launch, A, B and the result as two-dimensional views.

    Attributes:
        a: activations, or their bytes where they come quantised.
        a_scales: scale bytes of quantised activations, else None.
        b: weight bytes.
        b_scales: its scale bytes.
        bias: ``[N]`` or None.
        out: filled by the launch.
        derived: what ``prepare()`` made of the weight, in the order of the form.
    """

    a: Tensor
    a_scales: Tensor | None
    b: Tensor
    b_scales: Tensor
    bias: Tensor | None
    out: Tensor
    derived: tuple[Tensor, ...] = ()


Launch = Callable[[Operands], Tensor | None]
"""Fill ``out`` and return None; or, where :meth:`Route.fills_output` says so, return the result in fresh memory."""


class Route(ABC):
    """One way to compute a GEMM. Stateless: everything it needs arrives with the problem."""

    name: ClassVar[str]
    config_type: ClassVar[type[Config]] = Config
    accumulate_bits: ClassVar[int] = 24
    """Fraction bits of the sums, 24 for fp32; the elementwise error gate follows (docs/numbers.md)."""
    forms: ClassVar[tuple[WeightForm, ...]] = ()
    """Forms of a weight that it reads besides row-major bytes, and wants ``prepare()`` to make, the best first."""
    takes: ClassVar[str]
    """Which calls it is for, in a few words: how A and the weight come. For people; :meth:`can_implement` decides."""
    reads_fragments: ClassVar[bool] = False
    """It takes a weight of which nothing is left but the fragment order (``mxgemm.mx.fragments``)."""

    fitted: ClassVar[bool] = False
    """:meth:`configs` begins with what an estimate, fitted to measurements, puts first for the very size: a better one
    than what was measured for another weight."""
    alike: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Forms of a weight, "" for its bytes as they lie, in which it reads the same bytes in the same order: a time that
    is measured with one is that of the others."""

    @abstractmethod
    def missing(self, machine: Machine) -> Refusal | None:
        """Say what this route lacks on ``machine`` (architecture, library, compiler), or None if it is all here."""

    @abstractmethod
    def can_implement(self, problem: Problem) -> Refusal | None:
        """Say why this route does not take ``problem`` although nothing is missing, or None if it does."""

    def refusal(self, problem: Problem) -> Refusal | None:
        """Ask both questions, :meth:`missing` first; bytes in fragment order are for those that know it."""
        missing = self.missing(problem.machine)
        if missing is None and problem.weight_layout == FRAGMENTS and not self.reads_fragments:
            return Refusal("weight_layout", FRAGMENTS, "another order: prepare() without keep=False leaves the bytes")
        return missing or self.can_implement(problem)

    def configs(self, problem: Problem) -> Sequence[Config]:
        """Return legal configurations for a problem that the route can implement, the best guess first."""
        del problem
        return [self.config_type()]

    def candidates(self, problem: Problem) -> Sequence[Config]:
        """Return what ``mxgemm tune`` measures besides :meth:`configs`; illegal ones are dropped there."""
        return self.configs(problem)

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Say why ``config`` is illegal for ``problem``, or None if it is legal."""
        del problem, config
        return None

    def fills_output(self, problem: Problem, config: Config) -> bool:
        """Say whether the launcher fills ``out``; otherwise it returns ``[M, N]`` and leaves ``out`` alone."""
        del problem, config
        return True

    @abstractmethod
    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher of a legal configuration, with everything constant bound into it."""
