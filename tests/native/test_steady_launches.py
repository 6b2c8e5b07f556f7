"""What a steady call in C launches: one after the other, with scratch, by libraries, from threads, or not at all."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import plan, steady, workspace
from mxgemm.mx.tensor import MXTensor
from mxgemm.native import module
from mxgemm.native.program import OUT, A, KernelStep, Program, brought, fixed
from mxgemm.routes.base import Operands
from tests.native import stub
from tests.native.stub import (
    Launch,
    N,
    VendorLaunch,
    activations,
    both,
    counter,
    launches,
    settled,
    weight,
)


@pytest.mark.parametrize("kind", ["once", "twice", "scratch", "counters"])
def test_a_launch_that_fails_is_pythons(double: ctypes.CDLL, kind: str) -> None:
    options = {"once": {}, "twice": {"twice": True}, "scratch": {"scratch": 100}, "counters": {"counters": 3}}[kind]
    a, w = activations(), weight()
    launch = Launch(double, **options)  # type: ignore[arg-type]
    settled(w, a, launch)
    both(double, lambda: mxgemm.gemm(a, w), True)
    ran = launch.ran
    counter(double, "fails_at").value = launches(double) + (2 if kind == "twice" else 1)
    kept = [arena for free in workspace._free.values() for arena in free]
    y = mxgemm.gemm(a, w)
    assert launch.ran == ran + 1
    assert torch.equal(y.view(torch.int16), mxgemm.gemm(a, w).view(torch.int16))
    if kind in ("scratch", "counters"):  # what it used is dropped
        assert kept
        assert not any(arena in kept for free in workspace._free.values() for arena in free)


@pytest.mark.parametrize("double", ["HIP"], indirect=True)
def test_launches_by_hips_driver(double: ctypes.CDLL) -> None:
    a, w, bias = activations(), weight(), torch.randn(N) * 100
    for options in ({}, {"bias": bias}):
        settled(w, a, Launch(double, twice=True, scratch=256, counters=1), **options)
        both(double, lambda options=options: mxgemm.gemm(a, w, **options), True)  # type: ignore[misc]
    counter(double, "fails_at").value = launches(double) + 1
    assert mxgemm.gemm(a, w).shape == (3, N)  # Python's, where the driver refuses


def test_scratch_is_lent(double: ctypes.CDLL) -> None:
    a, w = activations(), weight()
    settled(w, a, Launch(double, scratch=4096, counters=2))
    both(double, lambda: mxgemm.gemm(a, w), True)
    ((key, free),) = workspace._free.items()
    assert key[0] == torch.device("cpu")
    assert len(free) == 1
    for _ in range(5):
        both(double, lambda: mxgemm.gemm(a, w), True)
        assert len(workspace._free[key]) == 1
    with workspace.take(64, torch.device("cpu")):  # the one arena is taken: another is made
        both(double, lambda: mxgemm.gemm(a, w), True)
    assert len(workspace._free[key]) == 2
    mxgemm.clear_workspaces()
    both(double, lambda: mxgemm.gemm(a, w), True)
    other = weight()
    settled(other, a, Launch(double, scratch=1 << 20))
    both(double, lambda: mxgemm.gemm(a, other), True)  # larger than what is kept


def test_a_table_cleared_while_it_is_used(double: ctypes.CDLL) -> None:
    """Python that runs within a call, here of torch's hooks for allocation, may clear the very plan."""
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    table = w.known.table  # type: ignore[attr-defined]

    class Clears:
        def __del__(self) -> None:
            table.clear()

    for _ in range(50):
        ring: list[Any] = [Clears()]
        ring.append(ring)
        del ring
        held = gc.get_threshold()
        gc.set_threshold(1)
        try:
            mxgemm.gemm(a, w)
        finally:
            gc.set_threshold(*held)


