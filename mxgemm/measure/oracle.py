"""Judge results of one problem: against float64 on a sample of rows and columns, and everywhere for being finite."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from mxgemm.mx import accuracy, oracle
from mxgemm.mx.tensor import MXTensor

ROWS = 64
COLUMNS = 1024


@dataclass(frozen=True)
class Exact:
    """The operands of one product in float64, of the sampled rows and columns.

    Attributes:
        left: ``[rows, K]``.
        right: ``[columns, K]``.
        product: ``left @ right.T``.
    """

    left: oracle.Float64
    right: oracle.Float64
    product: oracle.Float64

    @classmethod
    def of(cls, left: oracle.Float64, right: oracle.Float64) -> Exact:
        """Multiply two operands."""
        return cls(left, right, oracle.matmul(left, right))


@dataclass
class Oracle:
    """The exact results that outputs of one problem are compared with; each is computed once.

    Attributes:
        a: activations ``[M, K]``.
        weight: row-major e2m1 weight (N, K).
        most_rows: of A, sampled at most.
        most_columns: rows of the weight, sampled at most.
        rows: sampled rows of A.
        columns: sampled rows of the weight.
    """

    a: Tensor
    weight: MXTensor
    most_rows: int = ROWS
    most_columns: int = COLUMNS
    rows: Tensor = field(init=False)
    columns: Tensor = field(init=False)
    _known: dict[str, Exact] = field(default_factory=dict, init=False, repr=False)
    _once: Oracle | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = _draw(self.a.shape[0], self.most_rows, generator)
        self.columns = _draw(self.weight.shape[0], self.most_columns, generator)

    def repeated(self, m: int, most_rows: int) -> Oracle:
        """Return the oracle of ``m`` rows of activations, which are this one's in turn; nothing is computed anew.

        Args:
            m: rows of A.
            most_rows: of them, sampled at most. This oracle samples all rows.
        """
        turn = torch.arange(m, dtype=torch.int64, device=self.a.device) % self.a.shape[0]
        other = Oracle(self.a[turn], self.weight, most_rows, self.most_columns)
        other.columns, other._once = self.columns, self
        return other

    def exact(self, a_format: str) -> Exact:
        """Return the operands with A rounded to ``a_format`` by the rule "even", the weight as its bytes say."""
        if a_format not in self._known and self._once is not None:
            whole, rows = self._once.exact(a_format), (self.rows % self._once.a.shape[0]).numpy()
            self._known[a_format] = Exact(whole.left[rows], whole.right, whole.product[rows])
        elif a_format not in self._known:
            left = self.a[self.rows.to(self.a.device)].cpu()
            if a_format == "bf16":
                left64 = left.to(torch.bfloat16).to(torch.float64).numpy()
            else:
                left64 = oracle.decode(*oracle.encode(left.float().numpy(), a_format, "even"), a_format)
            self._known[a_format] = Exact.of(left64, self._right)
        return self._known[a_format]

    @cached_property
    def _right(self) -> oracle.Float64:
        picked = self.columns.to(self.weight.device)
        data, scales = self.weight.data[picked].cpu().numpy(), self.weight.scales[picked].cpu().numpy()
        return oracle.decode(data, scales, self.weight.format.name)

    def judge(self, out: Tensor, exact: Exact, accumulate_bits: int) -> accuracy.Accuracy:
        """Compare a whole output with the exact one on the sample; anything not finite elsewhere fails it too.

        Args:
            out: ``[M, N]``.
            exact: of the operands that were multiplied.
            accumulate_bits: of the sums.

        Raises:
            ValueError: the output has another shape.
        """
        want = (self.a.shape[0], self.weight.shape[0])
        if tuple(out.shape) != want:
            raise ValueError(f"out: got shape {tuple(out.shape)}, want {want}")
        if not bool(torch.isfinite(out).all()):
            nan = float("nan")
            return accuracy.Accuracy(nan, nan, accuracy.NORM_GATE, accuracy.element_gate(self.a.shape[1]), out.numel())
        sample = out[self.rows.to(out.device)][:, self.columns.to(out.device)]
        return accuracy.compare(sample, exact.product, exact.left, exact.right, accumulate_bits)


def _draw(size: int, most: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(size, generator=generator, dtype=torch.int64, device="cpu")
    return order[:most].sort().values
