"""The CK tile source: compiled and run against stand-ins for CK and HIP. The C interface here is the real one."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from mxgemm.dispatcher import (
    AQuantKernelConfig,
    DispatcherError,
    DispatcherUnsupported,
    GroupedAQuantKernelConfig,
    KernelConfig,
    Library,
    MxGemmKernelConfig,
    Problem,
    ToolchainMissing,
    build,
    ck_tile,
    judge,
    make_inputs,
    reference,
)
from mxgemm.dispatcher.codecs import RESULTS
from tests.dispatcher.conftest import BY_GROUPS
from tests.dispatcher.scheme_cases import drawn
from tests.dispatcher.toolchain import HEADERS, calls, make_hipcc

Built = dict[str, tuple[KernelConfig, Path]]
SIZES = {
    "mx_fp4_low": Problem(48, 32, 128),
    "mx_fp8": Problem(64, 32, 256),
    "mx_fp4": Problem(32, 96, 128),
    "row_fp8": Problem(80, 64, 512),
}
SIZES |= {"row_bf8_gfx942": Problem(80, 128, 256), "tensor_fp8": Problem(16, 64, 256)}


@pytest.mark.parametrize("name", BY_GROUPS)
def test_a_library_with_scales_by_groups_multiplies(name: str, built_by_groups: Built) -> None:
    """Callers give plain operands; the kernel here reads what it is given through CK's own shuffles."""
    config, path = built_by_groups[name]
    problem = Problem(2 * config.tile_m, 2 * config.tile_n, 2 * config.tile_k)
    case = drawn(BY_GROUPS[name], "gfx950", problem.m, problem.n, problem.k, seed=3)
    inputs = case.inputs
    library = Library(path, config)
    out = np.zeros((problem.m, problem.n), dtype=RESULTS[config.scheme.c])
    assert library.run(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales) is not None
    assert case.judge(out).passed
    library.close()


def test_operands_of_other_schemes_are_refused(built_by_groups: Built) -> None:
    config, path = built_by_groups["a_i4"]  # rrr, int4 x fp8
    inputs = make_inputs(config, Problem(16, 64, 256))
    a, b, scales, out = inputs.a, inputs.b, inputs.a_scales, np.zeros((16, 64), np.float16)
    run = Library(path, config).run
    for arguments, error, text in (
        ((a, b, out), TypeError, "a_scales: got NoneType"),
        ((a, b, out, scales, scales), TypeError, "b_scales: got ndarray, want None: aquant has no such scales"),
        ((a.astype(np.float32), b, out, scales), TypeError, "a: got float32, want uint8 or int4"),
        ((a, b.view(np.int8), out, scales), TypeError, "b: got int8, want uint8 or float8_e4m3fn"),
        ((a, b[:-1], out, scales), ValueError, r"b: got \(255, 64\), want \[256, n\] like a"),
        ((a, b, out, scales.astype(np.float32)), TypeError, "got float32 numbers, want float8_e4m3fn bytes"),
        ((a, b, out, scales[:, :1]), ValueError, r"a_scales: got \(16, 1\), want \(16, 2\)"),
        ((a, b, out.view(np.uint16), scales), TypeError, "c: got uint16, want float16"),
        ((a, b, a.reshape(-1)[: 16 * 64 * 2].view(np.float16).reshape(16, 64), scales), ValueError, "c: shares memory"),
    ):
        with pytest.raises(error, match=text):
            run(*arguments)
    config, path = built_by_groups["mx_bf16"]
    inputs = make_inputs(config, Problem(32, 64, 128))
    with pytest.raises(TypeError, match="c: got float16, want bfloat16 or uint16"):
        Library(path, config).run(inputs.a, inputs.b, np.zeros((32, 64), np.float16), None, inputs.b_scales)


def test_counts_and_strides_are_checked(built_by_groups: Built) -> None:
    config, path = built_by_groups["ab_fp8"]
    library = Library(path, config)
    library.close()
    c, some = library._c, [np.zeros(8).ctypes.data] * 5
    sizes, strides, counts = (32, 64, 256), (256, 256, 2, 2, 64), (2, 2, 64)
    run = c.dispatcher_run_abquant_gemm
    for changed, code, text in (
        ((*sizes, *strides, *counts, 2), -2, "k_batch: got 2, want 1"),
        ((*sizes, *strides, 3, 2, 64, 1), -1, "QK_A: got 3, want 2"),
        ((*sizes, *strides, 2, 2, 1, 1), -1, "QN_B: got 1, want 64"),
        ((*sizes, 256, 256, 2, 3, 64, *counts, 1), -2, "stride_BQ: got 3, want 2"),
        ((33, 64, 256, *strides, *counts, 1), -2, "M: got 33, want a multiple of 32, the tile"),
        ((*sizes, *strides, *counts, 1), -1, "not initialized"),
    ):
        assert run(*some, *changed, None) == code
        assert text in library.last_error
    assert run(None, *some[1:], *sizes, *strides, *counts, 1, None) == -1


