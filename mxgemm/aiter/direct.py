"""Launch the code objects of an installed AITER ourselves: one driver call, none of AITER's Python or C++.

mxgemm ships none of these files. They are looked for in ``MXGEMM_AITER_CO`` (a folder, for one that lies elsewhere) and
inside amd-aiter, and are loaded by ``mxgemm.hip.runtime``, which refuses a file for another architecture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.aiter import installed
from mxgemm.aiter.arguments import BLOCK_SIZE, THREADS, ArgumentBlock
from mxgemm.aiter.f4gemm import PREFIX, F4GemmKernel
from mxgemm.errors import Refusal
from mxgemm.problem import Problem

FOLDER_VARIABLE: Final = "MXGEMM_AITER_CO"
INSIDE: Final = Path("hsa/gfx950/f4gemm")

DirectCall = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""A, B, A's scales, B's scales, out; bytes as uint8."""


def folder() -> Path | None:
    """Return the folder that holds the code objects, or None."""
    return next((path for path in _candidates() if any(path.glob(f"{PREFIX}*.co"))), None)


def refusal(kernel: F4GemmKernel, arch: str) -> Refusal | None:
    """Say why a kernel cannot be launched directly on an architecture, or None if it can."""
    found = folder()
    if found is None:
        looked = ", ".join(str(path) for path in _candidates()) or "no amd-aiter"
        needed = f"{INSIDE}/*.co of {installed.INSTALL}, or {FOLDER_VARIABLE} naming their folder"
        return _lacks(f"missing (looked in {looked})", needed)
    path = found / f"{kernel.name}.co"
    if not path.is_file():
        return _lacks(f"{found}, without {path.name}", "a release that has this kernel")
    return _unfit(path, kernel.symbol, arch)


def describe() -> str:
    """Say in a few words what was found, for ``mxgemm doctor``."""
    found = folder()
    return "none found" if found is None else f"{len(list(found.glob(f'{PREFIX}*.co')))} in {found}"


def bind(problem: Problem, kernel: F4GemmKernel) -> DirectCall:
    """Bind a kernel to a problem that it may take (``F4GemmKernel.broken`` and :func:`refusal` say so).

    The code object is loaded on the device of the first call.

    Raises:
        RuntimeError: the files have gone since they were looked for.
    """
    found, s = folder(), problem.strides
    if found is None:
        raise RuntimeError(f"AITER's code objects: missing; set {FOLDER_VARIABLE} or install {installed.INSTALL}")
    assert s is not None
    m, n, k = problem.m, problem.n, problem.k
    scale_columns = k // 32
    block = ArgumentBlock(
        m, n, k, d_stride=s.out[0], a_stride=k // 2, b_stride=s.b[0], a_scales_stride=scale_columns,
        b_scales_stride=s.b_scales[0],
    )  # fmt: skip
    path, symbol, grid = str(found / f"{kernel.name}.co"), kernel.symbol, kernel.grid(m, n)
    functions: list[Any] = []

    def call(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out: Tensor) -> None:
        if not functions:
            functions.append(_load(path, a.device).function(symbol))
        kernarg = block.pack(
            d=out.data_ptr(), a=a.data_ptr(), b=b.data_ptr(), a_scales=a_scales.data_ptr(),
            b_scales=b_scales.data_ptr(),
        )  # fmt: skip
        functions[0].launch(grid, THREADS, kernarg)

    return call


def _candidates() -> Iterator[Path]:
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        yield from (Path(named), Path(named) / INSIDE)
        return
    found = installed.find()
    if isinstance(found, installed.Installation):
        root = found.folder.parent
        yield from (root / "aiter_meta" / INSIDE, root / INSIDE)  # a wheel; a source tree


def _lacks(value: str, needed: str) -> Refusal:
    return Refusal("AITER's code objects", value, needed, "installation")


@cache
def _unfit(path: Path, symbol: str, arch: str) -> Refusal | None:
    from mxgemm.hip import code_object

    def unlike(what: object) -> Refusal:
        return _lacks(f"{path}: {what}", f"this kernel for {arch}")

    try:
        found = code_object.inspect(path.read_bytes())
    except (OSError, code_object.CodeObjectError) as error:
        return unlike(error)
    other = code_object.refusal(found, arch)
    if other:
        return unlike(other)
    if symbol not in found.kernels:
        return unlike(f"has {', '.join(found.kernels) or 'no kernels'}, not {symbol}")
    size = found.kernels[symbol].kernarg_bytes
    fits = size <= BLOCK_SIZE
    return None if fits else unlike(f"takes {size} bytes of arguments, more than the {BLOCK_SIZE} known")


@cache
def _load(path: str, device: torch.device) -> Any:
    from mxgemm.hip import runtime

    return runtime.load(Path(path).read_bytes(), device)
