"""Check a built library against the numpy oracle: ``python check.py LIBRARY ORACLE``.

A program of its own, without torch: it starts in a moment, and a library that dies of an instruction takes nothing with
it. It ends with status 0 and no output, or says what is wrong.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

CASES = ((1, 5, 32), (3, 33, 96), (11, 34, 1056), (13, 40, 2880), (7, 18, 8256), (20, 18, 1056), (35, 70, 1056))
"""(M, N, K): tails of every kind, and more blocks than a panel holds."""


def check(library: Path, oracle_file: Path) -> str:
    """Say what a library computes wrongly, or return ""."""
    abi = _load(Path(__file__).with_name("abi.py"))
    oracle = _load(oracle_file)
    opened = ctypes.CDLL(str(library))
    abi.declare(opened)
    abi.permit_matrix_unit()  # a library that uses it dies without
    for m, n, k in CASES:
        for a_format in ("e2m1", "e4m3", "bf16"):
            for method in abi.methods_of(a_format):
                for threads in (1, 2):
                    case = m, n, k, a_format, method, threads
                    reason = _check_one(opened, abi, oracle, *case)
                    if reason:
                        return f"(M, N, K) = ({m}, {n}, {k}), A {a_format}, {method}, {threads} threads: {reason}"
    return ""


def _check_one(
    library: ctypes.CDLL, abi: Any, oracle: Any, m: int, n: int, k: int, a_format: str, method: str, threads: int
) -> str:
    drawn = np.random.default_rng(m * n + k)
    a = (drawn.standard_normal((m, k)) * np.exp2(np.repeat(drawn.integers(-6, 7, (m, k // 32)), 32, 1))).astype("f4")
    a = (a.view("u4") & np.uint32(0xFFFF0000)).view("f4")  # bf16 values
    data = drawn.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scales = drawn.integers(120, 135, (n, k // 32), dtype=np.uint8)
    scales[drawn.random(scales.shape) < 2 / k] = 255
    if m > 2:
        a[1, 5] = np.nan
    encoded = None if a_format == "bf16" else oracle.encode(a, a_format, "even")
    left = a.astype(np.float64) if encoded is None else oracle.decode(*encoded, a_format)
    right = oracle.decode(data, scales, "e2m1")
    with np.errstate(invalid="ignore"):
        exact = oracle.matmul(left, right)
    out = np.full((m, n), 7, dtype=np.float32)
    call = abi.Call(
        m=m, n=n, k=k, a=a.ctypes.data, a_row=k, a_column=1, a_dtype=abi.DTYPES["float32"],
        a_format=abi.FORMATS[a_format], addend=0x80000 if a_format == "e4m3" else 0x200000, b=data.ctypes.data,
        b_row=k // 2, b_column=1, b_scales=abi.Scales(scales.ctypes.data, k // 32, 1, 0, 0), out=out.ctypes.data,
        out_row=n, out_column=1, out_dtype=abi.DTYPES["float32"], method=abi.METHODS[method], threads=threads,
    )  # fmt: skip
    scratch = np.zeros(library.mx_scratch_bytes(ctypes.byref(call)) + 64, dtype=np.uint8)
    call.scratch = -(-scratch.ctypes.data // 64) * 64
    library.mx_gemm(ctypes.byref(call))
    with np.errstate(invalid="ignore"):
        needed = oracle.gate_elementwise(out, exact, left, right, 23)
    return "" if needed <= 32 + k / 64 else f"an element is {needed:.3g} roundoffs off (want at most {32 + k / 64:.3g})"


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1]), Path(sys.argv[2])) or 0)
