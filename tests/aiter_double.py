"""A stand-in for amd-aiter that says what AITER's functions are asked for, and multiplies from the documented layouts.

It shares no code with the library: it reads the bytes that it is given through index formulas of its own, multiplies in
float64 and checks what the entry points check. ``install`` writes a package ``aiter`` in one of the forms that AITER's
signatures had. A test helper: nothing in the library knows it.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mxgemm.aiter import installed

FP4 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

_ASM = """
def gemm_a4w4_asm(A, B, A_scale, B_scale, out, kernelName{name_default}, bias=None, alpha=1.0, beta=0.0,
                  bpreshuffle=True, log2_k_split=None):
    return double.asm(A, B, A_scale, B_scale, out, kernelName, bias, alpha, beta, bpreshuffle, log2_k_split)
"""
_CONFIG = """
def get_GEMM_config(M, N, K):
    return double.STATE.tuned.get((M, N, K))
"""
FORMS = {
    # 2025-06: a kernel cannot be named, and gemm_a4w4 has no bpreshuffle
    "oldest": """
def gemm_a4w4(A, B, A_scale, B_scale, out, bias, alpha=1.0, beta=0.0): raise AssertionError
def gemm_a4w4_asm(A, B, A_scale, B_scale, out, bias, alpha=1.0, beta=0.0, bpreshuffle=True): raise AssertionError
""",
    # 2025-08 to 2025-12 (amd-aiter 0.1.7): the output is given, with rows a multiple of 32
    "filled": """
def gemm_a4w4(A, B, A_scale, B_scale, out, bias=None, alpha=1.0, beta=0.0, bpreshuffle=True):
    return double.wrapper(A, B, A_scale, B_scale, out, bias, alpha, beta, bpreshuffle)
def gemm_a4w4_blockscale(XQ, WQ, x_scale, w_scale, Out, splitK=0): raise AssertionError
"""
    + _CONFIG
    + _ASM.format(name_default=""),
    # since 2025-12: the output is returned; CK kernels by name
    "returned": """
