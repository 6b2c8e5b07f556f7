"""One call that runs a kernel of a code object on arrays: what tests and tools use."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mem import Memory
from .wave import Stats, launch, load_code_object, pack_kernarg

Array = NDArray[Any]
Arguments = Sequence[str | int | float] | Callable[[Mapping[str, int]], bytes]


def run_code_object(
    code: bytes | str | Path,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Arguments,
    arrays: Mapping[str, Array],
    *,
    dynamic_lds: int = 0,
    strict: bool = False,
    read_only: Collection[str] = (),
) -> tuple[dict[str, Array], Stats]:
    """Run one kernel and return what the arrays hold afterwards.

    Args:
        code: an AMDGPU code object, or where it lies.
        kernel: which of its kernels.
        grid: workgroups along x, y, z.
        block: work items of a workgroup along x, y, z.
        args: the kernel's arguments in order: a string names an array (its address is passed), numbers are themselves;
            missing ones are zero. Or a function from {name: address} to the bytes of the kernel argument segment.
        arrays: device memory. Each array is a buffer of exactly its size; the caller's are not changed.
        dynamic_lds: bytes of LDS that the launch asks for beyond what the kernel declares (Triton: ``metadata.shared``).
        strict: model ``s_waitcnt``, hazards and LDS races, and raise where a kernel relies on luck.
        read_only: names of arrays that the kernel may not write.
    """
    if isinstance(code, bytes):
        with tempfile.NamedTemporaryFile(suffix=".hsaco") as handle:
            handle.write(code)
            handle.flush()
            loaded = load_code_object(handle.name)
    else:
        loaded = load_code_object(str(code))
    memory = Memory()
    addresses = {name: memory.add(name, array, name not in read_only) for name, array in arrays.items()}
    if callable(args):
        kernarg = args(addresses)
    else:
        values = [addresses[value] if isinstance(value, str) else value for value in args]
        sizes = [(*size, 1, 1)[:3] for size in (grid, block)]
        kernarg = pack_kernarg(loaded.kernels[kernel], values, *sizes, dynamic_lds)
    stats = launch(loaded, kernel, grid, block, kernarg, memory, dynamic_lds=dynamic_lds, strict=strict)
    stats.counts = stats.mnemonics(loaded)
    return {name: np.array(memory.get(name, array.dtype, array.shape)) for name, array in arrays.items()}, stats
