"""A first launch, against a stand-in for a Triton kernel: compiled once, whoever comes first, in a forked child too."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.triton import launch, quantize
from mxgemm.triton.launch import KernelCall, Launcher
from tests.cases import skip_without_kernels

A = torch.zeros(4)


class Kernel:
    """Counts what is asked of it; ``compiling`` runs in the midst of a compilation."""

    def __init__(self, compiling: Callable[[], None] = lambda: None) -> None:
        self.compilations = 0
        self.launches: list[tuple[Any, ...]] = []
        self.compiling = compiling

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., Any]:
        def launch(*arguments: Any, **constants: Any) -> Any:
            self.compilations += 1
            time.sleep(0.02)
            self.compiling()
            self.launches.append(arguments)
            return {grid: lambda *again, stream: self.launches.append(again[:2])}

        return launch


def launcher(kernel: Kernel) -> Launcher:
    return Launcher(KernelCall(kernel, (torch.float32,), (7,), {"BLOCK": 16}, {"num_warps": 4}, (1, 2, 3)))


def test_threads_that_launch_first_compile_once() -> None:
    kernel = Kernel()
    launch, start = launcher(kernel), threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(5):
            launch(A)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.compilations == 1
    assert kernel.launches == [(A, 7)] * 40


def test_a_launch_from_within_a_first_launch() -> None:
    """As from a finaliser: of the same kernel, which is then compiled twice, and of another."""
    inner = Kernel()
    kernel = Kernel()
    launch, launch_inner = launcher(kernel), launcher(inner)

    def compiling() -> None:
        if kernel.compilations == 1:
            launch(A)
            launch_inner(A)

    kernel.compiling = compiling
    launch(A)
    assert kernel.compilations == 2
    assert len(kernel.launches) == 2
    assert inner.compilations == 1


def test_a_first_launch_that_fails_is_tried_again() -> None:
    def fail() -> None:
        if kernel.compilations == 1:
            raise RuntimeError("out of registers")

    kernel = Kernel(fail)
    launch = launcher(kernel)
    for _ in range(3):
        try:
            launch(A)
        except RuntimeError:
            assert kernel.compilations == 1
    assert kernel.compilations == 2
    assert len(kernel.launches) == 2


def test_a_child_forked_while_another_thread_compiles() -> None:
    compiling, done = threading.Event(), threading.Event()

    def slowly() -> None:
        compiling.set()
        done.wait(60)

    thread = threading.Thread(target=launcher(Kernel(slowly)), args=(A,))
    thread.start()
    compiling.wait()
    child = os.fork()
    if child == 0:
        kernel = Kernel()
        launcher(kernel)(A)
        os._exit(len(kernel.launches))
    end, status = time.monotonic() + 30, None
    while status is None and time.monotonic() < end:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 1
    with launch._first_launch:  # the parent's lock is free again
        pass


def test_quantising_while_launchers_are_forgotten() -> None:
    skip_without_kernels("cpu")
    x = torch.randn(5, 32)
    addend = scale_addend(E2M1, "even")

    def quantise(rows: int) -> torch.Tensor:
        data, scales = torch.empty(rows, 16, dtype=torch.uint8), torch.empty(rows, 1, dtype=torch.uint8)
        quantize.quantize_rows(x[:rows], E2M1, addend, data, scales)
        return data

    wanted = [quantise(rows) for rows in range(1, 6)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(15):
            rows = (seed + i) % 5 + 1
            if not torch.equal(quantise(rows), wanted[rows - 1]):
                wrong.append(rows)
            if i % 2:
                quantize._launchers.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
