"""Load kernels of ``mxgemm/cuda/kernels`` and launch them with attributes (``cuLaunchKernelEx``), on torch's stream.

Building, loading and the argument memory are those of ``mxgemm.hip``, which has one path for both drivers; here is
what CUDA alone has: launch attributes, and more shared memory than a kernel gets unasked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm.hip import loaded
from mxgemm.hip.runtime import Driver, Function, driver

KERNELS: Final = Path(__file__).parent / "kernels"
UNASKED_SHARED_BYTES: Final = 48 * 1024
"""Dynamic shared memory that a kernel gets without an attribute of its own."""

# CUDA driver API: CUfunction_attribute, CUlaunchAttributeID, CUstreamCaptureMode.
_MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8
_CLUSTER_DIMENSION: Final = 4
_PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6
_RELAXED: Final = 2


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


class Kernel:
    """A kernel with its workgroup, shared memory and launch attributes settled; launched from any thread.

    Attributes:
        function: what is launched.
        block: threads of a workgroup along x, y, z.
        shared_bytes: dynamic shared memory of a workgroup.
    """

    def __init__(
        self,
        function: Function,
        block: tuple[int, int, int],
        shared_bytes: int = 0,
        *,
        overlap: bool = False,
        cluster: tuple[int, int, int] | None = None,
    ) -> None:
        """Settle a kernel's launches.

        Args:
            function: the loaded kernel.
            block: threads of a workgroup.
            shared_bytes: dynamic shared memory; above 48 KB the driver is asked for it here.
            overlap: the launch may begin before earlier launches of its stream have ended; the kernel waits for them
                itself (``griddepcontrol.wait``).
            cluster: workgroups of a cluster; None for none.

        Raises:
            DriverError: the driver does not give that much shared memory.
        """
        self.function, self.block, self.shared_bytes = function, block, shared_bytes
        using = function.module.driver
        if shared_bytes > UNASKED_SHARED_BYTES:
            _allow_shared(using, function, shared_bytes)
        attributes = _attributes(overlap, cluster)
        self._enqueue = _Extended(using, attributes) if attributes else None

    def launch(self, grid: tuple[int, int, int], kernarg: bytes) -> None:
        """Launch on the current stream of the kernel's device.

        Raises:
            ValueError, DriverError: as :meth:`mxgemm.hip.runtime.Function.launch`.
        """
        self.function.launch(grid, self.block, kernarg, shared_bytes=self.shared_bytes, enqueue=self._enqueue)


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
    with _capture_relaxed(driver()):
        return loaded.module(KERNELS / source, device, **defines).function(name)


class _Extended:
    """Launches with attributes; an ``Enqueue`` of :class:`mxgemm.hip.runtime.Function`."""

    def __init__(self, using: Driver, attributes: list[_Attribute]) -> None:
        self._launch = using.declare(
            "LaunchKernelEx", ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        )
        self._attributes = (_Attribute * len(attributes))(*attributes)  # read by the driver only: threads share it

    def __call__(
        self,
        handle: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
        extra: int,
    ) -> int:
        config = _Config(grid, block, shared_bytes, stream, self._attributes, len(self._attributes))
        return int(self._launch(ctypes.byref(config), handle, None, extra))


def _attributes(overlap: bool, cluster: tuple[int, int, int] | None) -> list[_Attribute]:
    found = []
    if overlap:
        found.append(_Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, _Value(flag=1)))
    if cluster is not None:
        found.append(_Attribute(_CLUSTER_DIMENSION, 0, _Value(cluster=cluster)))
    return found


def _allow_shared(using: Driver, function: Function, shared_bytes: int) -> None:
    ask = using.declare("FuncSetAttribute", ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    with torch.cuda.device(function.module.device):
        status = ask(function.handle, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    using.check(status, f"FuncSetAttribute({function.info.name}, {shared_bytes} bytes of shared memory)")


@contextmanager
def _capture_relaxed(using: Driver) -> Iterator[None]:
    """Let this thread load modules while a stream is captured: that touches no stream."""
    exchange: Any = using.declare("ThreadExchangeStreamCaptureMode", ctypes.POINTER(ctypes.c_int))
    mode = ctypes.c_int(_RELAXED)
    using.check(exchange(ctypes.byref(mode)), "ThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        using.check(exchange(ctypes.byref(mode)), "ThreadExchangeStreamCaptureMode")
