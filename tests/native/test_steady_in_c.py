"""A steady call in C against the same call in Python: bit for bit, error for error; or nothing done."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import plan, steady, workspace
from mxgemm.mx.tensor import MXTensor
from mxgemm.native import build, module
from tests.native import stub
from tests.native.stub import (
    Launch,
    N,
    VendorLaunch,
    activations,
    both,
    launches,
    outcome,
    settled,
    weight,
)


def test_a_call(double: ctypes.CDLL) -> None:
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    shown = [both(double, lambda: mxgemm.gemm(a, w), True)]
    a.copy_(torch.randn_like(a))  # nothing of A is kept
    shown.append(both(double, lambda: mxgemm.gemm(a, w), True))
    assert shown[0] != shown[1]
    results = [mxgemm.gemm(a, w) for _ in range(3)]
    assert len({y.data_ptr() for y in results}) == 3
    assert all(y.dtype == torch.bfloat16 and y.shape == (3, N) and y.is_contiguous() for y in results)


def test_a_low_address(double: ctypes.CDLL) -> None:
    """Below 2^40 lie freed tensors, and those of some drivers: storages are asked."""
    libc, private_anonymous_fixed = ctypes.CDLL(None), 0x100022
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(
        *map(ctypes.c_void_p, (0x3_0200_0000, 1 << 12, 3)), private_anonymous_fixed, -1, ctypes.c_void_p(0)
    )
    if place != 0x3_0200_0000:
        pytest.skip("no memory at a low address")
    memory = (ctypes.c_char * (1 << 12)).from_address(place)
    a, w = torch.frombuffer(memory, dtype=torch.bfloat16)[: 3 * stub.K].view(3, stub.K), weight()
    a.copy_(activations())
    assert a.data_ptr() < 1 << 40
    settled(w, a, Launch(double))
    both(double, lambda: mxgemm.gemm(a, w), True)


def test_a_layer(double: ctypes.CDLL) -> None:
    layer, a = mxgemm.nn.MXLinear.from_mx(weight(), a_format="e2m1"), activations()
    with torch.no_grad():
        layer(a)
        inner = layer._read()
        assert inner is not None
        settled(inner, a, Launch(double))
        both(double, lambda: layer(a), True)


@pytest.mark.parametrize("m", [(), (2, 3), (1, 1, 5)])
def test_other_dimensions(double: ctypes.CDLL, m: tuple[int, ...]) -> None:
    a, w = torch.randn(*m, stub.K, dtype=torch.bfloat16), weight()
    settled(w, a, Launch(double))
    both(double, lambda: mxgemm.gemm(a, w), True)
    both(double, lambda: mxgemm.gemm(a[None], w), False)


def test_options_bias_and_output(double: ctypes.CDLL) -> None:
    a, w, bias = activations(), weight(), torch.randn(N) * 100
    out = torch.empty(3, 2 * N, dtype=torch.bfloat16)[:, ::2]
    for options in ({}, {"bias": bias}, {"out": out}, {"bias": bias, "out": out}, {"a_format": "e4m3"}):
        settled(w, a, Launch(double), **options)
    for options in ({}, {"bias": bias}, {"out": out}, {"bias": bias, "out": out}, {"a_format": "e4m3"}):
        both(double, lambda options=options: mxgemm.gemm(a, w, **options), True)  # type: ignore[misc]
    both(double, lambda: mxgemm.gemm(a, w, a_format="".join(["e4", "m3"])), True)  # equal, not the same object
    both(double, lambda: mxgemm.gemm(a, w, a_format="bf16"), False)
    both(double, lambda: mxgemm.gemm(a, w, out_dtype=torch.float16), False)
    both(double, lambda: mxgemm.gemm(a, w, bias=bias.half()), False)
    assert mxgemm.gemm(a, w, out=out) is out
    before = out._version
    mxgemm.gemm(a, w, out=out)
    assert out._version == before + 1


def test_activations_of_another_kind(double: ctypes.CDLL) -> None:
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    wide = torch.randn(3, 2 * stub.K + 1, dtype=torch.bfloat16)
    for other in (
        *(a.float(), a.half(), a[:2], a[None], wide[:, : stub.K], torch.randn(stub.K, 3, dtype=torch.bfloat16).t()),
        *(torch._neg_view(a.clone()), a.to_sparse(), torch.empty(3, stub.K, dtype=torch.bfloat16, device="meta")),
        *(torch.zeros(0, stub.K, dtype=torch.bfloat16), torch.nested.nested_tensor([a[0], a[1]]), None, 7, w),
    ):
        before = launches(double)
        results = []
        for quick in (steady.quick, None):
            with contextlib.ExitStack() as stack:
                held = steady.quick
                stack.callback(setattr, steady, "quick", held)
                steady.quick = quick
                try:
                    y = mxgemm.gemm(other, w)  # type: ignore[arg-type]
                    results.append((y.shape, y.device) if y.is_meta else y.tolist())
                except Exception as error:
                    results.append((type(error), str(error)))
        assert results[0] == results[1]
        assert launches(double) == before
    misaligned = torch.randn(3 * stub.K + 1, dtype=torch.bfloat16)[1:].view(3, stub.K)
    for x, known in ((a, True), (misaligned, False), (a, True)):
        both(double, lambda x=x: mxgemm.gemm(x, w), known)  # type: ignore[misc]
    freed = activations()
    freed.untyped_storage().resize_(0)
    assert both(double, lambda: mxgemm.gemm(freed, w), False)[0] is ValueError


def test_a_parameter_is_a_tensor(double: ctypes.CDLL) -> None:
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    parameter = torch.nn.Parameter(a.clone())
    assert both(double, lambda: mxgemm.gemm(parameter, w), False)[0] is RuntimeError  # it requires grad
    with torch.no_grad():
        mxgemm.gemm(parameter, w)


@pytest.mark.parametrize("form", ["plain", "prepared"])
@pytest.mark.parametrize(
    "change",
    [
        lambda w, o: (w.data.copy_(o.data), w.scales.copy_(o.scales)),
        lambda w, o: (setattr(w.data, "data", o.data), setattr(w.scales, "data", o.scales)),
        lambda w, o: (w.data.set_(o.data), w.scales.set_(o.scales)),
        lambda w, o: w.data.resize_(N // 2, stub.K // 2),
        lambda w, o: w.data.t_(),
        lambda w, o: setattr(w.data, "data", w.data.data[: N // 2]),
        lambda w, o: setattr(w.scales, "data", w.scales.data[:, :1]),
        lambda w, o: w.data.untyped_storage().resize_(0),
        lambda w, o: w.scales.zero_(),
    ],
)
def test_a_weight_changed_in_place(double: ctypes.CDLL, change: Callable[..., object], form: str) -> None:
    a, w, other = activations(), weight(), weight()
    used = w.prepare(arch="gfx950") if form == "prepared" else w
    settled(used, a, Launch(double))
    mxgemm.gemm(a, used)
    before = launches(double)
    change(w, other)
    by_c = outcome(lambda: mxgemm.gemm(a, used))
    held, steady.quick = steady.quick, None
    by_python = outcome(lambda: mxgemm.gemm(a, used))
    steady.quick = held
    assert by_c == by_python
    if form == "prepared":
        assert launches(double) == before


def test_an_output_over_an_operand(double: ctypes.CDLL) -> None:
    memory = torch.zeros(1 << 14, dtype=torch.uint8)
    w = weight()
    w = MXTensor.wrap(memory[: N * stub.K // 2].view(N, stub.K // 2).copy_(w.data), w.scales)
    a = activations()
    apart = memory[8192 : 8192 + 3 * N * 2].view(torch.bfloat16).view(3, N)
    over = memory[1024 : 1024 + 3 * N * 2].view(torch.bfloat16).view(3, N)
    settled(w, a, Launch(double), out=apart)
    both(double, lambda: mxgemm.gemm(a, w, out=apart), True)
    assert both(double, lambda: mxgemm.gemm(a, w, out=over), False)[0] is ValueError
    assert both(double, lambda: mxgemm.gemm(a, w, out=a), False)[0] is ValueError
    wide, another = torch.randn(2, 3, 2 * stub.K, dtype=torch.bfloat16)
    left, right = wide[:, ::2], wide[:, 1::2]
    settled(w, left, Launch(double), out=another[:, 1::2])
    both(double, lambda: mxgemm.gemm(a, w, out=apart), True)
    both(double, lambda: mxgemm.gemm(left, w, out=right), False)  # they interleave: Python looks, and takes them


def test_gradients_modes_and_transforms_are_pythons(double: ctypes.CDLL) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen: list[str] = []
    a, w, bias = activations(), weight(), torch.zeros(N, requires_grad=True)
    with torch.no_grad():
        settled(w, a, Launch(double), bias=bias)
        both(double, lambda: mxgemm.gemm(a, w, bias=bias), True)
    assert both(double, lambda: mxgemm.gemm(a, w, bias=bias), False)[0] is RuntimeError
    settled(w, a, Launch(double))
    before = launches(double)
    with Seen():
        mxgemm.gemm(a, w)
    assert any("mxgemm" in name for name in seen)
    with torch.autograd.forward_ad.dual_level():
        mxgemm.gemm(a, w)
    assert launches(double) == before
    with torch.device("cpu"):  # a mode for calls that name no device
        both(double, lambda: mxgemm.gemm(a, w), True)
    with torch.inference_mode():
        assert mxgemm.gemm(a, w).is_inference()
    assert both(double, lambda: mxgemm.gemm(a, w), True)


@pytest.mark.slow
def test_transforms_and_traces_see_the_operator(double: ctypes.CDLL) -> None:
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    before = launches(double)
    traced = torch.jit.trace(lambda x: mxgemm.gemm(x, w), (a,), check_trace=False)
    assert "mxgemm" in str(traced.graph)
    torch.vmap(lambda x: mxgemm.gemm(x, w))(a)
    assert launches(double) == before


def test_forgotten_plans(double: ctypes.CDLL) -> None:
    a, w = activations(), weight()
    settled(w, a, Launch(double))
    plan.clear_plans()
    both(double, lambda: mxgemm.gemm(a, w), False)


def test_no_more_plans_than_said(double: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "MAX_PLANS", 2)
    w, many = weight(), [activations(m) for m in range(1, 6)]
    for a in many:
        settled(w, a, Launch(double))
    before = launches(double)
    for a in many[:-2]:
        mxgemm.gemm(a, w)
    assert launches(double) == before


def test_nothing_leaks(double: ctypes.CDLL) -> None:
    a, w, out = activations(), weight(), torch.empty(3, N, dtype=torch.bfloat16)
    settled(w, a, Launch(double, scratch=64))
    settled(w, a, Launch(double), out=out)
    watched = a, w.data, w.scales, out, None, True, torch.bfloat16, w.known, workspace._free
    for _ in range(10):
        mxgemm.gemm(a, w)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(1000):
        mxgemm.gemm(a, w)
        mxgemm.gemm(a, w, out=out)
        steady.quick(w, a, None, 7, "e2m1", "even", torch.bfloat16, None)  # type: ignore[misc, arg-type]
    after = [sys.getrefcount(one) for one in watched]
    assert all(abs(x - y) < 50 for x, y in zip(before, after, strict=True)), (before, after)


@pytest.mark.parametrize(
    "launch",
    [
        Launch,
        lambda double: Launch(double, twice=True, scratch=4096, counters=2),
        lambda double: VendorLaunch(double, twice=True, scratch=4096),
    ],
    ids=["one launch", "two that share scratch", "a vendor's products"],
)
def test_python_calls_of_a_steady_call(double: ctypes.CDLL, launch: Callable[[ctypes.CDLL], Launch]) -> None:
    """Counted: what of Python runs, and what memory is taken, between a caller and the launches."""
    a, w = activations(), weight()
    settled(w, a, launch(double))
    mxgemm.gemm(a, w)
    names: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            names.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        mxgemm.gemm(a, w)
    finally:
        sys.setprofile(None)
    assert len(names) <= 3, names  # gemm, torch.compiler.is_compiling and what this asks
    gc.collect()
    gc.disable()
    try:
        y = mxgemm.gemm(a, w)
        before = sys.getallocatedblocks()
        y = mxgemm.gemm(a, w)
        assert sys.getallocatedblocks() - before <= 1, y  # the result itself takes the place of the one before
    finally:
        gc.enable()


@pytest.mark.parametrize("why", ["variable", "compiler", "headers"])
def test_without_it_python_serves(
    why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: ctypes.CDLL
) -> None:
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path))
    if why == "variable":
        monkeypatch.setenv(module.VARIABLE, "0")
    elif why == "compiler":
        monkeypatch.setenv("CC", "/no/such/compiler")
    else:
        monkeypatch.setattr(build.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr(steady, "quick", None)
    module._load.cache_clear()
    a, w, launch = activations(), weight(), Launch(library)
    mxgemm.gemm(a, w)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = next(iter(w.known.plans.values()))  # type: ignore[attr-defined]
        object.__setattr__(found.plan, "launch", launch)
        for _ in range(2 * steady.SETTLE_AT):
            mxgemm.gemm(a, w)
    plan.clear_plans()
    assert launch.ran == 2 * steady.SETTLE_AT
    assert steady.quick is None
    module._load.cache_clear()
