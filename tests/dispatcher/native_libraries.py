"""Native libraries for the tests: built once for all of pytest's workers, and opened as often as a test wants."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evidence.quant_cases import Operands, operands
from mxgemm.dispatcher import build, native
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.mx_gemm import MxGemmKernelConfig
from mxgemm.dispatcher.native import DESCRIPTION
from mxgemm.dispatcher.native_kernel import SCALES, element_type
from mxgemm.dispatcher.rowcolquant import RowColQuantKernelConfig
from mxgemm.dispatcher.tensor_quant import TensorQuantKernelConfig
from tests.dispatcher.scheme_cases import REST, SCHEMES, SEVERAL, SEVERAL_AQUANT

_SQUARE: dict[str, Any] = {"tile_m": 64, "tile_k": 128, "warp_m": 2, "warp_n": 2, "warp_tile_m": 32, "warp_tile_n": 32}
CONFIGS: dict[str, tuple[KernelConfig, str]] = {
    "mx-fp8": (MxGemmKernelConfig(datatype="fp8"), "gfx950"),
    "mx-fp4": (MxGemmKernelConfig(datatype="fp4"), "gfx950"),
    "rowcol-fp8": (RowColQuantKernelConfig(variant_key="fp8"), "gfx950"),
    "rowcol-bf8": (RowColQuantKernelConfig(variant_key="bf8"), "gfx950"),
    "tensor-fp8": (TensorQuantKernelConfig(variant_key="fp8"), "gfx950"),
    "mx-padded-persistent": (
        MxGemmKernelConfig(
            datatype="fp8", pad_m=True, pad_n=True, pad_k=True, persistent=True, tile_m=32, tile_n=32, tile_k=128
        ),
        "gfx950",
    ),
    "rowcol-fp8-16x16x32": (RowColQuantKernelConfig(variant_key="fp8", warp_tile_k=32), "gfx950"),
    "tensor-bf8-16x16x64": (TensorQuantKernelConfig(variant_key="bf8", warp_tile_k=64), "gfx950"),
    "tensor-fp8-32x32x16": (TensorQuantKernelConfig(variant_key="fp8", **_SQUARE, warp_tile_k=16), "gfx950"),
    "rowcol-bf8-32x32x32": (RowColQuantKernelConfig(variant_key="bf8", **_SQUARE, warp_tile_k=32), "gfx950"),
    "tensor-bf8-32x32x64": (TensorQuantKernelConfig(variant_key="bf8", **_SQUARE, warp_tile_k=64), "gfx950"),
    "rowcol-fp8-gfx942": (RowColQuantKernelConfig(variant_key="fp8", warp_tile_k=32), "gfx942"),
    "rowcol-bf8-gfx942": (RowColQuantKernelConfig(variant_key="bf8", warp_tile_k=32), "gfx942"),
}
SUM_SCALED = tuple(CONFIGS)
"""Those that tests of the first three operations go through; the others are in scheme_cases.py."""
CONFIGS["mx-words"] = (MxGemmKernelConfig(datatype="fp4", tile_m=32, tile_n=32, tile_k=256), "gfx950")
CONFIGS |= {name: (config, "gfx950") for name, config in (SCHEMES | REST | SEVERAL_AQUANT | SEVERAL).items()}


BY_ITSELF = "tensor-fp8"
"""The library that is built as a user's is, by a process of its own; the others share one, as importing takes long."""


def built(name: str, factory: pytest.TempPathFactory) -> Path:
    """Build a library, or find that another test or worker has."""
    require_compilers()
    config, arch = CONFIGS[name]
    with environment(MXGEMM_CACHE=str(shared_cache(factory))), pytest.MonkeyPatch.context() as patch:
        if name != BY_ITSELF:
            patch.setattr(native, "_cross_compile", _compile_in_shared_worker)
        return build([config], gfx_arch=arch)[0].library()


def shared_cache(factory: pytest.TempPathFactory) -> Path:
    """Return the cache of built libraries that all of pytest's workers use: MXGEMM_CACHE, else one for this run."""
    root = factory.getbasetemp()
    root = root.parent if root.name.startswith("popen-") else root
    return Path(os.environ.get("MXGEMM_CACHE") or root / "cache")


def _compile_in_shared_worker(config: KernelConfig, arch: str, folder: Path) -> dict[str, Any]:
    worker = _shared_worker()
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write(native.worker_job(config, arch, folder))
    worker.stdin.flush()
    described: dict[str, Any] = json.loads(worker.stdout.readline())
    return described


@cache
def _shared_worker() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mxgemm.dispatcher.native_worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen(command, **pipes, text=True, env=native.worker_environment())
    atexit.register(worker.communicate)  # which closes its input, and it ends
    return worker


def require_compilers() -> None:
    """Skip where there is no host compiler or no triton."""
    pytest.importorskip("triton")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler: none of cc, gcc, clang is on PATH")


def description(library: Path) -> dict[str, Any]:
    """Return what the build says of a library."""
    found: dict[str, Any] = json.loads((library.parent / DESCRIPTION).read_text(encoding="utf-8"))
    return found


def draw(name: str, m: int, n: int, k: int, seed: int = 0) -> Operands:
    """Draw operands for one of the configurations."""
    config, arch = CONFIGS[name]
    return operands(element_type(config, arch), SCALES[config.operation], m, n, k, seed)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
