"""The operands of one weight, kept from one task of tuning to the next: making them takes longer than timing.

A task is (M, N, K), a format of A and a form of the weight. Those of a weight that follow one another share it, its
copies in that form, which together exceed the cache, and what a sample of its rows is worth in float64.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import Tensor

from mxgemm.measure.forms import Form, in_form
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.session import activations_of, weight_of
from mxgemm.measure.trial import Parts, Trial
from mxgemm.mx.accuracy import Accuracy
from mxgemm.mx.tensor import MXTensor

PERIOD: Final = 61
"""Rows of A, which repeat: what each is worth in float64 is computed once for all M, which takes longer than timing. No
height of a tile is a multiple of so many, so that a kernel that takes another tile's rows is found out."""
ROWS: Final = 32
COLUMNS: Final = 256
"""Of a result, judged; all of it must be finite."""


class Held:
    """One weight on a device, in one form at a time.

    Attributes:
        device: where.
    """

    def __init__(self, device: torch.device) -> None:
        """Hold nothing yet."""
        self.device = device
        self._of: tuple[int, int] | None = None
        self._once: Oracle | None = None
        self._oracle: Oracle | None = None
        self._form: tuple[Form, MXTensor, list[Parts]] | None = None

    def trial(self, m: int, n: int, k: int, a_format: str, form: Form) -> Trial:
        """Return the operands of a task.

        Args:
            m: rows of A.
            n: rows of B.
            k: elements along K.
            a_format: as in ``gemm``.
            form: of the weight.
        """
        if self._of != (n, k):
            self._of = self._once = self._oracle = self._form = None  # before another one takes as much memory
            self._once = Oracle(activations_of(PERIOD, k, self.device), weight_of(n, k, self.device), PERIOD, COLUMNS)
            self._of = n, k
        assert self._once is not None
        if self._oracle is None or self._oracle.a.shape[0] != m:
            self._oracle = self._once.repeated(m, ROWS)
        oracle = self._oracle
        held, copies = self._in_form(oracle.weight, form)
        judged = partial(_judged, oracle, a_format)
        return Trial(oracle.a, oracle.weight, held, a_format, False, copies=copies, judged=judged)

    def _in_form(self, weight: MXTensor, form: Form) -> tuple[MXTensor, list[Parts]]:
        if self._form is None or self._form[0] != form:
            self._form = None
            made = in_form(weight, form)
            data, scales, _, _, derived = made.operand()
            copies = copies_needed(weight.data.nbytes + weight.scales.nbytes, cache_bytes(self.device)) - 1
            self._form = form, made, [_copy(data, scales, derived) for _ in range(copies)]
        return self._form[1], self._form[2]


def _copy(data: Tensor, scales: Tensor, derived: tuple[Tensor, ...]) -> Parts:
    return data.clone(), scales.clone(), tuple(tensor.clone() for tensor in derived)


def _judged(oracle: Oracle, a_format: str, out: Tensor, accumulate_bits: int) -> Accuracy:
    return oracle.judge(out, oracle.exact(a_format), accumulate_bits)
