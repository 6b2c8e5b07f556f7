"""Two launches of CUDA C++: one makes of A what the product reads, in scratch; the product overlaps it."""

from __future__ import annotations

from collections.abc import Callable

from mxgemm import workspace
from mxgemm.cuda.lazy import Lazy
from mxgemm.device import Machine
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Program, fixed, joined
from mxgemm.routes.base import Operands


class PreparedA:
    """Both launches of a problem, on one device: a plan has no other."""

    def __init__(self, first: Lazy, product: Lazy, nbytes: int, weight: Callable[[Operands], tuple[int, ...]]) -> None:
        """Settle them.

        Args:
            first: its pointers are A and scratch.
            product: its pointers are scratch, the weight's, bias and out.
            nbytes: of scratch.
            weight: where the parts of the weight are that the product reads.
        """
        self._first, self._product, self._nbytes, self._weight = first, product, nbytes, weight

    def build(self, machine: Machine) -> PreparedA:
        """Build the kernels, unless they are in the cache, and return this.

        Raises:
            BuildError: the compiler refuses a source; the message has its output.
        """
        self._product.build(machine)
        self._first.build(machine)
        return self

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, bias = operands.a, operands.bias
        added = 0 if bias is None else bias.data_ptr()
        with workspace.take(self._nbytes, a.device) as arena:
            made = arena.memory.data_ptr()
            self._first(a.device, a.data_ptr(), made)
            self._product(a.device, made, *self._weight(operands), added, operands.out.data_ptr())

    def program(self, operands: Operands) -> Program | None:
        """Describe both launches on such operands, once there have been any."""
        if self._first.loaded is None or self._product.loaded is None:
            return None
        device, bias = operands.a.device, fixed(0) if operands.bias is None else BIAS
        product = self._product.step(device, SCRATCH, *map(fixed, self._weight(operands)), bias, OUT)
        return joined((self._first.step(device, A, SCRATCH), product), scratch_bytes=self._nbytes)