def test_threads(double: ctypes.CDLL) -> None:
    w, many = weight(), [activations(m) for m in range(1, 9)]
    wants = []
    for a in many:
        settled(w, a, Launch(double, scratch=256 * len(a), counters=1))
        wants.append(mxgemm.gemm(a, w).view(torch.int16))
    wrong: list[int] = []
    start = threading.Barrier(len(many))

    def work(a: Tensor, want: Tensor) -> None:
        start.wait()
        for i in range(400):
            if i % 97 == 0:
                workspace.clear()
            if not torch.equal(mxgemm.gemm(a, w).view(torch.int16), want):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(many, wants, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("scaled", [False, True], ids=["of bf16", "of e4m3 with bases"])
@pytest.mark.parametrize("scratch", [0, 512])
def test_a_vendors_product(double: ctypes.CDLL, scratch: int, scaled: bool) -> None:
    a, w, bias, out = activations(), weight(), torch.randn(N) * 100, torch.empty(3, N, dtype=torch.bfloat16)
    for options in ({}, {"bias": bias}, {"out": out}):
        settled(w, a, VendorLaunch(double, scratch=scratch, scaled=scaled), **options)
        both(double, lambda options=options: mxgemm.gemm(a, w, **options), True)  # type: ignore[misc]


def test_more_threads_than_descriptions(double: ctypes.CDLL) -> None:
    """A description serves one thread at a time; those that find none left go by Python."""
    w, a = mxgemm.quantize(torch.randn(256, stub.K)), activations(32)
    launch = VendorLaunch(double, descriptions=1)
    settled(w, a, launch)
    want, wrong, start = mxgemm.gemm(a, w).view(torch.int16), [], threading.Barrier(4)

    def work() -> None:
        start.wait()
        for i in range(60):
            if not torch.equal(mxgemm.gemm(a, w).view(torch.int16), want):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert launch.ran > 1 + steady.SETTLE_AT
    assert counter(double, "refused").value == 0


def test_another_device_is_current(double: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of GPU 1, with GPUs that are this CPU: C serves it where that is the current one."""
    current = 0
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    known, native = w.known, module.load(MXTensor, steady.Known, vars(plan))
    assert isinstance(known, steady.Known)
    assert native is not None
    (found,) = known.plans.values()
    described = plan.described(found.plan, a, w.data, w.scales, None, None, ())
    assert described is not None
    known.table.clear()
    options = "e2m1", "even", torch.bfloat16, None
    sizes = found.a_bytes, 0, 0
    known.table.add((a, None, None), sizes, options, found.plan.allocate, native.program(described), w.data.device, 1)
    both(double, lambda: mxgemm.gemm(a, w), False)
    current = 1
    both(double, lambda: mxgemm.gemm(a, w), True)
    current = 0
    both(double, lambda: mxgemm.gemm(a, w), False)


def test_wrong_programs_are_refused(double: ctypes.CDLL) -> None:
    native = module.load(MXTensor, steady.Known, vars(plan))
    assert native is not None
    made = native._program
    step = (0, (1, 1, 1), (1, 1, 1), 0, b"", b"\0" * 16, ((0, (1, 0)),))
    made((step,), 0, 0, (), ())
    for wrong in (
        (),
        (step,) * 9,
        (step[:6],),
        ((*step[:5], b"\0" * 4097, ()),),
        ((*step[:6], ((12, (1, 0)),)),),
        ((*step[:6], ((0, (16, 0)),)),),
        ((*step[:6], ((0, (1, 0)),) * 49),),
        ((*step[:4], b"\0" * 400, *step[5:]),),
    ):
        with pytest.raises((TypeError, ValueError)):
            made(wrong, 0, 0, (), ())


def test_a_program_that_is_run_by_its_addresses(double: ctypes.CDLL) -> None:
    """Slots behind those of a call's, in whatever order; a status where the driver refuses; wrong calls by name."""
    native = module.load(MXTensor, steady.Known, vars(plan))
    assert native is not None
    a, w, out = activations(), weight(), torch.empty(3, N, dtype=torch.bfloat16)
    want, launch = torch.empty_like(out), Launch(double)
    operands = Operands(a, None, w.data, w.scales, None, want, ())
    launch(operands)
    places = A, brought(1), fixed(0), OUT, fixed(0), fixed(0)
    step = replace(launch.program(operands).steps[0], places=tuple((8 * i, place) for i, place in enumerate(places)))
    run = native.program(Program((step, step))).run
    addresses = a.data_ptr(), 0, out.data_ptr(), 0, 0, 0, w.data.data_ptr()
    assert run(0, *addresses) == 0
    assert launches(double) == 2
    assert torch.equal(out.view(torch.int16), want.view(torch.int16))
    counter(double, "fails_at").value = launches(double) + 2
    assert run(0, *addresses) == 700
    for wrong in ((), range(17), (0, "a"), (0, -1)):
        with pytest.raises((TypeError, OverflowError)):
            run(*wrong)
    with pytest.raises(AssertionError):
        brought(10)


def test_long_arguments_and_attributes_reach_the_driver_whole(double: ctypes.CDLL) -> None:
    native = module.load(MXTensor, steady.Known, vars(plan))
    assert native is not None
    arguments, attributes = bytes(i * 7 % 251 for i in range(4096)), bytes(range(72)) * 2
    function, into = stub.address(double.keep), ctypes.create_string_buffer(4096)
    moving = tuple((8 * i, OUT + 1) for i in range(512 - 47, 512))
    step = KernelStep(function, (3, 1, 1), (32, 1, 1), 0, arguments, ((0, A), *moving), attributes)
    program = native.program(Program((step, step)))
    assert program.run(0, ctypes.addressof(into), 0, 5) == 0
    assert launches(double) == 2
    begin, end = ctypes.addressof(into).to_bytes(8, "little"), (6).to_bytes(8, "little") * 47
    assert into.raw == begin + arguments[8 : -len(end)] + end
    assert counter(double, "seen_count").value == 2
    assert ctypes.string_at(stub.address(double.seen), 144) == attributes
