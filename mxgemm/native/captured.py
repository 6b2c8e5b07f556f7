"""What a launch by somebody else is, down to the bits: captured into a graph that never runs, and read back.

Libraries compile and launch kernels in their own ways, which change from release to release. What reaches CUDA's driver
does not: a function, a grid and a block of arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch

from mxgemm.hip.runtime import CUDA, Driver, driver
from mxgemm.native.program import KernelStep

# CUDA driver API: CUstream_flags, CUstreamCaptureMode, CUgraphNodeType, CUlaunchAttributeID.
_NON_BLOCKING: Final = 1
_RELAXED: Final = 2
_KERNEL_NODE: Final = 0
_COOPERATIVE: Final = 2
_CLUSTER: Final = 4
_CLUSTER_SCHEDULING: Final = 5
_PREFERRED_CLUSTER: Final = 11
# CU_LAUNCH_PARAM_...
_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_POINTER: Final = ctypes.c_void_p


class _KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("function", _POINTER),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.POINTER(_POINTER)),
        ("extra", _POINTER),
        ("kernel", _POINTER),
        ("context", _POINTER),
    )


class _Value(ctypes.Structure):
    """``CUlaunchAttributeValue``."""

    _fields_ = (("words", ctypes.c_uint * 16),)


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", _Value))


def kernel_launch(launch: Callable[[], object], device: torch.device) -> KernelStep | None:
    """Return the one kernel that ``launch`` puts on the current stream of a device, which must be the current device.

    Nothing runs on the GPU: ``launch`` is captured, on a stream that nobody else has.

    Returns:
        None where it is anything but one kernel, or one whose grid waits for itself, or this driver does not tell.
    """
    using = driver()
    if using.api is not CUDA:
        return None
    graph = _POINTER()
    begin = using.declare("StreamBeginCapture_v2", _POINTER, ctypes.c_int)
    end = using.declare("StreamEndCapture", _POINTER, ctypes.POINTER(_POINTER))
    with _lent_stream(using, device) as stream:
        try:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):  # type: ignore[no-untyped-call]
                using.check(begin(stream, _RELAXED), "StreamBeginCapture")
                try:
                    launch()
                finally:
                    status = end(stream, ctypes.byref(graph))
            using.check(status, "StreamEndCapture")
            return _read(using, graph)
        finally:
            if graph:
                using.declare("GraphDestroy", _POINTER)(graph)


@contextmanager
def relaxed(using: Driver | None = None) -> Iterator[None]:
    """Let this thread load, allocate and capture while any thread's stream is captured: it touches none of those.

    Args:
        using: a driver other than torch's.
    """
    using = using or driver()
    exchange: Any = using.declare("ThreadExchangeStreamCaptureMode", ctypes.POINTER(ctypes.c_int))
    mode = ctypes.c_int(_RELAXED)
    using.check(exchange(ctypes.byref(mode)), "ThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        using.check(exchange(ctypes.byref(mode)), "ThreadExchangeStreamCaptureMode")


_streams: dict[torch.device, list[int]] = {}
"""Those that no thread captures now."""


@contextmanager
def _lent_stream(using: Driver, device: torch.device) -> Iterator[int]:
    """Lend a stream of the current device; none of torch's, which come round again: others' work would be captured."""
    free = _streams.setdefault(device, [])
    try:
        stream = free.pop()
    except IndexError:
        made = _POINTER()
        create = using.declare("StreamCreate", ctypes.POINTER(_POINTER), ctypes.c_uint)
        using.check(create(ctypes.byref(made), _NON_BLOCKING), "StreamCreate")
        stream = int(made.value or 0)
    try:
        yield stream
    finally:
        free.append(stream)


def _read(using: Driver, graph: Any) -> KernelStep | None:
    count = ctypes.c_size_t()
    nodes = using.declare("GraphGetNodes", _POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(ctypes.c_size_t))
    using.check(nodes(graph, None, ctypes.byref(count)), "GraphGetNodes")
    if count.value != 1:
        return None
    node, kind, found = _POINTER(), ctypes.c_int(), _KernelNode()
    using.check(nodes(graph, ctypes.byref(node), ctypes.byref(count)), "GraphGetNodes")
    kind_of = using.declare("GraphNodeGetType", _POINTER, ctypes.POINTER(ctypes.c_int))
    using.check(kind_of(node, ctypes.byref(kind)), "GraphNodeGetType")
    if kind.value != _KERNEL_NODE:
        return None
    read = using.declare("GraphKernelNodeGetParams_v2", _POINTER, ctypes.POINTER(_KernelNode))
    using.check(read(node, ctypes.byref(found)), "GraphKernelNodeGetParams")
    function = found.function or _function_of(using, found)
    attributes = _attributes(using, node)
    if not function or attributes is None:
        return None
    arguments = _arguments(using, function, found) if found.arguments else _packed(found)
    if arguments is None:
        return None
    grid, block = (tuple(int(size) for size in sizes) for sizes in (found.grid, found.block))
    return KernelStep(int(function), grid, block, int(found.shared_bytes), arguments, (), attributes)  # type: ignore[arg-type]


def _function_of(using: Driver, found: _KernelNode) -> int | None:
    """Return the function of a kernel that its library has not loaded into one context alone."""
    if not found.kernel:
        return None
    function = _POINTER()
    ask = using.declare("KernelGetFunction", ctypes.POINTER(_POINTER), _POINTER)
    using.check(ask(ctypes.byref(function), found.kernel), "KernelGetFunction")
    return function.value


def _attributes(using: Driver, node: Any) -> bytes | None:
    """Return what a launch has of attributes, as the driver reads them: those of its clusters.

    Returns:
        None for a grid that waits for itself.
    """
    ask = using.declare("GraphKernelNodeGetAttribute", _POINTER, ctypes.c_int, ctypes.POINTER(_Value))
    cooperative, cluster = _Value(), _Value()
    using.check(ask(node, _COOPERATIVE, ctypes.byref(cooperative)), "GraphKernelNodeGetAttribute")
    using.check(ask(node, _CLUSTER, ctypes.byref(cluster)), "GraphKernelNodeGetAttribute")
    if cooperative.words[0]:
        return None
    if all(size <= 1 for size in cluster.words[:3]):
        return b""
    attributes = bytes(_Attribute(_CLUSTER, 0, cluster))
    for number in (_CLUSTER_SCHEDULING, _PREFERRED_CLUSTER):  # 0 for the driver's own; the second since CUDA 12.8
        value = _Value()
        if not ask(node, number, ctypes.byref(value)) and value.words[0]:
            attributes += bytes(_Attribute(number, 0, value))
    return attributes


def _arguments(using: Driver, function: int, found: _KernelNode) -> bytes | None:
    """Return the block of arguments, put together of the node's by what the driver says of the function's."""
    try:
        ask = using.declare("FuncGetParamInfo", _POINTER, ctypes.c_size_t, *(ctypes.POINTER(ctypes.c_size_t),) * 2)
    except AttributeError:  # a driver before 12.4
        return None
    block, index = bytearray(), 0
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while not ask(function, index, ctypes.byref(offset), ctypes.byref(size)):
        block.extend(bytes(offset.value + size.value - len(block)))
        block[offset.value :] = ctypes.string_at(found.arguments[index], size.value)
        index += 1
    return bytes(block)


def _packed(found: _KernelNode) -> bytes | None:
    """Return the block of arguments of a launch that brought them as such."""
    pairs, brought = ctypes.cast(found.extra, ctypes.POINTER(_POINTER)), dict[int, int]()
    for index in range(0, 4 if found.extra else 0, 2):
        brought[pairs[index] or 0] = pairs[index + 1] or 0
    if not brought.keys() >= {_BUFFER_POINTER, _BUFFER_SIZE}:
        return None
    return ctypes.string_at(brought[_BUFFER_POINTER], ctypes.c_size_t.from_address(brought[_BUFFER_SIZE]).value)


def with_places(step: KernelStep, addresses: tuple[int, ...], places: tuple[Any, ...]) -> KernelStep | None:
    """Return a launch whose first arguments are addresses that change.

    Args:
        step: as it was launched.
        addresses: what its first arguments were then.
        places: what they are of any call.

    Returns:
        None where the arguments do not begin with these addresses.
    """
    begin = b"".join(address.to_bytes(8, "little") for address in addresses)
    if not step.arguments.startswith(begin):
        return None
    changing = tuple((8 * index, place) for index, place in enumerate(places))
    return replace(step, places=changing)
