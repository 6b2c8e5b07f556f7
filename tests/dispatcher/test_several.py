"""Several problems in one launch: the library, whole, in the emulator; its C side against what it must refuse."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from gfx950emu.hip_runtime import EmulatedHip
from mxgemm.dispatcher import (
    Call,
    DispatcherError,
    DispatcherUnsupported,
    KernelConfig,
    Library,
    Problem,
    config_named,
    verify,
)
from mxgemm.dispatcher.codecs import RESULTS
from mxgemm.dispatcher.execution import RUNTIME_VARIABLE, EmulatorExecution, TritonExecution
from mxgemm.dispatcher.native import argument_table
from mxgemm.dispatcher.several import FIELDS, OUTPUT_WORD, CProblem, c_problems, gather_several
from tests.dispatcher.native_libraries import CONFIGS, built, description, environment
from tests.dispatcher.scheme_cases import SEVERAL, Case, drawn
from tests.emulator import require_objdump

SIZES = {
    "several-ab": [(1, 1, 32), (0, 64, 128), (33, 70, 288), (70, 130, 160), (5, 0, 32)],
    "several-a-fp8-rcr": [(18, 65, 160), (1, 1, 32), (2, 3, 256)],
    "several-a-i4-crr": [(34, 65, 160), (2, 1, 32)],
    "several-mx": [(33, 70, 288), (0, 0, 0), (1, 1, 32)],
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EmulatedHip.build(tmp_path_factory.mktemp("hip")).path


def opened(name: str, factory: pytest.TempPathFactory, runtime: Path) -> tuple[Library, EmulatedHip]:
    path = built(name, factory)
    hip = EmulatedHip(runtime)
    table = argument_table(description(path)["variants"][0])
    hip.emulate_several(table, outputs=(OUTPUT_WORD,), fields=FIELDS, strict=True)
    library = Library(path, CONFIGS[name][0].pinned("gfx950"))
    library.close()
    with environment(**{RUNTIME_VARIABLE: str(runtime)}):
        library.initialize()
    return library, hip


def cases(config: KernelConfig, sizes: list[tuple[int, int, int]]) -> list[Case | tuple[int, int]]:
    """Return a case for each problem; of empty ones the shape of C."""
    return [drawn(config, "gfx950", m, n, k, seed=m + k) if m and n else (m, n) for m, n, k in sizes]


def call_of(case: Case | tuple[int, int], config: KernelConfig) -> Call:
    shape = case if isinstance(case, tuple) else (case.inputs.problem.m, case.inputs.problem.n)
    c = np.full(shape, 0x7FFF, np.uint16).view(RESULTS[config.scheme.c])
    if isinstance(case, tuple):
        return Call(None, None, c)
    inputs = case.inputs
    return Call(inputs.a, inputs.b, c, inputs.a_scales, inputs.b_scales)


@pytest.mark.parametrize("name", SEVERAL)
def test_products(name: str, tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    require_objdump()
    library, hip = opened(name, tmp_path_factory, runtime)
    drawn_cases = cases(SEVERAL[name], SIZES[name])
    calls = [call_of(case, library.config) for case in drawn_cases]
    assert library.run_several(calls, timed=False) is None
    assert len(hip.launches) == 1
    assert not hip.allocations()
    for case, call in zip(drawn_cases, calls, strict=True):
        if isinstance(case, Case):
            accuracy = case.judge(call.c)
            assert accuracy.passed, (case.inputs.problem, accuracy)


def test_the_selftest_runs_such_a_kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    require_objdump()
    library = built("several-ab", tmp_path_factory)
    config = CONFIGS["several-ab"][0].pinned("gfx950")
    assert verify(config, library, EmulatorExecution(), Problem(5, 70, 160)).passed
    assert "table of several problems" in str(TritonExecution().missing(config, "native"))


def test_no_problems_launch_nothing(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    library, hip = opened("several-ab", tmp_path_factory, runtime)
    library.run_several([], timed=False)
    assert library.run_several([Call(None, None, np.empty((0, 7), np.float16))]) == 0.0
    assert not hip.launches


def test_many_problems_find_their_tiles(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    """More problems than the kernel reads ends of at a time."""
    require_objdump()
    library, hip = opened("several-ab", tmp_path_factory, runtime)
    many = cases(library.config, [(1 + i % 3, 1 + i % 5, 32) for i in range(70)])
    calls = [call_of(case, library.config) for case in many]
    library.run_several(calls, timed=False)
    assert hip.launches[-1].grid == (70, 1, 1)
    assert all(case.judge(call.c).passed for case, call in zip(many, calls, strict=True) if isinstance(case, Case))


def test_a_large_problem_among_empty_and_tiny_ones(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    """Forty tiles of one problem before and behind those of others."""
    require_objdump()
    library, hip = opened("several-ab", tmp_path_factory, runtime)
    sizes = [(1, 1, 32), (0, 256, 256), (300, 256, 256), (7, 0, 64), (2, 3, 32), (1, 65, 96)]
    mixed = cases(library.config, sizes)
    calls = [call_of(case, library.config) for case in mixed]
    library.run_several(calls, timed=False)
    assert hip.launches[-1].grid == (1 + 40 + 1 + 2, 1, 1)
    for case, call in zip(mixed, calls, strict=True):
        if isinstance(case, Case):
            accuracy = case.judge(call.c)
            assert accuracy.passed, (case.inputs.problem, accuracy)


def test_what_is_refused(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    library, hip = opened("several-ab", tmp_path_factory, runtime)
    hip.on_launch(lambda launch: None)
    good = call_of(cases(library.config, [(3, 4, 64)])[0], library.config)
    with pytest.raises(TypeError, match="calls: got list, want a sequence of Call"):
        library.run_several([good, (1, 2)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"calls\[1\]: a_scales: got \(1, 1\), want \(3, 1\)"):
        library.run_several([good, good._replace(a_scales=np.ones((1, 1), np.float32))])
    with pytest.raises(ValueError, match="takes several problems: call run_several"):
        library.run(*good)
    operands = gather_several(library.operation, library.config, "gfx950", [good])
    c = library._c
    for change, code, text in (
        ({"A": None}, -1, "problem 1: .*A: got a null pointer"),
        ({"K": 48}, -2, "problem 1: .*K: got 48, want a multiple of 32"),
        ({"M": -1}, -1, "problem 1: .*M, N, K: got -1"),
        ({"M": 1 << 31}, -2, "under 2\\^31"),
    ):
        problems = c_problems([operands[0], operands[0]])
        for field, value in change.items():
            setattr(problems[1], field, value)
        assert c.dispatcher_run_several(problems, 2, None) == code
        with pytest.raises((DispatcherError, DispatcherUnsupported), match=text):
            library._require(code, "several")
    assert c.dispatcher_run_several(ctypes.POINTER(CProblem)(), 1, None) == -1
    assert c.dispatcher_run_several(c_problems(operands), -1, None) == -1
    for function in ("hipMalloc", "hipMemcpy", "hipModuleLaunchKernel", "hipStreamSynchronize", "hipFree"):
        hip.fail(function, after=0)
        with pytest.raises(DispatcherError, match=r"HIP error 999"):
            library.run_several([good], timed=False)
        library.run_several([good], timed=False)
    assert not hip.allocations() or function == "hipFree"


def test_the_name_says_several() -> None:
    config = SEVERAL["several-mx"].pinned("gfx950")
    assert (
        config.name
        == "gemm_bquant_mx_bf16fp4_rcr_microscale_cshuffle_intrawave_32x64x128_1x4x1_16x16x32_qg1x1x32_several"
    )
    assert config_named(config.name, "gfx950") == config
