"""A launch of Triton's on AMD, described by what Triton compiled: no release's launcher need be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mxgemm.native.built import code_object_launch
from mxgemm.native.program import KernelStep, Place

_BYTES: Final = {"i32": 4, "i64": 8}
_CONSTANT: Final = "constexpr"


def on_amd(compiled: Any) -> bool:
    """Say whether Triton compiled it for AMD."""
    target = getattr(getattr(compiled, "metadata", None), "target", None)
    return getattr(target, "backend", None) == "hip"


def amd_launch(
    compiled: Any, scalars: Sequence[int], grid: tuple[int, int, int], places: tuple[Place, ...]
) -> KernelStep | None:
    """Return the launch of a kernel that has been loaded onto the current device.

    Args:
        compiled: what ``kernel[grid](...)`` returned.
        scalars: the run-time integers, behind the tensors; those that Triton made constants of are left out here.
        grid: programs along x, y, z.
        places: of the tensors.

    Returns:
        None where the launch is no plain one: a cluster, a cooperative grid, scratch, arguments of another kind.
    """
    metadata = compiled.metadata
    if getattr(metadata, "num_ctas", 1) != 1 or getattr(metadata, "launch_cooperative_grid", False):
        return None
    if getattr(metadata, "global_scratch_size", 0) or getattr(metadata, "profile_scratch_size", 0):
        return None
    kinds = list(compiled.src.signature.values())
    pointers, numbers = kinds[: len(places)], kinds[len(places) : len(places) + len(scalars)]
    if not all(isinstance(kind, str) and kind.startswith("*") for kind in pointers):
        return None
    if any(kind not in (_CONSTANT, *_BYTES) for kind in numbers) or len(numbers) != len(scalars):
        return None
    integers = [(value, _BYTES[kind]) for kind, value in zip(numbers, scalars, strict=True) if kind != _CONSTANT]
    threads = metadata.num_warps * metadata.target.warp_size
    return code_object_launch(
        compiled.asm["hsaco"], metadata.name, compiled.function, grid, threads, metadata.shared, places, integers
    )