@pytest.mark.parametrize(
    "config, reason",
    [
        (AQuantKernelConfig(several=True), "several problems in one launch are mxgemm's own"),
        (AQuantKernelConfig(variant_key="bf8i4", layout="ccr"), "CK's own reference takes nibbles by K"),
        (GroupedAQuantKernelConfig(tile_n=128), "undoes an order of B that its grouped bridge does not make"),
    ],
)
def test_what_ck_has_no_kernel_of_is_refused(config: KernelConfig, reason: str, hipcc: Path) -> None:
    (result,) = build([config], source="ck_tile", gfx_arch="gfx950", ck_include=HEADERS, hipcc=hipcc)
    assert result.path is None
    assert reason in result.error


@pytest.mark.parametrize("name", SIZES)
def test_a_library_multiplies(name: str, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    config, path = built[name]
    monkeypatch.setenv("STAND_IN_ARCH", f"{config.arch}:sramecc+:xnack-")
    monkeypatch.setenv("CK_TILE_BENCH_WARMUP", "3")
    inputs = make_inputs(config, SIZES[name], seed=1)
    library = Library(path, config)
    assert (library.name, library.count, library.arch) == (config.name, 1, config.arch)
    assert library.source == "ck_tile"
    out = np.zeros((inputs.problem.m, inputs.problem.n), dtype=np.float16)
    time_ms = library.run(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales)
    verdict = judge(inputs.problem, out, reference(config, inputs), time_ms)
    assert verdict.passed, verdict
    assert time_ms == 3050.0  # what the stand-in makes of 3 launches to warm up and 50 to time
    again = np.zeros_like(out)
    assert library.run(inputs.a, inputs.b, again, inputs.a_scales, inputs.b_scales, timed=False) is None
    assert np.array_equal(again, out)
    library.close()


def call(built: Built, name: str, problem: Problem, **changes: int) -> None:
    config, path = built[name]
    inputs = make_inputs(config, dataclasses.replace(problem, k_batch=1))
    out = np.zeros((problem.m, problem.n), dtype=np.float16)
    library = Library(path, config)
    try:
        library.run(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales, k_batch=problem.k_batch, **changes)  # type: ignore[arg-type]
    finally:
        library.close()


@pytest.mark.parametrize(
    "name, problem, reason",
    [
        ("mx_fp8", Problem(33, 32, 128), "M: got 33, want a multiple of 32, the tile"),
        ("mx_fp8", Problem(32, 48, 128), "N: got 48, want a multiple of 32"),
        ("mx_fp4", Problem(32, 32, 160), "K: got 160, want a multiple of 128"),
        ("mx_fp8", Problem(32, 32, 128, k_batch=2), "k_batch: got 2, want 1"),
        *(
            ("mx_fp4_low", Problem(m, 32, 128), f"M: got {m}, want at least 32 for fp4: .*rocm-libraries#11774")
            for m in (1, 2, 8, 16, 31)
        ),
        ("mx_fp4", Problem(31, 32, 128), "M: got 31, want at least 32 for fp4"),
        ("row_fp8", Problem(64, 64, 256), "M: got 64, want at least 65"),
        ("row_fp8", Problem(81, 64, 256), "M: got 81, want a multiple of 16"),
        ("row_fp8", Problem(80, 65, 256), "N: got 65, want a multiple of 64"),
        ("row_fp8", Problem(80, 64, 255), "K: got 255, want a multiple of 256"),
        ("row_fp8", Problem(80, 64, 256, k_batch=4), "k_batch: got 4, want 1"),
    ],
)
def test_what_ck_does_not_support_answers_minus_two(name: str, problem: Problem, reason: str, built: Built) -> None:
    with pytest.raises(DispatcherUnsupported, match=reason):
        call(built, name, problem)


def test_a_library_is_refused_on_another_architecture(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_ARCH", "gfx942:sramecc+:xnack-")
    with pytest.raises(DispatcherError, match="the device is gfx942, the kernel is for gfx950"):
        call(built, "mx_fp8", SIZES["mx_fp8"])
    monkeypatch.setenv("STAND_IN_ARCH", "none")
    with pytest.raises(DispatcherError, match="no ROCm-capable device is detected"):
        call(built, "row_bf8_gfx942", SIZES["row_bf8_gfx942"])


def test_the_c_functions_refuse_what_python_never_passes(built: Built) -> None:
    config, path = built["row_fp8"]
    library = Library(path, config)
    c = library._c
    library.close()  # for every object of the file: an earlier test may have left the kernel ready to run
    assert c.dispatcher_run_rowcolquant_gemm(None, None, None, None, None, 80, 64, 256, 256, 256, 64, 1, None) == -1
    assert "null pointer" in library.last_error
    some = np.zeros(8).ctypes.data
    sizes = (80, 64, 256)
    assert c.dispatcher_run_rowcolquant_gemm(*[some] * 5, *sizes, 256, 256, 64, 1, None) == -1
    assert "not initialized" in library.last_error
    assert c.dispatcher_run_rowcolquant_gemm(*[some] * 5, *sizes, 257, 256, 64, 1, None) == -2
    assert "want packed operands" in library.last_error
    assert c.dispatcher_run_rowcolquant_gemm(*[some] * 5, 0, 64, 256, 256, 256, 64, 1, None) == -1
    assert c.dispatcher_init() == 0
    c.dispatcher_cleanup()


def test_the_flags_are_cks(hipcc: Path) -> None:
    toolchain = ck_tile.Toolchain(HEADERS, hipcc)
    text = " ".join(ck_tile.flags(toolchain, "gfx950"))
    for flag in (
        "-mllvm -amdgpu-early-inline-all=true",
        "-mllvm -amdgpu-function-calls=false",
        "-mllvm --lsr-drop-solution=1",
        "-mllvm -enable-post-misched=0",
        "-fno-offload-uniform-block",
        "--offload-compress",
        "-mllvm -amdgpu-coerce-illegal-types=1",
        "--offload-arch=gfx950",
        '-DGFX_ARCH="gfx950"',
        "-DCK_TILE_USE_OCP_FP8=1",
    ):
        assert flag in text
    assert "OCP" not in " ".join(ck_tile.flags(toolchain, "gfx942"))


def test_the_coerce_flag_is_asked_for_once_and_left_out_where_unknown(tmp_path: Path) -> None:
    hipcc = make_hipcc(tmp_path)
    (tmp_path / "no_coerce").touch()
    toolchain = ck_tile.Toolchain(HEADERS, hipcc)
    for _ in range(3):
        assert not any("coerce" in flag for flag in ck_tile.flags(toolchain, "gfx950"))
    assert len(calls(hipcc)) == 1


def test_a_changed_source_header_or_flag_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, headers = tmp_path / "csrc", tmp_path / "include"
    shutil.copytree(ck_tile.CSRC, sources)
    shutil.copytree(HEADERS, headers)
    monkeypatch.setattr(ck_tile, "CSRC", sources)
    config = MxGemmKernelConfig(gpu_target="gfx950")

    def key() -> str:
        hipcc = make_hipcc(tmp_path / str(len(seen)))  # another path each time: what a compiler is asked is remembered
        if without_coerce:
            hipcc.with_name("no_coerce").touch()
        parts = ck_tile.ck_tile_key(config, "gfx950", ck_tile.Toolchain(headers, hipcc))
        return str({**parts, "flags": [flag.replace(str(tmp_path), "") for flag in parts["flags"]]})

    seen: list[str] = []
    without_coerce = False
    seen.append(key())
    assert key() == seen[0]
    for changed in (sources / "bridge.hpp", sources / "mx_gemm.cpp", headers / "ck_tile" / "core.hpp"):
        changed.write_text(changed.read_text() + "// changed\n")
        seen.append(key())
    without_coerce = True
    seen.append(key())
    config = dataclasses.replace(config, k_block_per_cu=2)
    seen.append(key())
    assert len(set(seen)) == len(seen)


def test_a_missing_toolchain_says_how_to_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXGEMM_CK_INCLUDE", raising=False)
    config = MxGemmKernelConfig()
    with pytest.raises(ToolchainMissing, match="set MXGEMM_CK_INCLUDE"):
        build([config], source="ck_tile", gfx_arch="gfx950")
    monkeypatch.setenv("MXGEMM_CK_INCLUDE", str(HEADERS))
    monkeypatch.setenv("MXGEMM_HIPCC", str(tmp_path / "none"))
    with pytest.raises(ToolchainMissing, match="set MXGEMM_HIPCC"):
        build([config], source="ck_tile", gfx_arch="gfx950")
