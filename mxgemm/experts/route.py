"""What a route of grouped products is: the questions of :class:`mxgemm.routes.Route`, and the steps around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens

Launch = Callable[[Operands], None]
"""Fill the result."""


class Sorted(NamedTuple):
    """Pairs in the order of their experts.

    Attributes:
        places: int32 ``[pairs]``: pairs of expert 0 in their order, those of expert 1, ...; undefined behind the last.
            For a route that finds them by ids itself: the map from ids to experts, or None.
        offsets: int32 ``[E + 1]``: where each expert's begin; or the ids.
        tiles: the route's tile list, if it reads one.
    """

    places: Tensor | None
    offsets: Tensor
    tiles: Tensor | None


Sort = Callable[[Tensor, Tensor | None], Sorted]
"""Sort pairs: of ids ``[T, top_k]``, and the map from ids to experts."""
Combine = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor], None]
"""``out[t] = round(sum_j weights[t, j] * y[t, j])`` in fp32 and in order: of y ``[pairs, H]`` fp32, ids, weights, the
map, out."""


Quantise = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Quantise tokens ``[T, H]``: elements and scales."""


class BothProducts(Protocol):
    """A sort and both products of a layer, as one."""

    def __call__(
        self,
        a: Tensor,
        a_scales: Tensor | None,
        first: tuple[Tensor, Tensor, Tensor | None],
        second: tuple[Tensor, Tensor, Tensor | None],
        ids: Tensor,
        expert_map: Tensor | None,
    ) -> Tensor:
        """Return what each pair's expert makes of its token, fp32 ``[pairs, H]``: of weights, scales and biases."""


class LayerLaunches(NamedTuple):
    """What a layer of experts is made of, in order: the sort, its two products, the sums.

    ``quantise`` makes its tokens bytes before, where the route has a launch of its own for that; with ``rounds`` the
    first product takes them as they come. With ``whole`` that is called instead of a sort and two products, which are
    none then.
    """

    sort: Sort | None
    products: tuple[Launch, ...]
    combine: Combine
    quantise: Quantise | None = None
    rounds: bool = False
    whole: BothProducts | None = None


class ExpertsRoute(ABC):
    """One way to compute grouped products. Stateless: everything it needs arrives with the problem."""

    name: ClassVar[str]
    takes: ClassVar[str]
    """Which calls it is for, in a few words; :meth:`can_implement` decides."""
    reads_fragments: ClassVar[bool] = False
    """Whether it reads what ``prepare()`` made of a stack (:mod:`mxgemm.experts.forms`)."""

    @abstractmethod
    def missing(self, machine: Machine) -> Refusal | None:
        """Say what this route lacks on ``machine``, or None."""

    @abstractmethod
    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """Say why this route does not take ``problem`` although nothing is missing, or None."""

    def refusal(self, problem: GroupedProblem) -> Refusal | None:
        """Ask both questions, :meth:`missing` first."""
        return self.missing(problem.machine) or self.can_implement(problem)

    suits_what: ClassVar[str] = ""
    """Which sizes :meth:`suits` is for, in a few words; "" for all."""

    def described(self, problem: GroupedProblem) -> str:
        """Return how it computes a product, in words, as ``mxgemm.explain_experts`` prints it."""
        del problem
        return "one way for all sizes"

    def suits(self, problem: GroupedProblem) -> bool:
        """Say whether this route is the one for such a size, where none is named."""
        del problem
        return True

    def block_rows(self, problem: GroupedProblem) -> int:
        """Return the rows of a tile in the tile list that this route reads, 0 where it reads none."""
        del problem
        return 0

    @abstractmethod
    def bind(self, problem: GroupedProblem) -> Launch:
        """Return the launcher, with everything constant bound into it."""

    @abstractmethod
    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return what sorts pairs, and makes a tile list of tiles of ``block_rows`` rows if that is not 0."""

    @abstractmethod
    def bind_combine(self, routing: Routing) -> Combine:
        """Return what adds up a token's results."""

    def bind_layer(
        self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, tokens: Tokens | None
    ) -> LayerLaunches:
        """Return all launches of a layer of experts: by default those of its parts.

        ``tokens`` are as they come; None where they have been quantised by somebody else.
        """
        del tokens
        rows = self.block_rows(problems[0])
        assert rows == self.block_rows(problems[1]), "one tile list serves both products"
        products = self.bind(problems[0]), self.bind(problems[1])
        return LayerLaunches(self.bind_sort(routing, rows), products, self.bind_combine(routing))
