"""The Triton form: one launch, or two where K is split."""

import torch

from mxgemm.submission.parts.form import Form, NotHere
from mxgemm.submission.parts.kernel_launch import KernelLaunch
from mxgemm.submission.parts.triton_data import TRITON_ARCH, TRITON_LAUNCHES


def triton_tiles(m: int, n: int, k: int, arch: str) -> dict[str, list[KernelLaunch]]:
    """Return the launches of each tile that is written down for a shape.

    Raises:
        NotHere: another GPU, or a shape whose launches are not written down.
    """
    if arch != TRITON_ARCH or (m, n, k) not in TRITON_LAUNCHES:
        raise NotHere(f"launches are written down for the published shapes on {TRITON_ARCH}")
    named = {}
    for launches in TRITON_LAUNCHES[m, n, k]:
        of = launches[0].constants
        name = f"{of['BLOCK_M']}x{of['BLOCK_N']}x{of['BLOCK_K']}"
        named[f"{name}/{of['SPLIT_K']}" if of["SPLIT_K"] > 1 else name] = launches
    return named


def triton_form(m: int, n: int, k: int, device: torch.device, launches: list[KernelLaunch]) -> Form:
    """Return a function that multiplies operands of one shape."""
    gemm, *sums = launches
    split_k, one_launch = gemm.constants["SPLIT_K"], gemm.constants["ONE_LAUNCH"]
    arrivals = torch.zeros(0, dtype=torch.int32, device=device)  # of programs at each tile; the last one resets it

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        nonlocal arrivals
        out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        partials = counters = out  # not read unless K is split
        if split_k > 1:
            partials = torch.empty(split_k * m * n, dtype=torch.float32, device=device)
            if one_launch:
                if not arrivals.numel():
                    arrivals = torch.zeros(gemm.grid[0] // split_k, dtype=torch.int32, device=device)
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
