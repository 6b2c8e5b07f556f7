"""Runs the text of w4_fp8 on a CPU, lane by lane, with stand-ins for its instructions."""

from __future__ import annotations

import torch
from torch import Tensor

from mxgemm.cuda import w4_fp8, warpgroups
from mxgemm.cuda.operands import ROUND_POINTERS, ROUND_THREADS, round_constants
from mxgemm.cuda.w4_fp8 import Fp8Config
from mxgemm.problem import Problem
from mxgemm.routes import Operands
from tests.cuda import lanes, lanes_wgmma


def run(problem: Problem, config: Fp8Config, given: Operands, late: int = 0) -> int:
    """Run both launches over their whole grids and return the matrix instructions of all warps.

    Args:
        problem: what the operands are.
        config: how it is divided.
        given: operands.
        late: turns of all lanes until a slab of A has come, one after the other.
    """
    slabs = folded_a(problem, config, given.a)
    operands = slabs, given.b, given.b_scales, given.derived[-1], given.bias, given.out
    pointers = [0 if x is None else x.data_ptr() for x in operands]
    packed = w4_fp8.POINTERS.pack(*pointers) + warpgroups.constants(problem)
    macros = tuple(sorted({**w4_fp8.defines(problem, config), "LATE_COPIES": late}.items()))
    library = lanes_wgmma.built(macros, w4_fp8.SOURCE, w4_fp8.KERNEL)
    shared = w4_fp8.shared_bytes(config)
    return lanes._run(library, packed, warpgroups.grid(problem, config), warpgroups.block(config), operands, shared)


def folded_a(problem: Problem, config: Fp8Config, a: Tensor) -> Tensor:
    """Run the launch that folds A."""
    library = lanes._built(
        tuple(sorted(w4_fp8.fold_defines(problem, config).items())),
        (w4_fp8.FOLD_SOURCE, w4_fp8.FOLD_KERNEL, "FoldArguments", 0),
    )
    made = torch.full((w4_fp8.folded_bytes(problem, config),), 255, dtype=torch.uint8)
    packed = ROUND_POINTERS.pack(a.data_ptr(), made.data_ptr()) + round_constants(problem)
    grid = w4_fp8.fold_grid(problem, config)
    lanes._run(library, packed, grid, (ROUND_THREADS, 1, 1), (a, made), 0)
    return made
