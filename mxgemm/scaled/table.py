"""Problems of their own sizes in one launch: a table of addresses and sizes that the kernel reads.

A row has 20 words of 64 bits: the first tile; M, N, K; place and strides (row, along K) of A, B, A's scales, B's
scales; place and strides (row, column) of C; one that is left over. A place is an address; of A, B and C it may be a
number of elements, from where the first problem's lies.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.ambient import is_observed
from mxgemm.device import machine_of
from mxgemm.mx.freshness import mark_written
from mxgemm.plan import flat_view
from mxgemm.scaled.choice import choose
from mxgemm.scaled.plan import check_apart, flat_scales, stored, strides_of
from mxgemm.scaled.problem import Options, QuantProblem
from mxgemm.scaled.tile import Tile, tile_for
from mxgemm.scaled.triton_gemm import compiler_options, operand_dtypes, step_constants
from mxgemm.scaled.validation import check_call, scale_name
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import INT32_MAX, interpreting, next_power_of_two

Call = tuple[Tensor, Tensor | None, Tensor, Tensor | None, Any, Options]
"""Elements and scales of A and B, the output or None, and the options of one problem."""

MAX_LAUNCHERS: Final = 1024

_launchers: dict[Hashable, Launcher] = {}


@dataclass(frozen=True, slots=True)
class Row:
    """One problem with its tensors as the kernel gets them."""

    problem: QuantProblem
    operands: tuple[Tensor, Tensor | None, Tensor, Tensor | None]
    leading: tuple[int, ...]
    out: Tensor | None


def check_calls(calls: Sequence[Call]) -> list[tuple[tuple[int, ...], int, int]]:
    """Check every problem before any is launched; return leading dimensions, N and K of each.

    Raises:
        TypeError, ValueError, RuntimeError: as ``quant_gemm``; the message begins with the problem's number.
    """
    found = []
    for index, (a, a_scales, b, b_scales, out, options) in enumerate(calls):
        try:
            found.append(check_call(a, a_scales, b, b_scales, None, out, options))
            check_apart((a, a_scales, b, b_scales, None, out, None))
        except (TypeError, ValueError, RuntimeError) as error:
            raise type(error)(f"problem {index}: {error}") from None
    return found


def table_rows(calls: Sequence[Call]) -> list[Row] | None:
    """Return the rows of one launch for problems that were checked; None where they are to be launched one by one.

    Problems that name the bridge's route are for its own launch (:mod:`mxgemm.scaled.bridge_several`).

    Raises:
        TypeError, ValueError, RuntimeError: see :func:`check_calls`.
        RouteUnavailable: the route that is named cannot run a problem.
    """
    rows: list[Row] = []
    for (leading, n, k), (a, a_scales, b, b_scales, out, options) in zip(check_calls(calls), calls, strict=True):
        tensors = (a, a_scales, b, b_scales, None, out)
        if is_observed(*tensors) or a.is_meta or any(t is not None and t.is_neg() for t in tensors):
            return None
        if options.route not in (None, "triton", "bridge"):
            return None
        m = math.prod(leading)
        flat_out = None if out is None else flat_view(out, m, n)
        if out is not None and flat_out is None:
            return None
        strides = strides_of(a, a_scales, b, b_scales, None, flat_out, m, n, options)
        names = scale_name(a_scales), scale_name(b_scales)
        aligned = all(t is None or t.data_ptr() % 16 == 0 for t in tensors)
        problem = QuantProblem(m, n, k, machine_of(a.device), options, strides, *names, None, aligned)
        if m and k and choose(problem, options.route).name not in ("triton", options.route):
            return None
        flat = a if a.dim() == 2 else a.reshape(m, a.shape[-1])
        left = None if a_scales is None else flat_scales(a_scales, options.scheme.a_kind, m, a.dim() == 2)
        rows.append(Row(problem, (flat, left, b, b_scales), leading, flat_out))
    if rows and rows[0].problem.options.route == "bridge":
        return rows
    return rows if rows and _alike(rows) else None


def _alike(rows: Sequence[Row]) -> bool:
    """Say whether one kernel serves all problems, and may be launched now."""
    first = rows[0].problem
    kinds = {(r.problem.options, r.problem.a_scale, r.problem.b_scale, r.operands[0].device) for r in rows}
    device = rows[0].operands[0].device
    if len(kinds) > 1 or not (device.type == "cuda" or (interpreting() and first.options.route == "triton")):
        return False
    # A graph would copy the table from host memory that is another's by the time it is replayed.
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def multiply_rows(rows: Sequence[Row], outs: Sequence[Tensor | None]) -> list[Tensor]:
    """Multiply all problems in one launch."""
    device = rows[0].operands[0].device
    if device.type == "cuda":
        with torch.cuda.device(device):
            return _multiply(rows, outs, device)
    return _multiply(rows, outs, device)


def _multiply(rows: Sequence[Row], outs: Sequence[Tensor | None], device: torch.device) -> list[Tensor]:
    dtype = rows[0].problem.out_dtype
    results, words, tiles = [], [], 0
    largest = max((row.problem for row in rows), key=lambda p: (p.m, p.k))
    tile = tile_for(_whole(largest, max(row.problem.k for row in rows)))
    first: tuple[Tensor, Tensor, Tensor] | None = None
    for row, given in zip(rows, outs, strict=True):
        p, st = row.problem, row.problem.strides
        result = torch.empty((*row.leading, p.n), dtype=dtype, device=device) if given is None else given
        results.append(result)
        if not p.m:
            continue
        a, a_scales, b, b_scales = (stored(tensor) for tensor in row.operands)
        assert a is not None
        assert b is not None
        three = (a, b, result.view(p.m, p.n) if row.out is None else row.out)
        first = first or three
        places = [_place(tensor, base, device) for tensor, base in zip(three, first, strict=True)]
        scales = [0 if tensor is None else tensor.data_ptr() for tensor in (a_scales, b_scales)]
        words.append(
            [
                *(tiles, p.m, p.n, p.k, places[0], *st.a, places[1], *st.b),
                *(scales[0], *st.a_scales, scales[1], *st.b_scales, places[2], *st.out, 0),
            ]
        )
        tiles += -(-p.m // tile.block_m) * -(-p.n // tile.block_n)
    if tiles > INT32_MAX:
        raise ValueError(f"a: got problems of {tiles} tiles together, want at most {INT32_MAX}")
    if first is not None:
        table = torch.tensor(words, dtype=torch.int64, device="cpu")
        if device.type == "cuda":
            table = table.pin_memory().to(device, non_blocking=True)
        launcher = _launcher([row.problem for row in rows if row.problem.m], tile, tiles, len(words))
        launcher(table, *first)
    for given in outs:
        if given is not None:
            mark_written(given)
    return results


def from_first(arch: str) -> bool:
    """Say whether places of A, B and C are counted from the first problem's: see the kernel's ``pointer``."""
    return arch.startswith("sm_")


def _place(tensor: Tensor, first: Tensor, device: torch.device) -> int:
    address: int = tensor.data_ptr()
    if not from_first(machine_of(device).arch):
        return address
    return (address - first.data_ptr()) // tensor.element_size()


def _whole(problem: QuantProblem, k: int) -> QuantProblem:
    return QuantProblem(
        *(max(problem.m, 1), problem.n, k, problem.machine, problem.options, problem.strides, problem.a_scale),
        problem.b_scale,
    )


def _launcher(problems: Sequence[QuantProblem], tile: Tile, tiles: int, count: int) -> Launcher:
    call = call_for(problems, tile, tiles, count)
    key = (call.dtypes, call.scalars, tuple(call.constants.items()), tuple(call.options.items()), call.grid)
    known = _launchers.get(key)
    if known is None:
        if len(_launchers) >= MAX_LAUNCHERS:
            _launchers.clear()
        known = _launchers.setdefault(key, Launcher(call))
    return known


def call_for(problems: Sequence[QuantProblem], tile: Tile, tiles: int, count: int) -> KernelCall:
    """Describe the launch of a table of ``count`` problems with ``tiles`` tiles."""
    from mxgemm.triton.kernels.scaled_grouped import scaled_table_kernel

    longest = _whole(problems[0], max(p.k for p in problems))
    constants = {
        **step_constants(longest, tile),
        "PROBLEMS_BLOCK": next_power_of_two(count),
        "EVEN_N": all(p.n % tile.block_n == 0 for p in problems),
        "EVEN_K": all(p.k % tile.block_k == 0 for p in problems),
        "ALIGNED": all(p.aligned and _rows_aligned(p) for p in problems),
        "FROM_FIRST": from_first(longest.arch),
        "INTERPRETED": interpreting(),
    }
    options = compiler_options(longest.arch, tile)
    dtypes = (torch.int64, *operand_dtypes(longest)[:2], longest.out_dtype)
    return KernelCall(scaled_table_kernel, dtypes, (count,), constants, options, (tiles, 1, 1))


def _rows_aligned(p: QuantProblem) -> bool:
    st = p.strides
    pairs = (st.a, st.b, st.out)
    return all(row % 16 == 0 and step == 1 for row, step in pairs)