def gemm_a4w4(A, B, A_scale, B_scale, bias=None, dtype=torch.bfloat16, alpha=1.0, beta=0.0, bpreshuffle=True,
              apreshuffle=False, global_A_scale=None, global_B_scale=None):
    assert dtype == torch.bfloat16 and not apreshuffle and global_A_scale is None and global_B_scale is None
    m = A.shape[0]
    out = double.returned((m + 31) // 32 * 32, B.shape[0], A.device)
    return double.wrapper(A, B, A_scale, B_scale, out, bias, alpha, beta, bpreshuffle)[:m]
def gemm_a4w4_blockscale(XQ, WQ, x_scale, w_scale, Out, splitK=0, kernelName=""):
    return double.blockscale(XQ, WQ, x_scale, w_scale, Out, splitK, kernelName)
"""
    + _CONFIG
    + _ASM.format(name_default='=""'),
    # a parameter that nobody knows yet
    "future": """
def gemm_a4w4(A, B, A_scale, B_scale, tile, bias=None, bpreshuffle=True): raise AssertionError
def gemm_a4w4_asm(A, B, A_scale, B_scale, out, kernelName, workspace, bpreshuffle=True): raise AssertionError
"""
    + _CONFIG,
}
WHOLE_COLUMNS = {(192, 256), (224, 256), (256, 256), (128, 512)}
"""Tiles of the f4gemm kernels that need N % tile_N == 0."""


@dataclass
class State:
    """What was installed and what happened to it.

    Attributes:
        form: of the signatures.
        calls: what the double was asked.
        tuned: what AITER's tuned table shall say: (M, N, K) to a row.
        reuses_output: ``gemm_a4w4`` returns one buffer a shape (``AITER_GEMM_A4W4_OUT_SCRATCH_REUSE=1``).
        outputs: those buffers.
    """

    form: str = ""
    calls: list[str] = field(default_factory=list)
    tuned: dict[tuple[int, int, int], dict[str, object]] = field(default_factory=dict)
    reuses_output: bool = False
    outputs: dict[object, Tensor] = field(default_factory=dict)


STATE = State()


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, form: str = "returned", version: str = "9.9.9") -> State:
    """Write the package, put it first on the path, and forget what was known of AITER."""
    package = folder / "aiter"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import dtypes\nfrom .ops.gemm_op_a4w4 import *\n")
    (package / "dtypes.py").write_text("from tests.aiter_double import E8M0 as fp8_e8m0, FP4 as fp4x2\n")
    (package / "ops" / "__init__.py").write_text("")
    head = "import torch\nfrom tests import aiter_double as double\n"
    (package / "ops" / "gemm_op_a4w4.py").write_text(head + FORMS[form])
    distribution(folder, "amd-aiter", version)
    on_path(monkeypatch, folder)
    STATE.__init__(form)  # type: ignore[misc]  # the same object: modules hold it
    return STATE


def distribution(folder: Path, name: str, version: str) -> None:
    """Write the metadata of an installed distribution."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put a folder first on the path and drop what is imported and known of ``aiter``."""
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    _clear()


def forget() -> None:
    """Drop an installed double again."""
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        del sys.modules[name]
    _clear()


def _clear() -> None:
    for cached in (installed.find, installed._module, installed._import_failure):
        cached.cache_clear()


def returned(rows: int, columns: int, device: torch.device) -> Tensor:
    """The output that ``gemm_a4w4`` allocates: fresh, or the buffer of the last call of this shape."""
    if not STATE.reuses_output:
        return torch.full((rows, columns), torch.nan, dtype=torch.bfloat16, device=device)
    key = rows, columns, device
    if key not in STATE.outputs:
        STATE.outputs[key] = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    return STATE.outputs[key].fill_(torch.nan)


def wrapper(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Tensor, bias: object, alpha: float, beta: float,
    bpreshuffle: bool,
) -> Tensor:  # fmt: skip
    """``gemm_a4w4``: a row of the tuned table, else the heuristic; the assembly asserts padded rows."""
    assert out.shape[0] % 32 == 0, "Dim0 of gemm_a4w4_asm output needs to be padded to multiples of 32"
    row = STATE.tuned.get((a.shape[0], b.shape[0], 2 * a.shape[1]), {"kernelName": "", "splitK": 0})
    STATE.calls.append("gemm_a4w4")
    name, split = str(row["kernelName"]), row["splitK"]
    if name and not name.startswith("_ZN"):
        return blockscale(a, b, a_scale, b_scale, out, split, name)
    return asm(a, b, a_scale, b_scale, out, name, bias, alpha, beta, bpreshuffle, split)


def asm(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Tensor, kernel: str, bias: object, alpha: float,
    beta: float, bpreshuffle: bool, log2_k_split: object,
) -> Tensor:  # fmt: skip
    """``gemm_a4w4_asm``, with the limits of the kernel that is named."""
    STATE.calls.append(f"asm {kernel}")
    assert (bias, alpha, beta) == (None, 1.0, 0.0)
    assert log2_k_split in (None, 0), "splits add bf16 partial sums"
    m, n, k = a.shape[0], b.shape[0], 2 * a.shape[1]
    assert k % 256 == 0
    assert n % 32 == 0
    found = re.fullmatch(r"_ZN5aiter(\d+)(f4gemm_bf16_per1x32Fp4_(no)?BpreShuffle_(\d+)x(\d+))E", kernel)
    if kernel:
        assert found, f"not find kernel {kernel}"
        assert int(found[1]) == len(found[2])
        tile_m, tile_n = int(found[4]), int(found[5])
        assert bpreshuffle == (not found[3])
        if (tile_m, tile_n) in WHOLE_COLUMNS:
            assert n % tile_n == 0
        if found[3]:
            assert m % tile_m == 0, "writes whole tiles"
    else:
        assert n % 256 == 0, "the heuristic may take a tile that is wrong here"
    return product(a, b, a_scale, b_scale, out, bool(bpreshuffle))


def blockscale(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Tensor, split: object, kernel: str
) -> Tensor:
    """``gemm_a4w4_blockscale``: CK's kernels, whose scales come from AITER's own shuffle: rows padded to 256."""
    STATE.calls.append(f"blockscale {kernel}")
    assert split == 0
    assert kernel.startswith("a4w4_blockscale_")
    assert a_scale.shape[0] % 256 == 0
    return product(a, b, a_scale, b_scale, out, True)


def product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Tensor, bpreshuffle: bool) -> Tensor:
    """Check dtypes, shapes and strides, read the bytes by address, multiply in float64, write M rows."""
    for tensor, dtype in ((a, FP4), (b, FP4), (a_scale, E8M0), (b_scale, E8M0), (out, torch.bfloat16)):
        assert tensor.dtype == dtype, (tensor.dtype, dtype)
        assert tensor.dim() == 2
        assert tensor.stride(1) == 1
        assert tensor.device == a.device
    m, n, k = a.shape[0], b.shape[0], 2 * a.shape[1]
    assert b.shape[1] == a.shape[1]
    assert out.shape[0] >= m
    assert out.shape[1] == n
    left = decode(rows_of(a), unshuffled(a_scale, m, k // 32))
    weight = rows_of(b)
    right = decode(unpreshuffled(weight) if bpreshuffle else weight, unshuffled(b_scale, n, k // 32))
    result = torch.from_numpy(left @ right.T)
    out[:m] = result.to(torch.float32).to(torch.bfloat16).to(out.device)
    return out


def rows_of(x: Tensor) -> np.ndarray:
    return x.view(torch.uint8).cpu().numpy()


def unshuffled(scales: Tensor, rows: int, columns: int) -> np.ndarray:
    """Read scale (r, c) where a kernel looks for it; the row stride is that of the matrix handed over."""
    assert scales.shape[0] % 32 == 0, "rows padded to 32"
    assert scales.shape[1] % 8 == 0, "columns padded to 8"
    assert scales.shape[0] >= rows
    assert scales.shape[1] >= columns
    assert scales.is_contiguous()
    flat, stride = rows_of(scales).reshape(-1), scales.stride(0)
    r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
    at = r // 32 * 32 * stride + c // 8 * 256 + c % 4 * 64 + r % 16 * 4 + c % 8 // 4 * 2 + r % 32 // 16
    return flat[at]


def unpreshuffled(weight: np.ndarray) -> np.ndarray:
    """Read byte (n, x) of a preshuffled weight where a kernel looks for it."""
    n, columns = weight.shape
    r, x = np.arange(n)[:, None], np.arange(columns)[None, :]
    at = r // 16 * 16 * columns + x // 32 * 512 + x % 32 // 16 * 256 + r % 16 * 16 + x % 16
    return weight.reshape(-1)[at]


def decode(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """E2m1 pairs (the low nibble first) and E8M0 to float64; byte 255 is NaN."""
    values = np.stack((E2M1[packed & 15], E2M1[packed >> 4]), -1).reshape(packed.shape[0], -1)
    powers = np.where(scales == 255, np.nan, np.exp2(scales.astype(np.float64) - 127))
    return values * powers.repeat(32, axis=1)
