"""One Triton launch as a value."""

from typing import Any, NamedTuple


class KernelLaunch(NamedTuple):
    """One launch but for its tensors: kernel, programs, run-time integers, constants, compiler options."""

    kernel: Any
    grid: tuple[int, int, int]
    scalars: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, Any]
