"""Compile the Triton launches of a submission file for gfx950, from that file's own source, and the library's.

    python -m evidence.submission_compile SUBMISSION < shapes.json

Shapes are a list of [m, n, k]. For each a line of JSON has the instructions of its first tile's launches, in order:
{"submission": [[[mnemonic, arguments], ...], ...], "library": ...}.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import torch

from evidence.gfx950_compile import ARCH
from evidence.isa import instruction_order
from mxgemm.submission.triton_text import kernel_calls
from mxgemm.triton.compile import compile_call
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


def calls_of(submission: ModuleType, m: int, n: int, k: int) -> list[KernelCall]:
    """Return the launches of the first tile that a submission file writes down for a shape."""
    gemm, *sums = submission.TRITON_LAUNCHES[m, n, k][0]
    partials = torch.float32 if gemm.constants["SPLIT_K"] > 1 else BF16
    counters = torch.int32 if gemm.constants["ONE_LAUNCH"] else BF16
    dtypes = [(BF16, U8, U8, BF16, BF16, partials, counters), *((torch.float32, BF16, BF16) for _ in sums)]
    return [
        KernelCall(launch.kernel, tensors, launch.scalars, launch.constants, launch.options, launch.grid)
        for launch, tensors in zip([gemm, *sums], dtypes, strict=True)
    ]


def instructions(calls: list[KernelCall]) -> list[list[tuple[str, str]]]:
    """Compile launches and return the instructions of each, in order."""
    return [instruction_order(compile_call(call, ARCH).asm["amdgcn"]) for call in calls]


def main() -> None:
    """Compile every shape on standard input."""
    submission = load(Path(sys.argv[1]))
    for m, n, k in json.load(sys.stdin):
        own = instructions(calls_of(submission, m, n, k))
        print(json.dumps({"submission": own, "library": instructions(kernel_calls(m, n, k)[0])}), flush=True)


if __name__ == "__main__":
    main()
