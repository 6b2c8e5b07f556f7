"""Route ``w4_mma`` of grouped products: up to 32 rows of an expert a workgroup on Hopper, in CUDA C++.

Workgroups find their expert and rows themselves, between offsets, or among few pairs by the ids as the router gave
them: then nothing sorts. Sorting many pairs and adding up a token's results are launches of the route ``triton``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from mxgemm.cuda import grouped_mma
from mxgemm.cuda.grouped_mma import MAX_PAIRS, GroupedConfig, config_for, grouped_refusal
from mxgemm.cuda.operands import ARCH
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts.problem import GroupedProblem, Operands, Routing
from mxgemm.experts.route import Combine, ExpertsRoute, Launch, LayerLaunches, Sort, Sorted
from mxgemm.experts.triton_gemm import TritonGrouped

if TYPE_CHECKING:
    from mxgemm.cuda.launch import Kernel

LISTED_ROWS: Final = 32
"""Of a tile in the list that the sort makes besides; nothing here reads it."""
_TRITON: Final = TritonGrouped()


class GroupedMMA(ExpertsRoute):
    """Decode an expert's weight, multiply by ``mma.sync``, add the warps' sums, activate and quantise: one kernel."""

    name = "w4_mma"
    takes = "MXFP4 weights on Hopper, e2m1, e4m3 or bf16 activations"

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, a compiler for it, and Triton."""
        if machine.arch != ARCH:
            return Refusal("arch", machine.arch, f"{ARCH}: its bf16 arithmetic and mma.sync", "machine")
        from mxgemm.hip.build import compiler_refusal

        lacking = compiler_refusal(machine.arch)
        if lacking:
            return Refusal("compiler", "missing", str(lacking), "installation")
        return _TRITON.missing(machine)

    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """See :func:`mxgemm.cuda.grouped_mma.grouped_refusal`."""
        return grouped_refusal(problem)

    def block_rows(self, problem: GroupedProblem) -> int:
        """Rows of a tile in the list."""
        del problem
        return LISTED_ROWS

    def bind(self, problem: GroupedProblem) -> Launch:
        """Build the kernel, unless it is in the cache, and return the launcher."""
        return self.launcher(problem, config_for(problem), None, early=False)

    def bind_layer(self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing) -> LayerLaunches:
        """Return the launches of a layer: of few pairs without a sort."""
        few = routing.pairs <= MAX_PAIRS
        by, (one, two) = routing if few else None, problems
        first = self.launcher(one, config_for(one), by, early=few)
        second = self.launcher(two, config_for(two), by, early=True)
        sort = ids_alone if few else self.bind_sort(routing, LISTED_ROWS)
        return LayerLaunches(sort, (first, second), self.bind_combine(routing))

    def launcher(
        self, problem: GroupedProblem, config: GroupedConfig, routing: Routing | None, *, early: bool
    ) -> Launch:
        """Return the launcher of a product with a configuration; by ids with a routing.

        Args:
            problem: the product.
            config: how.
            routing: of pairs that the kernel finds itself, or None: it reads offsets.
            early: what they are found by was written before the launch before this one began.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        from mxgemm.cuda.launch import KERNELS
        from mxgemm.hip.build import build

        defines = grouped_mma.defines(problem, config, by_ids=routing is not None, early=early)
        build(grouped_mma.SOURCE, arch=problem.arch, defines=defines, folder=KERNELS)
        return _Launch(problem, config, routing, defines)

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return Triton's sort."""
        return _TRITON.bind_sort(routing, block_rows)

    def bind_combine(self, routing: Routing) -> Combine:
        """Return Triton's sums."""
        return _TRITON.bind_combine(routing)


def ids_alone(ids: Tensor, expert_map: Tensor | None) -> Sorted:
    """Pass ids and map on, for launches that find their pairs by them."""
    return Sorted(expert_map, ids, None)


class _Launch:
    """The launch of a product, on one device: a plan has no other."""

    def __init__(
        self, problem: GroupedProblem, config: GroupedConfig, routing: Routing | None, defines: dict[str, int | str]
    ) -> None:
        self._problem, self._config, self._routing, self._defines = problem, config, routing, defines
        self._kernel: Kernel | None = None

    def __call__(self, o: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        kernel = self._kernel
        if kernel is None:
            kernel = self._kernel = self._load(o.out.device)
        kernel.launch(*addresses(o))

    def _load(self, device: torch.device) -> Kernel:
        from mxgemm.cuda.launch import Kernel, function

        p, c = self._problem, self._config
        return Kernel(
            function(grouped_mma.SOURCE, grouped_mma.KERNEL, device, self._defines),
            grouped_mma.grid(p, c),
            grouped_mma.block(c),
            grouped_mma.POINTERS,
            constants=grouped_mma.constants(p, self._routing),
            shared_bytes=grouped_mma.shared_bytes(c, self._routing is not None),
            overlap=True,
        )


def addresses(o: Operands) -> tuple[int, ...]:
    """Return where the operands are, in the order of ``grouped_mma.POINTERS``."""
    given = (o.a, o.a_scales, o.w, o.w_scales, o.bias, o.out, o.out_scales, o.offsets, o.places)
    return tuple(0 if tensor is None else tensor.data_ptr() for tensor in given)
