"""Runs the text of the grouped kernel for Hopper on a CPU, lane by lane."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

from mxgemm.cuda import grouped_mma
from mxgemm.cuda.grouped_mma import GroupedConfig
from mxgemm.experts.problem import GroupedProblem, Operands, Routing
from tests.cuda.lanes import HERE, KERNELS


def run(p: GroupedProblem, c: GroupedConfig, o: Operands, routing: Routing | None = None) -> int:
    """Run the kernel over its whole grid, by ids with a routing, and return the matrix instructions of all warps.

    Whatever is not the memory of an operand is out of bounds.
    """
    macros = grouped_mma.defines(p, c, by_ids=routing is not None, early=routing is not None)
    library = _built(tuple(sorted(macros.items())))
    results = [o.out] if o.out_scales is None else [o.out, o.out_scales]
    tensors = (o.a, o.a_scales, o.w, o.w_scales, o.bias, o.out, o.out_scales, o.offsets, o.places)
    packed = grouped_mma.POINTERS.pack(*(0 if t is None else t.data_ptr() for t in tensors))
    packed += grouped_mma.constants(p, routing)
    read = [t for t in tensors if t is not None and all(t is not result for result in results)]
    ranges = [value for tensor in (*read, *results) for value in _range(tensor)]
    of_ranges = (ctypes.c_int64 * len(ranges))(*ranges)
    shared = grouped_mma.shared_bytes(c, routing is not None)
    grid, block = grouped_mma.grid(p, c)[0], grouped_mma.block(c)[0]
    return int(library.run(packed, len(packed), grid, block, of_ranges, len(ranges) // 2, len(results), shared))


def _range(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), reach * tensor.element_size()


@cache
def _built(defines: tuple[tuple[str, int | str], ...]) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: on Debian and Ubuntu: apt install g++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*KERNELS.iterdir(), *HERE.glob("*.cpp"), *HERE.glob("*.h")):  # the stand-ins last: they replace
            shutil.copy(file, folder / file.name)
        macros = [f"-D{key}={value}" for key, value in defines]
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-w", *macros]
        done = subprocess.run([*command, "lanes_grouped.cpp", "-o", "lanes.so"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(folder / "lanes.so"))
    library.run.argtypes = (
        *(ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int),
        *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    library.run.restype = ctypes.c_long
    return library
