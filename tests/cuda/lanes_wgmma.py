"""Runs the text of w4_wgmma on a CPU, lane by lane, with stand-ins for its instructions."""

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

from mxgemm.cuda import w4_wgmma, warpgroups
from mxgemm.cuda.operands import ROUND_POINTERS, ROUND_THREADS, fragments, round_constants
from mxgemm.cuda.w4_wgmma import WgmmaConfig
from mxgemm.mx.fragments import code_bytes, scale_bytes
from mxgemm.problem import Problem
from mxgemm.routes import Operands
from mxgemm.routes.w4_mma import addresses
from tests.cuda import lanes


def run(problem: Problem, config: WgmmaConfig, given: Operands) -> int:
    """Run both launches over their whole grids and return the matrix instructions of all warps."""
    rounded = rounded_a(problem, config, given.a)
    weight: tuple[Tensor, ...] = given.b, given.b_scales
    if fragments(problem):
        sizes = code_bytes(problem.n, problem.k), scale_bytes(problem.n, problem.k)
        weight = given.derived[problem.derived == "bf16"][-sum(sizes) :].split(sizes)
    operands = rounded, *weight, given.bias, given.out
    pointers = [0 if x is None else x.data_ptr() for x in operands]
    pointers[1:3] = addresses(problem, given.b, given.b_scales, given.derived)
    packed = w4_wgmma.POINTERS.pack(*pointers) + warpgroups.constants(problem)
    library = built(tuple(sorted(w4_wgmma.defines(problem, config).items())), w4_wgmma.SOURCE, w4_wgmma.KERNEL)
    shared = w4_wgmma.shared_bytes(config)
    return lanes._run(library, packed, warpgroups.grid(problem, config), warpgroups.block(config), operands, shared)


def rounded_a(problem: Problem, config: WgmmaConfig, a: Tensor) -> Tensor:
    """Run the launch that rounds A."""
    library = lanes._built(
        tuple(sorted(w4_wgmma.round_defines(problem, config).items())),
        (w4_wgmma.ROUND_SOURCE, w4_wgmma.ROUND_KERNEL, "RoundArguments", 0),
    )
    made = torch.full((w4_wgmma.rounded_bytes(problem, config),), 255, dtype=torch.uint8)
    packed = ROUND_POINTERS.pack(a.data_ptr(), made.data_ptr()) + round_constants(problem)
    grid = w4_wgmma.round_grid(problem, config)
    lanes._run(library, packed, grid, (ROUND_THREADS, 1, 1), (a, made), 0)
    return made


@cache
def built(defines: tuple[tuple[str, int | str], ...], source: str, kernel: str) -> ctypes.CDLL:
    """Build a kernel of warpgroups for a CPU."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: on Debian and Ubuntu: apt install g++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*lanes.KERNELS.iterdir(), *lanes.HERE.glob("*.cpp"), *lanes.HERE.glob("*.h")):
            shutil.copy(file, folder / file.name)  # the stand-ins last: they replace
        macros = [f"-D{key}={value}" for key, value in (*defines, ("SOURCE", f'"{source}"'), ("KERNEL", kernel))]
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-w", *macros, "lanes_wgmma.cpp", "-o", "l.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(folder / "l.so"))
    library.run.argtypes = (
        *(ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int),
        *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_long),
    )
    library.run.restype = ctypes.c_long
    return library
