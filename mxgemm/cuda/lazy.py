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

Size = tuple[int, int, int]


class Lazy:
    """A kernel that is loaded by its first launch; on one device: a plan has no other."""

    def __init__(
        self,
        kernel: tuple[str, str],
        defines: Mapping[str, int | str],
        sizes: tuple[Size, Size],
        pointers: Layout,
        constants: bytes,
        shared_bytes: int = 0,
        splits: int = 1,
    ) -> None:
        """Settle its launches, each of which overlaps the one before.

        Args:
            kernel: the source's file, and the kernel's name.
            defines: macros.
            sizes: workgroups, and threads of one.
            pointers: that every launch brings.
            constants: the arguments after them.
            shared_bytes: dynamic shared memory of a workgroup.
            splits: workgroups of a cluster.
        """
        self._kernel, self._defines = kernel, defines
        self._arguments: tuple[Any, ...] = (*sizes, pointers)
        self._more: dict[str, Any] = {"constants": constants, "shared_bytes": shared_bytes, "overlap": True}
        self._more["cluster"] = (splits, 1, 1) if splits > 1 else None
        self.loaded: Kernel | None = None

    def build(self, machine: Machine) -> Lazy:
        """Build the kernel, unless it is in the cache, and return this.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        from mxgemm.cuda.launch import KERNELS
        from mxgemm.hip.build import build

        build(self._kernel[0], arch=machine.arch, defines=self._defines, folder=KERNELS)
        return self

    def __call__(self, device: torch.device, *pointers: int) -> None:
        """Launch on the device's current stream."""
        self._load(device).launch(*pointers)

    def step(self, device: torch.device, *places: Place) -> KernelStep:
        """Return a launch with its pointers at some places, described for ``mxgemm.native``."""
        return self._load(device).step(*places)

    def _load(self, device: torch.device) -> Kernel:
        loaded = self.loaded
        if loaded is None:
            from mxgemm.cuda.launch import Kernel, function

            found = function(*self._kernel, device, self._defines)
            loaded = self.loaded = Kernel(found, *self._arguments, **self._more)
        return loaded
