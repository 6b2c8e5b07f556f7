"""Route ``triton`` of grouped products: persistent programs over a tile list that a launch before has made.

A row's sums over K have one order, whatever rows it lies beside: K is never split, its step is the same for all
problems of an architecture, and so is the matrix instruction. On gfx950 that has sixteen rows in tiles of any height;
on NVIDIA's GPUs tiles stay below the 64 rows from which Triton takes another one (``wgmma``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, tile_list_rows
from mxgemm.experts.route import Combine, ExpertsRoute, Launch, Sort, Sorted
from mxgemm.mx.formats import FORMATS, scale_addend
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import INT32_MAX, MAX_SIZE, interpreting, next_power_of_two, triton_missing

LANES: Final = 1024
"""Pairs that a program of the sort looks at at a time."""
SUM_COLUMNS: Final = 1024
"""Columns of a program that adds up a token's results."""
PROGRAMS_PER_UNIT: Final = 4
"""Programs of a grouped product for each compute unit."""
MAX_EXPERTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of one program; every problem of an architecture and format has the same ``block_k``.

    Attributes:
        block_m: rows.
        block_n: rows of a weight.
        block_k: elements of a step along K.
        num_warps: warps (waves) of a program.
        num_stages: software pipeline depth of the loop over K.
    """

    block_m: int
    block_n: int = 64
    block_k: int = 128
    num_warps: int = 4
    num_stages: int = 2


def tile_for(problem: GroupedProblem) -> Tile:
    """Return the tile of a problem: as high as the groups are, if all have the same."""
    per_expert = problem.rows // problem.experts
    if problem.arch == "gfx950":
        if problem.a_format == "bf16":
            return Tile(16 if per_expert <= 16 else 64, 64, 128)
        return Tile(16 if per_expert <= 16 else 32 if per_expert <= 64 else 64, 128, 256)
    return Tile(16 if per_expert <= 16 else 32, 64, 128, num_stages=3)


class TritonGrouped(ExpertsRoute):
    """Grouped products in one launch, after one that sorts or lists."""

    name = "triton"
    takes = "everything, on a GPU"

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU that Triton compiles a scaled dot for."""
        return triton_missing(machine, "quantised") or triton_missing(machine, "bf16")

    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """Sizes that the kernels count."""
        p = problem
        for name in ("rows", "a_rows", "n", "k"):
            if getattr(p, name) > MAX_SIZE:
                return Refusal(name, getattr(p, name), f"at most {MAX_SIZE}, what the kernels count in 32 bits")
        if p.experts > MAX_EXPERTS:
            return Refusal("experts", p.experts, f"at most {MAX_EXPERTS}")
        tiles = tile_list_rows(p.rows, p.experts, tile_for(p).block_m) * -(-p.n // tile_for(p).block_n)
        return Refusal("rows", p.rows, f"at most {INT32_MAX} tiles, here {tiles}") if tiles > INT32_MAX else None

    def block_rows(self, problem: GroupedProblem) -> int:
        """Rows of a tile."""
        return tile_for(problem).block_m

    def described(self, problem: GroupedProblem) -> str:
        """Its tile."""
        return str(tile_for(problem))

    def bind(self, problem: GroupedProblem) -> Launch:
        """Return the launcher; it makes the tile list if it gets none."""
        tile = tile_for(problem)
        main, lister = Launcher(product_call(problem, tile)), Launcher(list_call(problem, tile))
        nbytes = 12 * tile_list_rows(problem.rows, problem.experts, tile.block_m)

        def launch(o: Operands) -> None:
            if o.tiles is not None:
                main(*tensors_of(o, o.tiles))
                return
            with workspace.take(nbytes, o.out.device) as arena:
                tiles = arena.memory.view(torch.int32)
                lister(o.offsets, tiles)
                main(*tensors_of(o, tiles))

        return launch

    def bind_list(self, problem: GroupedProblem, rows: int) -> Callable[[Tensor, Tensor], None]:
        """Return the launch that makes a tile list of tiles of so many rows: of offsets, the list."""
        return Launcher(list_call(problem, Tile(rows)))

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return the launch that sorts and lists."""
        launcher = Launcher(sort_call(routing, block_rows))
        rows = tile_list_rows(routing.pairs, routing.experts, block_rows)

        def sort(ids: Tensor, expert_map: Tensor | None) -> Sorted:
            new = ids.new_empty
            index = new(routing.pairs, dtype=torch.int32)
            offsets, tiles = new(routing.experts + 1, dtype=torch.int32), new((rows, 3), dtype=torch.int32)
            with workspace.take(0, ids.device, counters=1) as arena:
                launcher(ids, index if expert_map is None else expert_map, index, offsets, tiles, arena.counters)
            return Sorted(index, offsets, tiles)

        return sort

    def bind_combine(self, routing: Routing) -> Combine:
        """Return the launch that adds up."""
        launcher = Launcher(sum_call(routing))

        def combine(y: Tensor, ids: Tensor, weights: Tensor, expert_map: Tensor | None, out: Tensor) -> None:
            launcher(y, ids, weights, ids if expert_map is None else expert_map, out)

        return combine


def tensors_of(o: Operands, tiles: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors of a product as its kernel takes them: the result stands for what there is not."""
    absent = o.out
    optional = (o.a_scales, o.bias, o.places, o.out_scales)
    a_scales, bias, index, out_scales = (absent if tensor is None else tensor for tensor in optional)
    return o.a, a_scales, o.w, o.w_scales, bias, tiles, index, o.out, out_scales


def product_call(problem: GroupedProblem, tile: Tile) -> KernelCall:
    """Describe the launch of a product."""
    from mxgemm.triton.kernels.grouped_gemm import grouped_gemm_kernel

    p, s, out_format = problem, problem.strides, FORMATS.get(problem.out_format)
    act = p.activation
    most = (tile_list_rows(p.rows, p.experts, tile.block_m) - 1) * -(-p.n // tile.block_n)
    programs = max(1, min(most, PROGRAMS_PER_UNIT * max(p.machine.cu_count, 1)))
    constants: dict[str, Any] = {
        "A_FORMAT": p.a_format,
        "B_FORMAT": p.b_format,
        "READS_INDEX": p.reads_index,
        "DIVISOR": p.divisor,
        "WRITES_INDEX": p.writes_index,
        "HAS_BIAS": p.bias_dtype is not None,
        "GATED": act is not None,
        "INTERLEAVED": act is not None and act.interleaved,
        "ALPHA": float(act.alpha) if act else 0.0,
        "LIMIT": float(act.limit or 0.0) if act else 0.0,
        "OFFSET": float(act.offset) if act else 0.0,
        "OUT_FORMAT": p.out_format,
        "ADDEND": scale_addend(out_format, p.scale_rounding) if out_format else 0,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "PROGRAMS": programs,
        "EVEN_K": p.k % tile.block_k == 0,
        "WIDE": wide_offsets(p),
        "INTERPRETED": interpreting(),
    }
    quantised = p.a is not None
    dtypes = (
        p.a_dtype,
        torch.uint8 if quantised else p.out_dtype,
        torch.uint8,
        torch.uint8,
        p.bias_dtype or p.out_dtype,
        torch.int32,
        torch.int32 if p.reads_index or p.writes_index else p.out_dtype,
        p.out_dtype,
        torch.uint8 if out_format else p.out_dtype,
    )
    scalars = (p.a_rows, p.n, p.k, *s.a, *s.a_scales, *s.w, *s.w_scales, *s.bias, *s.out)
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if p.arch.startswith("gfx"):
        options["matrix_instr_nonkdim"] = 16
    return KernelCall(grouped_gemm_kernel, dtypes, scalars, constants, options, (programs, 1, 1))


def list_call(problem: GroupedProblem, tile: Tile) -> KernelCall:
    """Describe the launch that makes the tile list of a product."""
    from mxgemm.triton.kernels.route_pairs import tile_list_kernel

    constants = {"EXPERTS_BLOCK": next_power_of_two(problem.experts + 2), "BLOCK_M": tile.block_m}
    scalars = (problem.rows, problem.experts)
    return KernelCall(tile_list_kernel, (torch.int32, torch.int32), scalars, constants, {"num_warps": 4}, (1, 1, 1))


def sort_call(routing: Routing, block_rows: int) -> KernelCall:
    """Describe the launch that sorts pairs."""
    from mxgemm.triton.kernels.route_pairs import sort_pairs_kernel

    r = routing
    constants = {
        "MAPPED": bool(r.mapped),
        "BLOCK": min(LANES, max(64, next_power_of_two(r.pairs))),
        "EXPERTS_BLOCK": next_power_of_two(r.experts + 2),
        "BLOCK_M": block_rows,
        "AMD": r.machine.arch.startswith("gfx"),
    }
    dtypes = (r.id_dtype, *(torch.int32,) * 5)
    scalars = (r.pairs, r.experts, r.first, r.mapped)
    return KernelCall(sort_pairs_kernel, dtypes, scalars, constants, {"num_warps": 4}, (r.experts, 1, 1))


def sum_call(routing: Routing) -> KernelCall:
    """Describe the launch that adds up a token's results."""
    from mxgemm.triton.kernels.route_pairs import sum_pairs_kernel

    r = routing
    block = min(SUM_COLUMNS, next_power_of_two(r.columns))
    constants = {"MAPPED": bool(r.mapped), "TOP_K": r.top_k, "BLOCK": block, "INTERPRETED": interpreting()}
    dtypes = (torch.float32, r.id_dtype, r.weight_dtype, torch.int32 if r.mapped else r.id_dtype, r.out_dtype)
    scalars = (r.experts, r.first, r.mapped, r.columns, *r.out_strides)
    grid = (r.tokens, -(-r.columns // block), 1)
    return KernelCall(sum_pairs_kernel, dtypes, scalars, constants, {"num_warps": 4}, grid)


def wide_offsets(problem: GroupedProblem) -> bool:
    """Say whether an offset from a row's or a matrix's start can pass 2**31 - 1 elements."""
    p, s = problem, problem.strides
    rows = max(p.rows, p.a_rows) + 512
    spans = (
        (rows, s.a[0], p.k, s.a[1]),
        (rows, s.a_scales[0], p.k, s.a_scales[1]),
        (p.n, s.w[1], p.k, s.w[2]),
        (p.n, s.w_scales[1], p.k, s.w_scales[2]),
        (rows, s.out[0], p.n, s.out[1]),
        (p.n, s.bias[1], 0, 0),
    )
    # The masked tail of a tile is computed too: 512 more rows and columns are an upper bound of any block.
    return any((m + 512) * rs + (n + 512) * cs > INT32_MAX for m, rs, n, cs in spans)
