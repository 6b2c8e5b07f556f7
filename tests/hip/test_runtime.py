"""Loading and launching, against a driver that checks what it is told; and against the real one, which finds no GPU."""

from __future__ import annotations

import struct
import threading

import pytest
import torch

from mxgemm.hip import runtime
from mxgemm.hip.code_object import CodeObjectError
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.runtime import HIP, Driver, DriverError, Module
from tests.hip.conftest import STREAM, Double, built

ARGUMENTS = Layout("PPqIIII")


def loaded(double: Double, index: int = 0) -> Module:
    image = built("shuffle_scales.hip", "gfx950")
    return runtime.load(image, torch.device("cuda", index), using=double.driver)


def test_a_launch_arrives_as_it_was_meant(double: Double) -> None:
    function = loaded(double).function("shuffle_scales_8")
    kernarg = ARGUMENTS.pack(1 << 47, 2, -3, 4, 5, 6, 7)
    function.launch((1 << 20, 3, 2), (256, 1, 1), kernarg, shared_bytes=96)
    function.launch((9, 1, 1), (64, 2, 1), kernarg + bytes(8))
    first, second = double.launches
    assert (list(first.grid), list(first.block), first.shared) == ([1 << 20, 3, 2], [256, 1, 1], 96)
    assert (first.function, first.stream, first.parameters) == (0xF0, STREAM, None)
    assert bytes(first.bytes[: first.size]) == struct.pack("<QQqIIII", 1 << 47, 2, -3, 4, 5, 6, 7)
    assert (list(second.grid), list(second.block), second.shared, second.size) == ([9, 1, 1], [64, 2, 1], 0, 48)


def test_another_device_is_made_current(double: Double) -> None:
    function = loaded(double, index=1).function("shuffle_scales_8")
    double.entered.clear()
    function.launch((1, 1, 1), (256, 1, 1), bytes(ARGUMENTS.size))
    assert double.entered == [1]
    assert double.launches[0].stream == STREAM + 1
    loaded(double, index=0).function("shuffle_scales_8").launch((1, 1, 1), (256, 1, 1), bytes(ARGUMENTS.size))
    assert double.launches[1].stream == STREAM


def test_threads_do_not_share_argument_memory(double: Double) -> None:
    function = loaded(double).function("shuffle_scales_8")
    double.delay(20000)

    def launch(base: int) -> None:
        for i in range(base, base + 50):
            function.launch((i + 1, 1, 1), (1, 1, 1), ARGUMENTS.pack(i, i, i, i, i, i, i))

    threads = [threading.Thread(target=launch, args=(1000 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launches = double.launches
    assert sorted(launch.grid[0] - 1 for launch in launches) == [1000 * t + i for t in range(4) for i in range(50)]
    for launch in launches:
        i = launch.grid[0] - 1
        assert bytes(launch.bytes[: launch.size]) == ARGUMENTS.pack(i, i, i, i, i, i, i)


def test_a_thread_that_has_done_nothing_on_the_gpu_loads_and_launches(double: Double) -> None:
    """CUDA's contexts are current for a thread each; torch's memory is to be had on one that has none."""
    failed: list[Exception] = []

    def first() -> None:
        try:
            loaded(double).function("shuffle_scales_8").launch((1, 1, 1), (1, 1, 1), bytes(ARGUMENTS.size))
        except Exception as error:
            failed.append(error)

    for _ in range(2):
        thread = threading.Thread(target=first)
        thread.start()
        thread.join()
    assert failed == []
    assert len(double.launches) == 2


def test_errors_carry_the_drivers_words(double: Double) -> None:
    function = loaded(double).function("shuffle_scales_8")
    for status, words in ((1, "double: invalid value"), (77, "unknown error")):
        double.fail_next_with(status)
        with pytest.raises(DriverError, match=rf"LaunchKernel\(shuffle_scales_8, grid .*{words} \(error {status}\)"):
            function.launch((1, 1, 1), (1, 1, 1), bytes(40))
    function.launch((1, 1, 1), (1, 1, 1), bytes(40))  # and the next one goes through
    assert len(double.launches) == 1


def test_wrong_arguments_never_reach_the_driver(double: Double) -> None:
    module = loaded(double)
    with pytest.raises(ValueError, match="kernarg: got 39 bytes for shuffle_scales_8, want 40 to 4096"):
        module.function("shuffle_scales_8").launch((1, 1, 1), (1, 1, 1), bytes(39))
    with pytest.raises(ValueError, match="kernarg: got 4097 bytes"):
        module.function("shuffle_scales_8").launch((1, 1, 1), (1, 1, 1), bytes(4097))
    with pytest.raises(DriverError, match="kernel: got 'shuffle', want one of shuffle_scales_1, "):
        module.function("shuffle")
    assert double.launches == []


def test_files_for_another_gpu_are_refused(double: Double) -> None:
    device = torch.device("cuda", 0)
    with pytest.raises(CodeObjectError, match="the code object is for gfx942; this device is gfx950"):
        runtime.load(built("shuffle_scales.hip", "gfx942"), device, using=double.driver)
    with pytest.raises(CodeObjectError, match="want a 64-bit ELF file"):
        runtime.load(b"#!/bin/sh", device, using=double.driver)
    with pytest.raises(ValueError, match="device: got cpu"):
        runtime.load(b"", torch.device("cpu"), using=double.driver)


def test_a_library_that_is_no_driver(tmp_path: object) -> None:
    with pytest.raises(DriverError, match="libamdhip64 cannot be used"):
        Driver.open(HIP, f"{tmp_path}/none.so")
    with pytest.raises(DriverError, match="undefined symbol: hipModuleLoadData"):
        Driver.open(HIP, "libm.so.6")


def test_the_real_hip_library_says_that_there_is_no_gpu() -> None:
    """Debian's libamdhip64-5 is enough; it is not installed for the tests."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    try:
        driver = Driver.open(HIP)
    except DriverError as error:
        pytest.skip(f"{error}; on Debian and Ubuntu: apt install libamdhip64-5")
    with pytest.raises(DriverError, match=r"hipModuleLoadData: hipError\w+ \(error \d+\)"):
        driver.load(built("shuffle_scales.hip", "gfx950"))


def test_a_cpu_torch_has_no_driver() -> None:
    if torch.version.hip or torch.version.cuda:
        pytest.skip("torch is built for a GPU")
    assert "CPU build" in str(runtime.driver_refusal())
