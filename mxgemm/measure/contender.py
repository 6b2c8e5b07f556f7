"""Anything that is measured: a route of this library or a peer, behind one small interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from mxgemm.errors import Refusal
from mxgemm.measure.oracle import Exact, Oracle
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.tensor import MXTensor

BEFOREHAND: Final = "beforehand, not timed"
"""Words of a statement that says that A comes quantised: tables and pictures mark it."""


class Contender(ABC):
    """One way to multiply. What ``load`` returns is opaque to the caller: it is only copied and passed on.

    Attributes:
        kind: "route" or "peer".
        name: short and unique within its kind.
        statement: what is computed, and what of it is inside the timed call.
        accumulate_bits: fraction bits of its sums, for the elementwise gate (see ``mxgemm.mx.accuracy``).
    """

    kind: ClassVar[str]
    name: str
    statement: str
    accumulate_bits: int = 24

    def absent(self, device: torch.device) -> Refusal | None:
        """Say why this cannot run on the machine at all, or None if it can."""
        del device
        return None

    def refuses(self, m: int, n: int, k: int) -> Refusal | None:
        """Say why this cannot take a size, or None if it can."""
        del m, n, k
        return None

    def traffic_bytes(self, m: int, n: int, k: int) -> int:
        """Return the bytes of both operands as this takes them and of the bf16 result, each moved once.

        Here A in bf16 and an MXFP4 weight with its scales: what the problem is, and what every route is measured by,
        whatever was made of its weight beforehand.
        """
        return 2 * m * k + n * (k // 2 + k // BLOCK) + 2 * m * n

    def activations(self, a: Tensor) -> Any:
        """Return what the timed call takes for A, bf16 ``[M, K]``; work done here is not timed."""
        return a

    @abstractmethod
    def load(self, weight: MXTensor) -> Any:
        """Return what the timed call takes for B, made from a row-major e2m1 weight (N, K), off the clock."""

    def clone(self, loaded: Any) -> Any:
        """Copy what :meth:`load` returned to other memory; here a tuple of tensors."""
        return tuple(tensor.clone() for tensor in loaded)

    def nbytes(self, loaded: Any) -> int:
        """Return at most as many bytes as a call reads of the weight; here of a tuple of tensors."""
        return sum(int(tensor.nbytes) for tensor in loaded)

    @abstractmethod
    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply: ``[M, N]``, fresh memory. This is what is timed."""

    def checked_call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply for judging, into memory that would show what was never written, where that is possible."""
        return self.call(a, loaded)

    @abstractmethod
    def exact(self, oracle: Oracle, a: Any, loaded: Any) -> Exact:
        """Return the operands that this multiplies, in float64, of the oracle's sample."""

    def bind(self, a: Any, loaded: list[Any]) -> list[Callable[[], Tensor]]:
        """Return one argumentless call for each copy of the weight."""
        return [lambda operand=operand: self.call(a, operand) for operand in loaded]  # type: ignore[misc]
