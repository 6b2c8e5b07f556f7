"""Route ``w4_wgmma`` of grouped products: groups of many rows on Hopper, by the products of warpgroups.

By a list of tiles A is gathered into slabs of bf16, which hold every rounded value, and these are multiplied. Sums are
in fp32 over all of K in one order.
"""

from __future__ import annotations

from typing import Final

import torch

from mxgemm import workspace
from mxgemm.cuda.lazy import Lazy
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts import wgmma
from mxgemm.experts.launches import Slabbed
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens, tile_list_rows
from mxgemm.experts.route import Combine, ExpertsRoute, Launch, LayerLaunches, Quantise, Sort
from mxgemm.experts.triton_gemm import TritonGrouped
from mxgemm.experts.w4_mma import GroupedMMA
from mxgemm.experts.wgmma import GroupedWgmmaConfig, config_for, wgmma_refusal

LEAST_ROWS: Final = 16
"""Of an expert in the mean, from which this route is chosen: below it w4_mma was faster on an H200."""
_MMA: Final = GroupedMMA()
_TRITON: Final = TritonGrouped()


class GroupedWgmma(ExpertsRoute):
    """Gather A into slabs, decode an expert's weight, multiply by ``wgmma``, activate and quantise."""

    name = "w4_wgmma"
    takes = "MXFP4 weights and many rows an expert on Hopper, e2m1, e4m3 or bf16 activations"
    reads_fragments = True
    suits_what = f"at least {LEAST_ROWS} rows an expert in the mean"

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, a compiler for it, and Triton."""
        return _MMA.missing(machine)

    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """See :func:`mxgemm.experts.wgmma.wgmma_refusal`."""
        return wgmma_refusal(problem)

    def suits(self, problem: GroupedProblem) -> bool:
        """Say whether experts have many rows."""
        return problem.rows >= LEAST_ROWS * problem.experts

    def config(self, problem: GroupedProblem) -> GroupedWgmmaConfig:
        """Return how a product is computed."""
        return config_for(problem)

    def block_rows(self, problem: GroupedProblem) -> int:
        """Rows of a tile."""
        return self.config(problem).columns

    def described(self, problem: GroupedProblem) -> str:
        """Its configuration."""
        return str(self.config(problem))

    def bind(self, problem: GroupedProblem) -> Launch:
        """Build the kernels, unless they are in the cache, and return the launcher, which lists tiles first."""
        config = self.config(problem)
        main, listed = self.launcher(problem, config), _TRITON.bind_list(problem, config.columns)
        nbytes = 12 * tile_list_rows(problem.rows, problem.experts, config.columns)

        def launch(o: Operands) -> None:
            with workspace.take(nbytes, o.out.device) as arena:
                tiles = arena.memory.view(torch.int32)
                listed(o.offsets, tiles)
                main(o._replace(tiles=tiles))

        return launch

    def bind_layer(
        self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, tokens: Tokens | None
    ) -> LayerLaunches:
        """Return the launches of a layer: each product has slabs of its own."""
        rows = self.block_rows(problems[0])
        assert rows == self.block_rows(problems[1]), "one tile list serves both products"
        quantise = None if tokens is None or tokens.a_format == "bf16" else self.bind_quantise(tokens, routing.machine)
        products = tuple(self.launcher(p, self.config(p)) for p in problems)
        sort = self.bind_route(routing, rows, early=quantise is not None)
        return LayerLaunches(sort, (products[0], products[1]), self.bind_combine(routing), quantise)

    def launcher(self, problem: GroupedProblem, config: GroupedWgmmaConfig) -> Launch:
        """Return the launcher of a product with a configuration, by a tile list.

        Raises:
            ValueError: the configuration is not legal.
            BuildError: the compiler refuses a source; the message has its output.
        """
        p, c = problem, config
        if refusal := wgmma.config_refusal(c):
            raise ValueError(f"config: {refusal}")
        slabs = Lazy(
            (wgmma.SLAB_SOURCE, wgmma.SLAB_KERNEL),
            wgmma.slab_defines(p, c),
            (wgmma.slab_grid(p, c), (wgmma.SLAB_THREADS, 1, 1)),
            wgmma.SLAB_POINTERS,
            wgmma.slab_constants(p),
        ).build(p.machine)
        # The list was written before the launch that makes slabs began.
        main = Lazy(
            (wgmma.SOURCE, wgmma.KERNEL),
            wgmma.defines(p, c, early=True),
            (wgmma.grid(p, c), (c.threads, 1, 1)),
            wgmma.POINTERS,
            wgmma.constants(p),
            c.shared_bytes,
        ).build(p.machine)
        return Slabbed(slabs, main, wgmma.slab_bytes(p, c), p.reads_index, p.writes_index)

    def bind_quantise(self, tokens: Tokens, machine: Machine) -> Quantise:
        """Return the launch of the route ``w4_mma`` that quantises a layer's tokens."""
        return _MMA.bind_quantise(tokens, machine)

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return Triton's sort."""
        return _TRITON.bind_sort(routing, block_rows)

    def bind_route(self, routing: Routing, rows: int, *, early: bool) -> Sort:
        """Return the sort of the route ``w4_mma``."""
        return _MMA.bind_route(routing, rows, early=early)

    def bind_combine(self, routing: Routing) -> Combine:
        """Return the sums of the route ``w4_mma``."""
        return _MMA.bind_combine(routing)
