"""Kernels are chosen and compiled for ranges of M: after the sizes that warmup takes, no M has another one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mxgemm.cuda import w4_mma
from mxgemm.cuda.lazy import Lazy
from mxgemm.device import KNOWN_MACHINES
from mxgemm.mx.formats import BLOCK, E2M1
from mxgemm.problem import Options, Problem, contiguous_strides
from mxgemm.routes.fold_chain import FoldChain
from mxgemm.routing.router import choose
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import INT32_MAX
from mxgemm.warmup import SIZES

pytest.importorskip("triton")

EVERY = (*range(1, 140), *range(140, 1100, 13), 1999, 2047, 3000, 4095, 5000, 8190)


def specialisation(call: KernelCall) -> tuple[Any, ...]:
    """What Triton compiles a kernel for, alignment of pointers left out; M is not specialised on."""
    names = call.kernel.arg_names[len(call.dtypes) :]
    integers = tuple(
        (value > INT32_MAX, name != "M" and (value == 1, value % 16 == 0))
        for value, name in zip(call.scalars, names, strict=False)
    )
    return call.kernel.__name__, integers, *call.constants.items(), *call.options.items()


def kernels(problem: Problem) -> Iterator[object]:
    """What is compiled for a problem, where this library compiles it."""
    choice = choose(problem)
    route, config = choice.route, choice.config
    if route.name == "w4_mma":
        assert isinstance(config, w4_mma.MmaConfig)
        yield tuple(sorted(w4_mma.defines(problem, config).items()))
        if config.a_before:
            yield tuple(sorted(w4_mma.round_defines(problem, config).items()))
    elif route.name == "fp8_fold":
        chain: Any = route.bind(problem, config)
        of_slices = (*chain.decode.values(), *chain.finish.values()) if isinstance(chain, FoldChain) else ()
        for launch in (chain.quantize, chain.last, *of_slices):
            if isinstance(launch, Launcher):
                yield specialisation(launch._call)
            else:
                built: Lazy = getattr(launch, "_launch", launch)
                yield built._kernel, *sorted(built._defines.items())
    elif builds := getattr(sys.modules[type(route).__module__], "instances", None):
        yield from ((source, *sorted(macros.items())) for source, macros in builds(problem, config))
    elif hasattr(route, "calls"):
        yield from map(specialisation, route.calls(problem, config))
    else:
        yield route.name


@pytest.mark.parametrize(
    "n, k, a_format, form",
    [
        (2880, 512, "e2m1", "fp8_fold"),
        (2880, 512, "e2m1", ""),
        (7168, 2048, "e2m1", "fp8_fold"),
        (7168, 2048, "e2m1", "fp8_fold_compact"),
        (2890, 4096, "e2m1", "fp8_fold"),  # the vendor's product goes to scratch
        (1024, 2048, "e2m1", "fp8_fold"),
        (2112, 7168, "e2m1", ""),
        (4096, 8192, "bf16", "bf16"),
        (64, 96, "e4m3", ""),
    ],
)
def test_no_m_has_a_kernel_that_the_warm_sizes_have_not(
    n: int, k: int, a_format: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lazy, "build", lambda self, machine: self)
    machine, strides = KNOWN_MACHINES["sm_90"], contiguous_strides(n, k, E2M1, k // BLOCK)
    options = Options(a_format=a_format, derived=form)

    def of(m: int) -> set[object]:
        return set(kernels(Problem(m, n, k, machine, options, strides=strides)))

    warm = set().union(*map(of, SIZES))
    missing = {m: found - warm for m in EVERY if (found := of(m)) - warm}
    assert not missing, sorted(missing)
    assert len(warm) <= 16  # not one for every M
