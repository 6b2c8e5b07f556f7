"""Launches with attributes, against a driver that keeps what it is told."""

from __future__ import annotations

import ctypes
import threading
from functools import partial

import pytest
import torch

from mxgemm.cuda.launch import Kernel
from mxgemm.hip import runtime
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.runtime import CUDA, DriverError, Function
from mxgemm.native.captured import relaxed
from mxgemm.native.program import A, fixed
from tests.hip.conftest import STREAM, Double, built, double

ARGUMENTS = Layout("PPqIIII")
LEADING = Layout("PP")
__all__ = ["double"]
only_cuda = pytest.mark.parametrize("double", [CUDA], indirect=True, ids=["CUDA"])


def function(double: Double, index: int = 0) -> Function:
    image = built("shuffle_scales.hip", "gfx950")  # a driver's names have nothing to do with what is in a file
    return runtime.load(image, torch.device("cuda", index), using=double.driver).function("shuffle_scales_8")


@only_cuda
def test_attributes_arrive_as_they_were_meant(double: Double) -> None:
    loaded = function(double)
    kernarg = ARGUMENTS.pack(1 << 47, 2, -3, 4, 5, 6, 7)
    settled = partial(Kernel, loaded, (9, 2, 1), (64, 2, 1), LEADING, constants=kernarg[16:], shared_bytes=96)
    settled(overlap=True, cluster=(4, 1, 1)).launch(1 << 47, 2)
    settled(overlap=True).launch(1 << 47, 2)
    settled().launch(1 << 47, 2)
    both, overlap, plain = double.launches
    assert [kept.count for kept in double.launches] == [2, 1, 0]
    assert (both.attributes[0][0], both.attributes[0][2]) == (6, 1)  # programmatic stream serialisation: id, value
    assert (both.attributes[1][0], list(both.attributes[1][2:5])) == (4, [4, 1, 1])  # cluster dimensions
    for kept in (both, overlap, plain):
        assert (list(kept.grid), list(kept.block), kept.shared, kept.stream) == ([9, 2, 1], [64, 2, 1], 96, STREAM)
        assert bytes(kept.bytes[: kept.size]) == kernarg


@only_cuda
def test_a_described_launch_is_the_launch(double: Double) -> None:
    kernel = Kernel(
        function(double), (9, 2, 1), (64, 2, 1), LEADING, constants=bytes(range(24)), shared_bytes=96, overlap=True
    )
    kernel.launch(0, 1 << 47)
    (kept,) = double.launches
    handle, grid, block, shared, attributes, arguments, places = kernel.step(A, fixed(1 << 47)).packed()
    assert handle == kernel.function.handle
    assert (grid, block, shared) == (tuple(kept.grid), tuple(kept.block), kept.shared)
    assert (len(attributes), attributes[0], attributes[8]) == (72, 6, 1)  # one: its id, its value
    assert arguments == bytes(kept.bytes[: kept.size])
    assert places == ((0, A),)


@only_cuda
def test_more_shared_memory_is_asked_for(double: Double) -> None:
    loaded = function(double)
    asked = ctypes.c_int.in_dll(double.library, "shared_asked_for")
    settled = partial(Kernel, loaded, (1, 1, 1), (32, 1, 1), ARGUMENTS)
    settled(shared_bytes=48 * 1024)
    assert asked.value == 0
    settled(shared_bytes=48 * 1024 + 16)
    assert asked.value == 48 * 1024 + 16
    with pytest.raises(DriverError, match=r"FuncSetAttribute\(shuffle_scales_8, 262144 bytes .*invalid value"):
        settled(shared_bytes=1 << 18)


@only_cuda
def test_a_smaller_launch_leaves_a_larger_one_its_shared_memory(double: Double) -> None:
    loaded = function(double)
    sizes = (60 << 10, 50 << 10, 200 << 10, 52 << 10)
    kernels = [Kernel(loaded, (1, 1, 1), (32, 1, 1), ARGUMENTS, shared_bytes=size) for size in sizes]
    for kernel in kernels:
        kernel.launch(*range(7))
    assert [kept.shared for kept in double.launches] == list(sizes)


@only_cuda
def test_a_handler_that_asks_for_more_meanwhile(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = function(double)
    settled = partial(Kernel, loaded, (1, 1, 1), (32, 1, 1), ARGUMENTS)
    declare, larger = double.driver.declare, []

    def interrupted(name: str, *types: object) -> object:
        ask = declare(name, *types)

        def asks(*values: object) -> object:
            if not larger:
                larger.append(None)
                larger[0] = settled(shared_bytes=100 << 10)
            return ask(*values)

        return asks if name == "FuncSetAttribute" else ask

    monkeypatch.setattr(double.driver, "declare", interrupted)
    smaller = settled(shared_bytes=60 << 10)
    for kernel in (smaller, larger[0]):
        kernel.launch(*range(7))
    assert [kept.shared for kept in double.launches] == [60 << 10, 100 << 10]


@only_cuda
def test_arguments_are_as_many_as_the_kernel_takes(double: Double) -> None:
    loaded = function(double)
    with pytest.raises(ValueError, match="got 16 bytes for shuffle_scales_8, want 40 to 4096"):
        Kernel(loaded, (1, 1, 1), (32, 1, 1), LEADING)
    with pytest.raises(ValueError, match="got 4104 bytes"):
        Kernel(loaded, (1, 1, 1), (32, 1, 1), LEADING, constants=bytes(4088))


@only_cuda
def test_a_refused_launch_says_what_was_launched(double: Double) -> None:
    kernel = Kernel(function(double), (7, 1, 1), (32, 1, 1), ARGUMENTS)
    double.fail_next_with(1)
    with pytest.raises(DriverError, match=r"cuLaunchKernelEx\(shuffle_scales_8, grid \(7, 1, 1\).*invalid value"):
        kernel.launch(*range(7))
    kernel.launch(*range(7))  # and the next one goes through
    assert len(double.launches) == 1


@only_cuda
def test_a_thread_without_a_context_gets_the_modules(double: Double) -> None:
    kernel = Kernel(function(double, index=1), (5, 1, 1), (32, 1, 1), LEADING, constants=bytes(24), overlap=True)

    def launch_some(base: int) -> None:
        for i in range(base, base + 50):
            kernel.launch(i, 2 * i)

    threads = [threading.Thread(target=launch_some, args=(1000 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [int.from_bytes(bytes(kept.bytes[:8]), "little") for kept in double.launches]
    assert sorted(seen) == [1000 * t + i for t in range(4) for i in range(50)]
    for i, kept in zip(seen, double.launches, strict=True):
        assert bytes(kept.bytes[: kept.size]) == ARGUMENTS.pack(i, 2 * i, 0, 0, 0, 0, 0)
        assert (kept.count, kept.stream, list(kept.grid)) == (1, STREAM + 1, [5, 1, 1])


@only_cuda
def test_modules_are_loaded_while_a_stream_is_captured(double: Double) -> None:
    mode = ctypes.c_int.in_dll(double.library, "capture_mode")
    with relaxed(double.driver):
        assert mode.value == 2
    assert mode.value == 0
