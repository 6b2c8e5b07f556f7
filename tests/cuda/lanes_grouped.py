"""Runs the text of the grouped kernel for Hopper, and of the small ones around it, on a CPU, lane by lane."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mxgemm.experts import mma as grouped_mma
from mxgemm.experts import mma_around as around
from mxgemm.experts import wgmma, whole
from mxgemm.experts.mma import GroupedConfig
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens, tile_list_rows
from mxgemm.experts.wgmma import GroupedWgmmaConfig
from mxgemm.mx.formats import FORMATS
from tests.cuda.lanes import HERE, KERNELS

Kernel = tuple[str, str, str]
"""Source, kernel, its arguments' type."""


def multiply(p: GroupedProblem, c: GroupedConfig, o: Operands, routing: Routing | None = None) -> int:
    """Run a grouped product, by ids with a routing, and return the matrix instructions of all warps."""
    results = [o.out] if o.out_scales is None else [o.out, o.out_scales]
    found = o.offsets if o.tiles is None else o.tiles
    tensors = (o.a, o.a_scales, o.w, o.w_scales, o.bias, o.out, o.out_scales, found, o.places)
    packed = grouped_mma.POINTERS.pack(*addresses(*tensors)) + grouped_mma.constants(p, c, routing)
    macros = grouped_mma.defines(p, c, by_ids=routing is not None, early=routing is not None)
    by_ids = routing is not None
    sizes = grouped_mma.grid(p, c, by_ids)[0], grouped_mma.block(c)[0], grouped_mma.shared_bytes(p, c)
    return run((*grouped_mma.kernel(c), "Arguments"), macros, packed, sizes, tensors, results)


def multiply_wgmma(p: GroupedProblem, c: GroupedWgmmaConfig, o: Operands) -> int:
    """Make slabs of a grouped product's A by a tile list, and multiply them; return the products of all warps."""
    assert o.tiles is not None
    slabs = torch.full((wgmma.slab_bytes(p, c),), 255, dtype=torch.uint8)
    tensors = (o.a, o.a_scales, slabs, o.tiles, o.places if p.reads_index else None)
    packed = wgmma.SLAB_POINTERS.pack(*addresses(*tensors)) + wgmma.slab_constants(p)
    sizes = wgmma.slab_grid(p, c)[0], wgmma.SLAB_THREADS, 0
    kernel = wgmma.SLAB_SOURCE, wgmma.SLAB_KERNEL, "SlabArguments"
    run(kernel, wgmma.slab_defines(p, c), packed, sizes, tensors, [slabs])
    results = [o.out] if o.out_scales is None else [o.out, o.out_scales]
    index = o.places if p.writes_index else None
    tensors = (slabs, o.w, o.w_scales, o.bias, o.out, o.out_scales, o.tiles, index)
    packed = wgmma.POINTERS.pack(*addresses(*tensors)) + wgmma.constants(p)
    sizes = wgmma.grid(p, c)[0], c.threads, c.shared_bytes
    kernel = wgmma.SOURCE, wgmma.KERNEL, "Arguments"
    return run(kernel, wgmma.defines(p, c, early=True), packed, sizes, tensors, results)


