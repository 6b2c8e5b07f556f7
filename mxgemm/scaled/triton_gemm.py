"""Route ``triton`` of ``quant_gemm``: one launch of mxgemm's own kernel, of one problem or of many."""

from __future__ import annotations

from typing import Any, Final

import torch

from mxgemm import workspace
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute
from mxgemm.scaled.tile import (
    Tile,
    dot_of,
    group_block,
    programs,
    size_refusal,
    tile_for,
    tile_refusal,
    tiles,
    wide_offsets,
)
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import interpreting, triton_missing


class TritonGemm(QuantRoute):
    """Every scheme, format and layout, wherever Triton compiles."""

    name = "triton"
    takes = "everything, on a GPU"

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU, or Triton's interpreter."""
        return triton_missing(machine)

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """Sizes that the kernels count."""
        return size_refusal(problem) or tile_refusal(problem, tile_for(problem))

    def accumulate_bits(self, problem: QuantProblem) -> int:
        """sm_90's fp8 units keep 13 bits."""
        return 13 if problem.arch == "sm_90" and dot_of(problem) != "bf16" else 24

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher of the problem's tile."""
        return bind(problem, tile_for(problem))


def bind(problem: QuantProblem, tile: Tile) -> Launch:
    """Return the launcher of a legal tile."""
    main = Launcher(call_for(problem, tile))
    if problem.groups:

        def launch_grouped(operands: Operands) -> None:
            a, a_scales, b, b_scales, _, out, offsets = operands
            assert offsets is not None
            main(a, b, out if a_scales is None else a_scales, out if b_scales is None else b_scales, offsets, out)

        return launch_grouped

    nbytes = 4 * tile.split_k * problem.m * problem.n

    def launch(operands: Operands) -> None:
        a, a_scales, b, b_scales, bias, out, _ = operands
        # Nothing reads the scales, the bias, the partial sums and the counters that a problem does not have.
        left, right = out if a_scales is None else a_scales, out if b_scales is None else b_scales
        added = out if bias is None else bias
        if tile.split_k == 1:
            main(a, b, left, right, added, out, out, out)
            return
        with workspace.take(nbytes, out.device, counters=tiles(problem, tile)) as arena:
            main(a, b, left, right, added, out, arena.memory.view(torch.float32), arena.counters)

    return launch


def call_for(problem: QuantProblem, tile: Tile) -> KernelCall:
    """Describe the launch of a problem."""
    p, st = problem, problem.strides
    grid, options = (programs(p, tile), 1, 1), compiler_options(p.arch, tile)
    operands = operand_dtypes(p)
    if p.groups:
        from mxgemm.triton.kernels.scaled_grouped import scaled_offsets_kernel

        constants = {**step_constants(p, tile), "GROUPS_BLOCK": group_block(p.groups), **end_constants(p, tile)}
        grouped = (
            *(p.m, p.n, p.k, p.groups, *st.a, st.b_group, *st.b, *st.a_scales, st.b_scales_group, *st.b_scales),
            *st.out,
        )
        return KernelCall(
            scaled_offsets_kernel, (*operands, torch.int32, p.out_dtype), grouped, constants, options, grid
        )
    from mxgemm.triton.kernels.scaled_gemm import scaled_gemm_kernel

    split, blocks = tile.split_k > 1, -(-p.k // tile.block_k)
    constants = {
        **step_constants(p, tile),
        "HAS_BIAS": p.bias_dtype is not None,
        "SPLIT_K": tile.split_k,
        "STEPS": -(-blocks // tile.split_k) if split else 0,
        "RUN": tile.run,
        "EVEN_M": p.m % tile.block_m == 0,
        **end_constants(p, tile),
        "XCDS": p.machine.xcds,
        "AMD": p.arch.startswith("gfx"),
    }
    scratch = (torch.float32, torch.int32) if split else (p.out_dtype, p.out_dtype)
    dtypes = (*operands, p.bias_dtype or p.out_dtype, p.out_dtype, *scratch)
    scalars = (p.m, p.n, p.k, *st.a, *st.b, *st.a_scales, *st.b_scales, *st.out, st.bias)
    return KernelCall(scaled_gemm_kernel, dtypes, scalars, constants, options, grid)


def operand_dtypes(problem: QuantProblem) -> tuple[torch.dtype, ...]:
    """Return the dtypes of A, B and their scales as kernels get them; C's for scales that there are not."""
    p, s = problem, problem.scheme
    elements = (torch.bfloat16 if name == "bf16" else torch.uint8 for name in (p.a_format, p.b_format))
    kinds = ((s.a_kind, p.a_scale), (s.b_kind, p.b_scale))
    scales = (p.out_dtype if kind == "none" else SCALE_BYTES.get(name, torch.uint8) for kind, name in kinds)
    return (*elements, *scales)


def step_constants(problem: QuantProblem, tile: Tile) -> dict[str, Any]:
    """Return the constants that every kernel begins with, in their order."""
    p, s, dot = problem, problem.scheme, dot_of(problem)
    whole = s.a_kind != "group" and s.b_kind != "group"
    short = p.arch == "sm_90" and dot != "bf16" and whole  # else 14 bits for all of K, too few for terms of one sign
    return {
        "A_TYPE": p.a_format,
        "B_TYPE": p.b_format,
        "DOT": dot,
        "A_SCALE": s.a_kind,
        "B_SCALE": s.b_kind,
        "A_SCALE_TYPE": p.a_scale,
        "B_SCALE_TYPE": p.b_scale,
        "A_GROUP_K": s.a_group,
        "B_GROUP_N": s.b_group[0],
        "B_GROUP_K": s.b_group[1],
        "SWAPPED": tile.swapped,
        "SHORT_K": min(tile.block_k, 128) if short else 0,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
    }


def end_constants(problem: QuantProblem, tile: Tile) -> dict[str, Any]:
    """Return the constants that say what needs no mask, no wide offset and no interpreter."""
    return {
        "EVEN_N": problem.n % tile.block_n == 0,
        "EVEN_K": problem.k % tile.block_k == 0,
        "WIDE": wide_offsets(problem),
        "INTERPRETED": interpreting(),
    }


def compiler_options(arch: str, tile: Tile) -> dict[str, int]:
    """Return the compiler's options for a tile."""
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return options | ({"matrix_instr_nonkdim": 16} if arch.startswith("gfx") else {})


SCALE_BYTES: Final = {"fp32": torch.float32}
