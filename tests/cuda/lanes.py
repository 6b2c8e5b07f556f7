"""Runs the text of a CUDA kernel on a CPU, lane by lane, with stand-ins for its instructions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

from mxgemm.cuda import w4_mma
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.problem import Problem

HERE = Path(__file__).parent
KERNELS = Path(w4_mma.__file__).parent / "kernels"


def run(
    problem: Problem, config: MmaConfig, a: Tensor, b: Tensor, scales: Tensor, bias: Tensor | None, out: Tensor
) -> int:
    """Run w4_mma over its whole grid and return the matrix instructions of all warps.

    Whatever is not the memory of an operand is out of bounds.
    """
    library = _built(tuple(sorted(w4_mma.defines(problem, config).items())))
    pointers = (a.data_ptr(), b.data_ptr(), scales.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr())
    packed = w4_mma.POINTERS.pack(*pointers) + w4_mma.constants(problem)
    ranges = [value for tensor in (a, b, scales, bias, out) if tensor is not None for value in _range(tensor)]
    return int(
        library.run(
            packed,
            len(packed),
            w4_mma.grid(problem, config)[0],
            w4_mma.block(config)[0],
            (ctypes.c_int64 * len(ranges))(*ranges),
            len(ranges) // 2,
            w4_mma.shared_bytes(problem, config),
        )
    )


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
