"""Load kernels of ``mxgemm/cuda/kernels`` and launch them (``cuLaunchKernelEx``), on torch's current stream.

Building and loading are those of ``mxgemm.hip``, which has one path for both drivers; here is what CUDA alone has:
launch attributes, and more shared memory than a kernel gets unasked. All that a launch needs but the pointers and the
stream is settled with the kernel and kept as the driver reads it: a call writes those and makes one call of four
arguments.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

from mxgemm.hip import loaded
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.runtime import INVALID_CONTEXT, MAX_KERNARG_BYTES, Arguments, Driver, DriverError, Function, driver
from mxgemm.native.captured import relaxed
from mxgemm.native.program import KernelStep, Place, kernel_step
from mxgemm.workspace import raw_stream

KERNELS: Final = Path(__file__).parent / "kernels"
UNASKED_SHARED_BYTES: Final = 48 * 1024
"""Dynamic shared memory that a kernel gets without an attribute of its own."""

# CUDA driver API: CUfunction_attribute, CUlaunchAttributeID.
_MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8
_CLUSTER_DIMENSION: Final = 4
_PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6

_asking: Final = threading.RLock()
"""Whoever raises the limit of shared memory: two that read the old limit could leave the lower of theirs."""

_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""Without asking whether CUDA has been started: what is launched on has."""


class _Value(ctypes.Union):
    """``CUlaunchAttributeValue``: 64 bytes, of which the fields here are used."""

    _fields_ = (("cluster", ctypes.c_uint * 3), ("flag", ctypes.c_int), ("bytes", ctypes.c_ubyte * 64))


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: the value begins at byte 8."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", _Value))


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Launch:
    """Memory of one launch: its configuration and its arguments."""

    __slots__ = ("arguments", "config", "config_at", "extra_at")

    def __init__(self, config: _Config, arguments: Arguments) -> None:
        self.config, self.arguments = config, arguments
        self.config_at = ctypes.c_void_p(ctypes.addressof(config))
        self.extra_at = ctypes.c_void_p(arguments.extra_address)


