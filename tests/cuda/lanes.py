"""Runs the text of a CUDA kernel on a CPU, lane by lane, with stand-ins for its instructions."""

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

from mxgemm.cuda import w4_mma
from mxgemm.cuda.operands import ROUND_POINTERS, ROUND_THREADS, round_constants
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.mx import fragments
from mxgemm.problem import Problem
from mxgemm.routes import Operands
from mxgemm.routes.w4_mma import addresses

HERE = Path(__file__).parent
KERNELS = Path(w4_mma.__file__).parent / "kernels"


def run(problem: Problem, config: MmaConfig, given: Operands) -> int:
    """Run w4_mma over its whole grid and return the matrix instructions of all warps.

    Whatever is not the memory of an operand is out of bounds; of prepared forms only the fragment order is theirs. A is
    rounded before where the configuration says so.
    """
    rounded = _rounded(problem, config, given.a) if config.a_before else None
    weight: tuple[Tensor, ...] = given.b, given.b_scales
    if problem.derived:
        sizes = fragments.code_bytes(problem.n, problem.k), fragments.scale_bytes(problem.n, problem.k)
        weight = given.derived[problem.derived == "bf16"][-sum(sizes) :].split(sizes)
    barriers = 3 if config.splits > 1 else 1
    library = _built(
        tuple(sorted(w4_mma.defines(problem, config).items())), (w4_mma.SOURCE, w4_mma.KERNEL, "Arguments", barriers)
    )
    operands = given.a, rounded, *weight, given.bias, given.out
    pointers = [0 if x is None else x.data_ptr() for x in operands]
    pointers[2:4] = addresses(problem, given.b, given.b_scales, given.derived)
    packed = w4_mma.POINTERS.pack(*pointers) + w4_mma.constants(problem)
    shared = w4_mma.shared_bytes(problem, config)
    return _run(library, packed, w4_mma.grid(problem, config), w4_mma.block(config), operands, shared)


def _rounded(problem: Problem, config: MmaConfig, a: Tensor) -> Tensor:
    """Run the launch that rounds A."""
    library = _built(
        tuple(sorted(w4_mma.round_defines(problem, config).items())),
        (w4_mma.ROUND_SOURCE, w4_mma.ROUND_KERNEL, "RoundArguments", 0),
    )
    made = torch.full((w4_mma.rounded_bytes(problem, config),), 255, dtype=torch.uint8)
    packed = ROUND_POINTERS.pack(a.data_ptr(), made.data_ptr()) + round_constants(problem)
    _run(library, packed, w4_mma.round_grid(problem), (ROUND_THREADS, 1, 1), (a, made), 0)
    return made


def _run(
    library: ctypes.CDLL,
    packed: bytes,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    operands: tuple[Tensor | None, ...],
    shared: int,
) -> int:
    ranges = [value for tensor in operands if tensor is not None for value in _range(tensor)]
    of_ranges = (ctypes.c_int64 * len(ranges))(*ranges)
    return int(library.run(packed, len(packed), grid[0], block[0], of_ranges, len(ranges) // 2, shared))


def _range(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), reach * tensor.element_size()


@cache
def _built(defines: tuple[tuple[str, int | str], ...], kernel: tuple[str, str, str, int]) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: on Debian and Ubuntu: apt install g++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*KERNELS.iterdir(), *HERE.glob("*.cpp"), *HERE.glob("*.h")):  # the stand-ins last: they replace
            shutil.copy(file, folder / file.name)
        source, entry, arguments, barriers = kernel
        given = (("SOURCE", f'"{source}"'), ("KERNEL", entry), ("ARGUMENTS", arguments), ("BARRIERS", barriers))
        macros = [f"-D{key}={value}" for key, value in (*defines, *given)]
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-w", *macros, "lanes.cpp", "-o", "lanes.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(folder / "lanes.so"))
    library.run.argtypes = (
        *(ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int),
        *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_long),
    )
    library.run.restype = ctypes.c_long
    return library
