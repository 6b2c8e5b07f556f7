"""Route ``w4_mma`` of grouped products: up to 32 rows of an expert a workgroup on Hopper, in CUDA C++.

Workgroups take tiles of a list, or, of few pairs, find them by the ids as the router gave them: then nothing sorts.
Very many pairs are sorted by a launch of the route ``triton``, which also lists what offsets say. Launches
overlap: each waits for what it reads, and weights are on their way before the launch ahead has ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from mxgemm import workspace
from mxgemm.cuda.lazy import Lazy
from mxgemm.cuda.operands import ARCH, FORMATS
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts import mma as grouped_mma
from mxgemm.experts import mma_around as around
from mxgemm.experts import whole
from mxgemm.experts.launches import Combined, Product, Quantised, Routed, Whole, ids_alone
from mxgemm.experts.mma import FEW_PAIRS, MAX_ROUTED, GroupedConfig, config_for, grouped_refusal, registers_for
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens, tile_list_rows
from mxgemm.experts.route import BothProducts, Combine, ExpertsRoute, Launch, LayerLaunches, Quantise, Sort
from mxgemm.experts.triton_gemm import TritonGrouped
from mxgemm.experts.whole import WholeConfig

_TRITON: Final = TritonGrouped()
ROUNDED_TOKENS: Final = 128
"""Tokens that a first product with slots rounds by itself, once a workgroup and expert: a launch less."""


class GroupedMMA(ExpertsRoute):
    """Decode an expert's weight, multiply by ``mma.sync``, add the warps' sums, activate and quantise: one kernel."""

    name = "w4_mma"
    takes = "MXFP4 weights on Hopper, e2m1, e4m3 or bf16 activations"
    reads_fragments = True

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, a compiler for it, and Triton."""
        if machine.arch != ARCH:
            return Refusal("arch", machine.arch, f"{ARCH}: its bf16 arithmetic and mma.sync", "machine")
        from mxgemm.hip.build import compiler_missing

        return compiler_missing(machine.arch) or _TRITON.missing(machine)

    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """See :func:`mxgemm.experts.mma.grouped_refusal`."""
        return grouped_refusal(problem)

    def block_rows(self, problem: GroupedProblem) -> int:
        """Rows of a tile."""
        return self.config(problem).rows

    def config(self, problem: GroupedProblem) -> GroupedConfig:
        """Return how a product is computed."""
        return config_for(problem)

    def described(self, problem: GroupedProblem) -> str:
        """Its configuration."""
        return str(self.config(problem))

    def configs(self, problems: tuple[GroupedProblem, GroupedProblem]) -> tuple[GroupedConfig, GroupedConfig]:
        """Return how a layer's two products are computed: tiles of one height, which one list serves."""
        one, two = (self.config(p) for p in problems)
        return (one, two) if one.rows == two.rows else (registers_for(problems[0]), registers_for(problems[1]))

    def bind(self, problem: GroupedProblem) -> Launch:
        """Build the kernel, unless it is in the cache, and return the launcher, which lists tiles first."""
        config = self.config(problem)
        main, rows = self.launcher(problem, config, None, early=False), config.rows
        listed = _TRITON.bind_list(problem, rows)
        nbytes = 12 * tile_list_rows(problem.rows, problem.experts, rows)

        def launch(o: Operands) -> None:
            with workspace.take(nbytes, o.out.device) as arena:
                tiles = arena.memory.view(torch.int32)
                listed(o.offsets, tiles)
                main(o._replace(tiles=tiles))

        return launch

    few = FEW_PAIRS
    """Pairs that every warp sorts by itself."""
    rounding = ROUNDED_TOKENS
    """Tokens that the first product rounds by itself."""

    def bind_layer(
        self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, tokens: Tokens | None
    ) -> LayerLaunches:
        """Return the launches of a layer: of few pairs without a sort."""
        launched = self.bind_whole(problems, routing, tokens)
        if launched is not None:
            rounds = tokens is not None and tokens.a_format != "bf16"
            return LayerLaunches(None, (), self.bind_combine(routing), None, rounds, launched)
        one, two = self.configs(problems)
        rounds = tokens is not None and 0 < tokens.tokens <= self.rounding and rounds_tokens(problems[0], tokens)
        rounds = rounds and one.slots > 0
        if rounds:
            assert tokens is not None
            strides = replace(problems[0].strides, a=tokens.strides, a_scales=(0, 0))
            problems = replace(problems[0], a_dtype=tokens.dtype, strides=strides), problems[1]
        none = rounds or tokens is None or tokens.a_format == "bf16"
        quantise = None if none or tokens is None else self.bind_quantise(tokens, routing.machine)
        # Without a launch of ours ahead, what wrote the ids may not have ended when this one begins.
        early, few = quantise is not None, routing.pairs <= self.few
        first = self.launcher(problems[0], one, routing if few else None, early=few and early)
        second = self.launcher(problems[1], two, routing if few else None, early=True)
        assert few or one.rows == two.rows, "one tile list serves both products"
        if few:
            sort: Sort = ids_alone
        else:
            sort = self.bind_route(routing, one.rows, early=early)
        return LayerLaunches(sort, (first, second), self.bind_combine(routing), quantise, rounds)

    def whole_config(
        self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, tokens: Tokens | None
    ) -> WholeConfig | None:
        """Return how a layer is computed by one launch, None where its products are launches of their own."""
        return whole.config_for(problems) if whole.takes(problems, routing, tokens) else None

    def bind_whole(
        self, problems: tuple[GroupedProblem, GroupedProblem], routing: Routing, tokens: Tokens | None
    ) -> BothProducts | None:
        """Return both products as one launch, or None where they are launches of their own."""
        config = self.whole_config(problems, routing, tokens)
        if config is None:
            return None
        quantised = tokens if tokens is not None and tokens.a_format != "bf16" else None
        begin = Lazy(
            (whole.BEGIN_SOURCE, whole.BEGIN_KERNEL),
            whole.begin_defines(quantised, config, routing),
            (whole.begin_grid(quantised, routing), (whole.begin_threads(routing), 1, 1)),
            whole.BEGIN_POINTERS,
            whole.begin_constants(config, quantised, routing),
            whole.begin_shared_bytes(routing),
        ).build(routing.machine)
        main = Lazy(
            (whole.SOURCE, whole.KERNEL),
            whole.defines(problems, config),
            ((whole.programs(problems, config), 1, 1), (config.threads, 1, 1)),
            whole.POINTERS,
            whole.constants(problems, config, routing),
            whole.shared_bytes(problems, config),
        ).build(routing.machine)
        return Whole(begin, main, quantised, whole.sizes(problems, config, routing))

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
        by_ids = routing is not None
        launch = Lazy(
            grouped_mma.kernel(config),
            grouped_mma.defines(problem, config, by_ids=by_ids, early=early),
            (grouped_mma.grid(problem, config, by_ids), grouped_mma.block(config)),
            grouped_mma.POINTERS,
            grouped_mma.constants(problem, config, routing),
            grouped_mma.shared_bytes(problem, config),
        ).build(problem.machine)
        return Product(launch)

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return Triton's sort."""
        return _TRITON.bind_sort(routing, block_rows)

    def bind_quantise(self, tokens: Tokens, machine: Machine) -> Quantise:
        """Return the launch that quantises a layer's tokens."""
        return _quantise(tokens, machine)

    def bind_route(self, routing: Routing, rows: int, *, early: bool) -> Sort:
        """Return the launch that sorts pairs and lists tiles of so many rows."""
        if routing.experts > around.MAX_SORTED_EXPERTS or routing.pairs > around.MAX_SORTED:
            return _TRITON.bind_sort(routing, rows)
        few = max(routing.pairs, routing.experts) <= MAX_ROUTED
        launch = Lazy(
            (around.ROUTE_SOURCE, around.ROUTE_KERNEL) if few else (around.SORT_SOURCE, around.SORT_KERNEL),
            around.route_defines(rows, early=early),
            ((1, 1, 1), (around.ROUTE_THREADS if few else around.SORT_THREADS, 1, 1)),
            around.ROUTE_POINTERS,
            around.route_constants(routing),
            around.ROUTE_SHARED_BYTES if few else around.sort_shared_bytes(routing),
        ).build(routing.machine)
        return Routed(launch, routing.pairs, tile_list_rows(routing.pairs, routing.experts, rows))

    def bind_combine(self, routing: Routing) -> Combine:
        """Return the launch that adds up, Triton's for many pairs a token."""
        if routing.top_k > around.MAX_TOP_K:
            return _TRITON.bind_combine(routing)
        launch = Lazy(
            (around.SUM_SOURCE, around.SUM_KERNEL),
            around.sum_defines(routing),
            (around.sum_grid(routing), (around.THREADS, 1, 1)),
            around.SUM_POINTERS,
            around.sum_constants(routing),
        ).build(routing.machine)

        return Combined(launch)


def _quantise(tokens: Tokens, machine: Machine) -> Quantise:
    assert tokens.a_format in FORMATS
    launch = Lazy(
        (around.QUANTISE_SOURCE, around.QUANTISE_KERNEL),
        around.quantise_defines(tokens),
        (around.quantise_grid(tokens), (around.THREADS, 1, 1)),
        around.QUANTISE_POINTERS,
        around.quantise_constants(tokens),
    ).build(machine)
    return Quantised(launch, tokens)


def rounds_tokens(problem: GroupedProblem, tokens: Tokens) -> bool:
    """Say whether the first product can round tokens as a launch before it would: to the same bits."""
    vector = tokens.aligned and tokens.strides[1] == 1 and tokens.strides[0] % 8 == 0
    return tokens.a_format != "bf16" and tokens.dtype == torch.bfloat16 and vector and problem.aligned
