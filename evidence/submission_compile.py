"""Compile the Triton kernels of a submission file for gfx950, from that file's own source.

    python -m evidence.submission_compile SUBMISSION FOLDER < shapes.json

Shapes are a list of [m, n, k]. For each, ``submission-MxNxK.json`` lists launches as evidence/gfx950_compile.py does,
so that evidence/gfx950_cases.py runs them, and ``submission-MxNxK.figures.json`` the figures of their machine code.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from evidence.gfx950_compile import ARCH, write_launches
from evidence.isa import analyse
from mxgemm.triton.launch import KernelCall

BF16, U8 = torch.bfloat16, torch.uint8


def load(path: Path) -> ModuleType:
    """Import a submission file; without a GPU it builds nothing by itself."""
    spec = importlib.util.spec_from_file_location("submission", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return module


def calls_of(submission: ModuleType, m: int, n: int, k: int) -> tuple[list[KernelCall], dict[str, Any]]:
    """Return the launches of a shape on gfx950 and its tile."""
    tile = submission.tile_for_gfx950(m, n, k)
    split = tile.split_k > 1
    partials, counters = (torch.float32, torch.int32 if tile.one_launch else BF16) if split else (BF16, BF16)
    dtypes = [(BF16, U8, U8, BF16, BF16, partials, counters), (torch.float32, BF16, BF16)]
    launches = submission.triton_launches(m, n, k, ARCH, tile)
    calls = []
    for launch, tensors in zip(launches, dtypes, strict=False):
        x, y, z = (*launch.grid, 1, 1)[:3]
        calls.append(KernelCall(launch.kernel, tensors, launch.scalars, launch.constants, launch.options, (x, y, z)))
    return calls, tile._asdict()


def name_of(m: int, n: int, k: int) -> str:
    """Return the name of a shape's files."""
    return f"submission-{m}x{n}x{k}"


def main() -> None:
    """Compile every shape on standard input."""
    submission, folder = load(Path(sys.argv[1])), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for m, n, k in json.load(sys.stdin):
        calls, tile = calls_of(submission, m, n, k)
        kernels = write_launches(name_of(m, n, k), calls, tile, folder)
        figures = [
            dataclasses.asdict(
                analyse(kernel.asm["amdgcn"], waves=call.options["num_warps"], lds=kernel.metadata.shared, arch=ARCH)
            )
            for call, kernel in zip(calls, kernels, strict=True)
        ]
        (folder / f"{name_of(m, n, k)}.figures.json").write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