class Kernel:
    """A kernel of which all is settled but the pointers; launched from any thread.

    Attributes:
        function: what is launched.
        grid: workgroups along x, y, z.
        block: threads of a workgroup along x, y, z.
        shared_bytes: dynamic shared memory of a workgroup.
    """

    def __init__(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Layout,
        *,
        constants: bytes = b"",
        shared_bytes: int = 0,
        overlap: bool = False,
        cluster: tuple[int, int, int] | None = None,
    ) -> None:
        """Settle a kernel's launches.

        Args:
            function: the loaded kernel.
            grid: workgroups.
            block: threads of a workgroup.
            arguments: of the kernel, that every launch brings.
            constants: the bytes of the arguments after them.
            shared_bytes: dynamic shared memory; above 48 KB the driver is asked for it here.
            overlap: the launch may begin before earlier launches of its stream have ended; the kernel waits for them
                itself (``griddepcontrol.wait``).
            cluster: workgroups of a cluster; None for none.

        Raises:
            ValueError: the arguments are fewer bytes than the kernel's, or more than 4096.
            DriverError: the driver does not give that much shared memory.
        """
        self.function, self.grid, self.block, self.shared_bytes = function, grid, block, shared_bytes
        self._pack_into, self._leading, self._constants = arguments.pack_into, arguments.size, constants
        self._arguments = arguments
        size, name = arguments.size + len(constants), function.info.name
        if not function.info.kernarg_bytes <= size <= MAX_KERNARG_BYTES:
            wanted = f"{function.info.kernarg_bytes} to {MAX_KERNARG_BYTES}"
            raise ValueError(f"arguments: got {size} bytes for {name}, want {wanted}")
        using = self._driver = function.module.driver
        if shared_bytes > UNASKED_SHARED_BYTES:
            _allow_shared(using, function, shared_bytes)
        attributes = _attributes(overlap, cluster)
        self._attributes = (_Attribute * len(attributes))(*attributes)  # read by the driver only: threads share it
        self._call = using.declare("LaunchKernelEx", *(ctypes.c_void_p,) * 4)
        self._handle = ctypes.c_void_p(function.handle)
        self._device, self._index = function.module.device, function.module.device.index
        # Threads launch at once (the interpreter's lock is not held in the driver): each takes memory of its own.
        self._spare: list[_Launch] = []

    def step(self, *places: Place) -> KernelStep:
        """Return a launch with these leading arguments, all of them addresses, described for ``mxgemm.native``."""
        return kernel_step(
            int(self._handle.value or 0),
            self.grid,
            self.block,
            self._arguments,
            places,
            shared_bytes=self.shared_bytes,
            constants=self._constants,
            attributes=bytes(self._attributes),
        )

    def launch(self, *values: int | float) -> None:
        """Launch on the current stream of the kernel's device, with the arguments that lead.

        Raises:
            DriverError: the driver refuses the launch.
        """
        if _current_device() == self._index:
            self._launch_here(values)
        else:
            with torch.cuda.device(self._index):
                self._launch_here(values)

    def _launch_here(self, values: tuple[int | float, ...]) -> None:
        try:
            launch = self._spare.pop()
        except IndexError:
            launch = self._another()
        self._pack_into(launch.arguments.bytes, 0, *values)
        launch.config.stream = raw_stream(self._device)
        status = self._call(launch.config_at, self._handle, None, launch.extra_at)
        module = self.function.module
        if status == INVALID_CONTEXT and module.context:
            self._driver.make_current(module.context)
            status = self._call(launch.config_at, self._handle, None, launch.extra_at)
        self._spare.append(launch)
        if status:
            raise DriverError(
                f"cuLaunchKernelEx({self.function.info.name}, grid {self.grid}, block {self.block}, "
                f"{self.shared_bytes} bytes shared): {self._driver.error_text(status)} (error {status})"
            )

    def _another(self) -> _Launch:
        arguments = Arguments(self._driver.api.end)
        size = self._leading + len(self._constants)
        arguments.bytes[self._leading : size] = self._constants
        arguments.size.value = size
        attributes = ctypes.cast(self._attributes, ctypes.POINTER(_Attribute))
        return _Launch(
            _Config(self.grid, self.block, self.shared_bytes, None, attributes, len(self._attributes)), arguments
        )


def function(source: str, name: str, device: torch.device, defines: Mapping[str, int | str]) -> Function:
    """Return a kernel of a source here, built and loaded unless it has been.

    Loading is allowed while a stream of this thread is captured, although nothing of it becomes part of the graph.

    Args:
        source: the file's name.
        name: of the kernel.
        device: a GPU, with its index.
        defines: macros to build with.

    Raises:
        BuildError, DriverError: as ``build`` and ``load`` of ``mxgemm.hip`` say.
    """
    with relaxed(driver()):
        return loaded.module(KERNELS / source, device, **defines).function(name)


def _attributes(overlap: bool, cluster: tuple[int, int, int] | None) -> list[_Attribute]:
    found = []
    if overlap:
        found.append(_Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, _Value(flag=1)))
    if cluster is not None:
        found.append(_Attribute(_CLUSTER_DIMENSION, 0, _Value(cluster=cluster)))
    return found


def _allow_shared(using: Driver, function: Function, shared_bytes: int) -> None:
    """Have the driver allow launches with this much: a limit of the function, shared by all that launch it."""
    ask = using.declare("FuncSetAttribute", ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    with _asking, torch.cuda.device(function.module.device):
        while shared_bytes > function.shared_limit:
            status = ask(function.handle, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
            using.check(status, f"FuncSetAttribute({function.info.name}, {shared_bytes} bytes of shared memory)")
            # What a signal's handler asked for meanwhile has just been taken back if it was more: ask for that again.
            function.shared_limit, shared_bytes = shared_bytes, max(function.shared_limit, shared_bytes)
