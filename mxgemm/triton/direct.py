"""The C function by which Triton launches a compiled kernel, called with addresses, past the Python before it.

That Python makes a record of each launch for profilers, looks for scratch that our kernels do not use, and lets C ask
every tensor for its address and the driver whose it is. The function's arguments differ between releases of Triton, so
only releases on which this was run are taken; the others launch as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor

from mxgemm.workspace import raw_stream

RELEASES: Final = ("3.6.",)
"""Of Triton, whose launcher for CUDA takes grid, stream, function, two attributes, two scratches, four of profilers'
and the kernel's arguments, executed on an H200. That for HIP takes an attribute, grid, stream, function, one scratch
and the same, executed with a double of HIP's driver alone."""


def direct(
    compiled: Any, grid: tuple[int, int, int], tail: tuple[Any, ...]
) -> Callable[[Sequence[Tensor]], None] | None:
    """Return what launches a compiled kernel on tensors of the current device, on its current stream.

    Args:
        compiled: what ``kernel[grid](...)`` returned.
        grid: programs along x, y, z.
        tail: the kernel's arguments behind its tensors, constants included.

    Returns:
        None for another release of Triton, another backend, or a kernel that wants scratch.
    """
    triton = sys.modules["triton"]
    if not triton.__version__.startswith(RELEASES):
        return None
    launcher: Any = getattr(compiled, "run", None)
    kind = type(launcher).__name__
    if kind not in ("CudaLauncher", "HIPLauncher"):
        return None
    if getattr(launcher, "global_scratch_size", 0) or launcher.profile_scratch_size:
        return None
    run, c_launch = compiled[grid], launcher.launch
    hooks = triton.knobs.runtime
    enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
    cooperative = launcher.launch_cooperative_grid
    told = compiled.packed_metadata, None, None, None
    before: tuple[Any, ...]
    kernel: tuple[Any, ...]
    if kind == "CudaLauncher":
        before, kernel = grid, (compiled.function, cooperative, launcher.launch_pdl, None, None, *told)
    else:
        before, kernel = (cooperative, *grid), (compiled.function, None, *told)

    def launch(tensors: Sequence[Tensor]) -> None:
        stream = raw_stream(tensors[0].device)
        if enter.calls or leave.calls or hooks.launch_enter_hook is not enter or hooks.launch_exit_hook is not leave:
            run(*tensors, *tail, stream=stream)  # a profiler wants to know
        else:
            c_launch(*before, stream, *kernel, *[tensor.data_ptr() for tensor in tensors], *tail)

    return launch
