"""A CUDA kernel that a plan launches: built with the plan, loaded by its first launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from mxgemm.device import Machine
from mxgemm.hip.kernarg import Layout
from mxgemm.native.program import KernelStep, Place

if TYPE_CHECKING:
    from mxgemm.cuda.launch import Kernel


class Lazy:
    """A kernel that is built now and loaded by its first launch; on one device: a plan has no other."""

    def __init__(
        self,
        machine: Machine,
        kernel: tuple[str, str],
        defines: Mapping[str, int | str],
        sizes: tuple[tuple[int, int, int], tuple[int, int, int]],
        pointers: Layout,
        constants: bytes,
        shared_bytes: int = 0,
    ) -> None:
        from mxgemm.cuda.launch import KERNELS
        from mxgemm.hip.build import build

        build(kernel[0], arch=machine.arch, defines=defines, folder=KERNELS)
        self._kernel, self._defines = kernel, defines
        self._arguments: tuple[Any, ...] = (*sizes, pointers)
        self._more: dict[str, Any] = {"constants": constants, "shared_bytes": shared_bytes, "overlap": True}
        self._loaded: Kernel | None = None

    def __call__(self, device: torch.device, *pointers: int) -> None:
        """Launch on the device's current stream."""
        self._load(device).launch(*pointers)

    def step(self, device: torch.device, *places: Place) -> KernelStep:
        """Return a launch with its pointers at some places, described for ``mxgemm.native``."""
        return self._load(device).step(*places)

    def _load(self, device: torch.device) -> Kernel:
        loaded = self._loaded
        if loaded is None:
            from mxgemm.cuda.launch import Kernel, function

            found = function(*self._kernel, device, self._defines)
            loaded = self._loaded = Kernel(found, *self._arguments, **self._more)
        return loaded