def multiply_whole(
    problems: whole.Problems,
    c: whole.WholeConfig,
    routing: Routing,
    tokens: Tokens | None,
    a: tuple[Tensor, Tensor | None],
    weights: tuple[tuple[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor | None]],
    ids: Tensor,
    expert_map: Tensor | None,
    *,
    workgroups: int,
    at_once: bool,
) -> Tensor:
    """Run both products of a layer, by some workgroups, and the launch before; return pairs' results."""
    pairs, words, row, of_scales, columns = whole.sizes(problems, c, routing)
    places, tiles = torch.full((pairs,), -1, dtype=torch.int32), torch.full((words,), -5, dtype=torch.int32)
    data = scales = None
    if tokens is not None:
        data = torch.full((tokens.tokens, tokens.hidden // FORMATS[tokens.a_format].pack), 255, dtype=torch.uint8)
        scales = torch.full((tokens.tokens, tokens.hidden // 32), 254, dtype=torch.uint8)
    tensors = (places, tiles, ids, expert_map, None if tokens is None else a[0], data, scales)
    packed = whole.BEGIN_POINTERS.pack(*addresses(*tensors)) + whole.begin_constants(c, tokens, routing)
    kernel = whole.BEGIN_SOURCE, whole.BEGIN_KERNEL, "BeginArguments"
    sizes = whole.begin_grid(tokens, routing)[0], whole.begin_threads(routing), whole.begin_shared_bytes(routing)
    made = [t for t in (places, tiles, data, scales) if t is not None]
    run(kernel, whole.begin_defines(tokens, c, routing), packed, sizes, tensors, made)
    read = a if tokens is None else (data, scales)
    inner = torch.full((pairs, row), 255, dtype=torch.uint8)
    inner_scales = torch.full((pairs, of_scales), 254, dtype=torch.uint8) if of_scales else None
    y = torch.full((pairs, columns), float("nan"))
    tensors = (*read, *weights[0], inner, inner_scales, *weights[1], y, tiles, places, ids, expert_map)
    shares, whole.programs = whole.programs, lambda *_: workgroups
    try:
        packed = whole.POINTERS.pack(*addresses(*tensors)) + whole.constants(problems, c, routing)
    finally:
        whole.programs = shares
    macros = {**whole.defines(problems, c), "AT_ONCE": int(at_once)}
    results = [t for t in (inner, inner_scales, y, tiles) if t is not None]
    sizes = workgroups, c.threads, whole.shared_bytes(problems, c)
    run((whole.SOURCE, whole.KERNEL, "LayerArguments"), macros, packed, sizes, tensors, results)
    return y


def quantise(t: Tokens, x: Tensor) -> tuple[Tensor, Tensor]:
    """Run the launch that quantises tokens."""
    data = torch.full((t.tokens, t.hidden // FORMATS[t.a_format].pack), 255, dtype=torch.uint8)
    scales = torch.full((t.tokens, t.hidden // 32), 254, dtype=torch.uint8)
    packed = around.QUANTISE_POINTERS.pack(*addresses(x, data, scales)) + around.quantise_constants(t)
    kernel = around.QUANTISE_SOURCE, around.QUANTISE_KERNEL, "QuantiseArguments"
    sizes = around.quantise_grid(t)[0], around.THREADS, 0
    run(kernel, around.quantise_defines(t), packed, sizes, (x, data, scales), [data, scales])
    return data, scales


def route(
    r: Routing, rows: int, ids: Tensor, expert_map: Tensor | None, *, sorts: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the launch that sorts pairs and lists tiles of so many rows; or the one for any number of them."""
    places = torch.full((r.pairs,), -1, dtype=torch.int32)
    tiles = torch.full((tile_list_rows(r.pairs, r.experts, rows), 3), -5, dtype=torch.int32)
    tensors = (places, tiles, ids, expert_map)
    packed = around.ROUTE_POINTERS.pack(*addresses(*tensors)) + around.route_constants(r)
    sizes = 1, around.ROUTE_THREADS, around.ROUTE_SHARED_BYTES
    kernel = around.ROUTE_SOURCE, around.ROUTE_KERNEL, "PlacesArguments"
    if sorts:
        sizes = 1, around.SORT_THREADS, around.sort_shared_bytes(r)
        kernel = around.SORT_SOURCE, around.SORT_KERNEL, "PlacesArguments"
    run(kernel, around.route_defines(rows, early=True), packed, sizes, tensors, [places, tiles])
    return places, tiles


def combine(r: Routing, y: Tensor, ids: Tensor, weights: Tensor, expert_map: Tensor | None, out: Tensor) -> None:
    """Run the launch that adds up."""
    tensors = (y, weights, out, ids, expert_map)
    packed = around.SUM_POINTERS.pack(*addresses(*tensors)) + around.sum_constants(r)
    sizes = around.sum_grid(r)[0], around.THREADS, 0
    run((around.SUM_SOURCE, around.SUM_KERNEL, "SumArguments"), around.sum_defines(r), packed, sizes, tensors, [out])


def addresses(*tensors: Tensor | None) -> list[int]:
    """Return where tensors are, 0 for those that are not."""
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def run(
    kernel: Kernel,
    macros: dict[str, int | str],
    packed: bytes,
    sizes: tuple[int, int, int],
    tensors: tuple[Tensor | None, ...],
    results: list[Tensor],
) -> int:
    """Run a kernel over its whole grid. Whatever is not the memory of an operand is out of bounds.

    Args:
        kernel: which.
        macros: that it is built with.
        packed: its arguments.
        sizes: workgroups, threads of one, bytes of shared memory.
        tensors: operands.
        results: those of them that are written, and not read.
    """
    library = _built(kernel, tuple(sorted(macros.items())))
    read = [t for t in tensors if t is not None and all(t is not result for result in results)]
    ranges = [value for tensor in (*read, *results) for value in _range(tensor)]
    of_ranges = (ctypes.c_int64 * len(ranges))(*ranges)
    grid, threads, shared = sizes
    counts = len(ranges) // 2, len(results)
    return int(library.run(packed, len(packed), grid, threads, of_ranges, *counts, shared))


def _range(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), reach * tensor.element_size()


@cache
def _built(kernel: Kernel, defines: tuple[tuple[str, int | str], ...]) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: on Debian and Ubuntu: apt install g++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*KERNELS.iterdir(), *HERE.glob("*.cpp"), *HERE.glob("*.h")):  # the stand-ins last: they replace
            shutil.copy(file, folder / file.name)
        given = ("SOURCE", f'"{kernel[0]}"'), ("KERNEL", kernel[1]), ("ARGUMENTS", kernel[2])
        macros = [f"-D{key}={value}" for key, value in (*defines, *given)]
        drivers = {wgmma.KERNEL: "lanes_grouped_wgmma.cpp", whole.KERNEL: "lanes_grouped_layer.cpp"}
        driver = drivers.get(kernel[1], "lanes_grouped.cpp")
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-w", *macros, driver]
        done = subprocess.run([*command, "-o", "lanes.so"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(folder / "lanes.so"))
    library.run.argtypes = (
        *(ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int),
        *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    library.run.restype = ctypes.c_long
    return library
