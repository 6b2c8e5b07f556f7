"""One call that runs a kernel of a code object on arrays: what tests and tools use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gfx950emu.device_memory import Memory
from gfx950emu.kernarg import pack_kernarg
from gfx950emu.launch import Stats, launch, three
from gfx950emu.pending import POISON
from gfx950emu.program import Program
from gfx950emu.waves import Observer

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
    observer: Observer | None = None,
    poison: int = POISON,
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
        dynamic_lds: bytes of LDS beyond what the kernel declares (Triton: ``metadata.shared``).
        strict: model ``s_waitcnt``, hazards and LDS races, and raise where a kernel relies on luck.
        read_only: names of arrays that the kernel may not write.
        observer: sees every memory access, for profiles.
        poison: what strict mode puts where a load is still in flight (``gfx950emu/pending.py``).
    """
    program = load(code if isinstance(code, bytes) else Path(code).read_bytes())
    memory = Memory()
    addresses = {name: memory.add(name, array, name not in read_only) for name, array in arrays.items()}
    if callable(args):
        kernarg = args(addresses)
    else:
        values = [addresses[value] if isinstance(value, str) else value for value in args]
        kernarg = pack_kernarg(program.kernel(kernel), values, three(grid), three(block), dynamic_lds)
    stats = launch(
        program,
        kernel,
        grid,
        block,
        kernarg,
        memory,
        dynamic_lds=dynamic_lds,
        strict=strict,
        observer=observer,
        poison=poison,
    )
    return {name: memory.get(name, array.dtype, array.shape) for name, array in arrays.items()}, stats


@functools.lru_cache(maxsize=16)
def load(code: bytes) -> Program:
    """Load a code object; its steps are built once and serve every launch."""
    return Program(code)
