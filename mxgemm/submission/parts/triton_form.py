"""The Triton form: one launch, or two where K is split."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mxgemm.submission.parts.table import XCDS
from mxgemm.submission.parts.tile import Tile, ceil_divide, steps_of, tile_elsewhere, tile_for_gfx950
from mxgemm.triton.kernels.gemm_a16w import gemm_a16w_kernel
from mxgemm.triton.kernels.split_k import reduce_partials_kernel

EVEN_RULE = 0x200000
"""Added to the bits of a block's largest magnitude before its exponent is taken: rounds up from 1.75 on."""
REDUCE_BLOCK = 256

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(A, B_shuffle, B_scale_sh) -> C``, in fresh memory."""


class NotHere(Exception):
    """A form is not meant for this machine or shape; the next one is, and nothing is wrong."""


class KernelLaunch(NamedTuple):
    """One launch but for its tensors: kernel, programs, run-time integers, constants, compiler options."""

    kernel: Any
    grid: tuple[int, ...]
    scalars: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, int]


def triton_launches(m: int, n: int, k: int, arch: str, tile: Tile) -> list[KernelLaunch]:
    """Describe the launches of a shape: the GEMM, and the sum of the partial results if that is a kernel of its own."""
    interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"
    scale_columns = ceil_divide(k, 256) * 8
    tiles_m, tiles_n = ceil_divide(m, tile.block_m), ceil_divide(n, tile.block_n)
    spans = ((m, k), (n, k // 2), (n, scale_columns), (m, n))
    constants = {
        "A_FORMAT": "e2m1",
        "B_FORMAT": "e2m1",
        "ADDEND": EVEN_RULE,
        "CONVERT": "bf16_pairs" if arch == "gfx950" else "arithmetic",
        "PRESHUFFLED": True,
        "SCALE_ORDER": "shuffled",
        "HAS_BIAS": False,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "SPLIT_K": tile.split_k,
        "STEPS": steps_of(k, tile.block_k, tile.split_k) if tile.split_k > 1 else 0,
        "ONE_LAUNCH": tile.one_launch,
        "EVEN_M": m % tile.block_m == 0,
        "EVEN_N": n % tile.block_n == 0,
        "EVEN_K": k % tile.block_k == 0,
        "WIDE": any((rows + 512) * (columns + 512) >= 2**31 for rows, columns in spans),
        "XCDS": XCDS if arch == "gfx950" and tiles_m > 1 else 1,
        "CACHE": tile.cache,
        "AMD": arch.startswith("gfx"),
        "INTERPRETED": interpreted,
    }
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if arch.startswith("gfx"):
        options |= {"waves_per_eu": tile.waves_per_eu, "matrix_instr_nonkdim": 16}
    # Sizes, then strides (row, column) of A, of the weight's bytes, of its scales and of C, and of the absent bias.
    scalars = (m, n, k, k, 1, k // 2, 1, scale_columns, 1, n, 1, 1)
    launches = [KernelLaunch(gemm_a16w_kernel, (tiles_m * tiles_n * tile.split_k,), scalars, constants, options)]
    if tile.split_k > 1 and not tile.one_launch:
        sums = {
            "SPLIT_K": tile.split_k,
            "HAS_BIAS": False,
            "BLOCK_N": REDUCE_BLOCK,
            "WIDE": False,
            "INTERPRETED": interpreted,
        }
        grid = (m, ceil_divide(n, REDUCE_BLOCK))
        launches.append(KernelLaunch(reduce_partials_kernel, grid, (m, n, n, 1, 1), sums, {"num_warps": 4}))
    return launches


def triton_form(m: int, n: int, k: int, device: torch.device, arch: str) -> Form:
    """Return a function that multiplies operands of one shape."""
    tile = tile_for_gfx950(m, n, k) if arch == "gfx950" else tile_elsewhere(m, n, k)
    gemm, *sums = triton_launches(m, n, k, arch, tile)
    arrivals = torch.zeros(0, dtype=torch.int32, device=device)  # of programs at each tile; the last one resets it

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        nonlocal arrivals
        out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        partials = counters = out  # not read unless K is split
        if tile.split_k > 1:
            partials = torch.empty(tile.split_k * m * n, dtype=torch.float32, device=device)
            if tile.one_launch:
                if not arrivals.numel():
                    arrivals = torch.zeros(gemm.grid[0] // tile.split_k, dtype=torch.int32, device=device)
                counters = arrivals
        try:
            tensors = (a, b_shuffle.view(torch.uint8), b_scale_sh.view(torch.uint8), out, out, partials, counters)
            gemm.kernel[gemm.grid](*tensors, *gemm.scalars, **gemm.constants, **gemm.options)
            for add in sums:
                add.kernel[add.grid](partials, out, out, *add.scalars, **add.constants, **add.options)
        except BaseException:
            arrivals = arrivals[:0]  # a launch that ended half way may have left counts
            raise
        return out

    return multiply
