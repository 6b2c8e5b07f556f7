from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxgemm.dispatcher import OPERATIONS, BuildError, Inputs, KernelConfig, native, reference
from mxgemm.dispatcher.execution import EmulatorExecution, LibraryExecution, TritonExecution
from mxgemm.dispatcher.selftest import selftest
from mxgemm.errors import Refusal
from tests.command import command, output
from tests.dispatcher.native_libraries import built, shared_cache
from tests.dispatcher.toolchain import HEADERS
from tests.emulator import require_objdump


@pytest.fixture
def ck(monkeypatch: pytest.MonkeyPatch, hipcc: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("MXGEMM_CK_INCLUDE", str(HEADERS))
    monkeypatch.setenv("MXGEMM_HIPCC", str(hipcc))
    monkeypatch.setenv("MXGEMM_CACHE", str(shared_cache(tmp_path_factory)))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CK_TILE_BENCH_WARMUP", "0")
    monkeypatch.setenv("CK_TILE_BENCH_REPEAT", "1")
    monkeypatch.setattr(LibraryExecution, "missing", lambda self, config, source: None)


def run(*arguments: str, code: int = 0) -> str:
    return output("dispatcher", *arguments, code=code)


def test_names() -> None:
    assert run("names", "--op", "rowcolquant", "--arch", "gfx942").split() == [
        "gemm_rowcolquant_fp8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x32",
        "gemm_rowcolquant_bf8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x32",
    ]
    kernels = run("names").split()
    assert len(kernels) == sum(
        config.is_valid()
        for arch in ("gfx942", "gfx950")
        for operation in OPERATIONS.values()
        for config in operation.default_configs(arch)
    )
    assert {name.split("_fp8")[0] for name in kernels if "_fp8_" in name} >= {"gemm_aquant", "grouped_gemm_bquant"}


def test_a_run_is_judged(ck: None) -> None:
    text = run("selftest", "--source", "ck_tile", "--op", "rowcolquant", "--arch", "gfx950")
    assert text.count("PASS") == 2
    assert "AMD GPU" in text


def test_a_build_says_where_it_is(ck: None) -> None:
    text = run("build", "--source", "ck_tile", "--op", "rowcolquant", "--arch", "gfx950")
    paths = [line.strip().rsplit(" (", 1)[0] for line in text.splitlines() if line.startswith("  ")]
    assert len(paths) == 2
    assert all(Path(path).is_file() for path in paths)


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (lambda out: out * 0, "all zeros from non-zero input"),
        (lambda out: out * np.float16(1.01), "max relative error"),
        (lambda out: out + np.float16(np.nan), "max relative error inf"),
    ],
)
def test_wrong_numbers_fail(spoil: Any, complaint: str, ck: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[np.float16], None]:
        return spoil(reference(config, inputs)), None

    monkeypatch.setattr(LibraryExecution, "run", wrong)
    text = run("selftest", "--source", "ck_tile", "--op", "rowcolquant", "--arch", "gfx950", code=1)
    assert text.count("FAIL") == 4  # in the table and with the reason
    assert complaint in text


def test_a_crash_is_the_kernels_result(ck: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Any, config: KernelConfig, library: Path, inputs: Inputs) -> None:
        raise KeyError("a register that is not there")

    monkeypatch.setattr(LibraryExecution, "run", crash)
    text = run("selftest", "--source", "ck_tile", "--op", "rowcolquant", "--arch", "gfx950", code=1)
    assert text.count("FAIL") == 4
    assert "M 128, N 128, K 512: 'a register that is not there'" in text


def test_nothing_computed_is_not_a_pass(ck: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        LibraryExecution, "missing", lambda self, config, source: Refusal("device", "none", "one", words="no AMD GPU")
    )
    monkeypatch.setenv("STAND_IN_ARCH", "none")
    text = run("selftest", "--source", "ck_tile", "--op", "rowcolquant", "--arch", "gfx950")
    assert "PASS" not in text
    assert text.count("SMOKE-ONLY") == 4
    assert "says why it cannot run: " in text
    assert "no ROCm-capable device is detected" in text
    assert "Nothing was computed: AMD GPU: no AMD GPU" in text


def test_what_cannot_be_built_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXGEMM_CK_INCLUDE", raising=False)
    text = run("selftest", "--source", "ck_tile", "--op", "mx_gemm", "--op", "rowcolquant", "--op", "aquant")
    kernels = sum(len(OPERATIONS[name].default_configs("gfx950")) for name in ("mx_gemm", "rowcolquant", "aquant"))
    assert text.count("NOT RUN") == 2 * 2 * kernels  # on both architectures, in the table and with the reason
    assert "set MXGEMM_CK_INCLUDE" in text
    assert "no other has the scaled instruction" in text  # mx_gemm on gfx942


def test_a_failed_build_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: KernelConfig, arch: str, folder: Path) -> Path:
        raise BuildError("error: no such register [/v256]")

    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "native_key", lambda config, arch: {})
    monkeypatch.setattr(native, "build_native", fail)
    text = run("selftest", "--op", "mx_gemm", "--arch", "gfx950", code=1)
    assert "no such register [/v256]" in text
    assert "PASS" not in text
    assert "no such register [/v256]" in run("build", "--op", "mx_gemm", "--arch", "gfx950", code=1)


def test_user_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXGEMM_CK_INCLUDE", raising=False)
    for arguments, code, message in (
        (["build", "--source", "ck_tile"], 1, "set MXGEMM_CK_INCLUDE"),
        (["selftest", "--op", "conv"], 2, "--op: got 'conv', want one of mx_gemm, rowcolquant, tensor_quant"),
        (["names", "--arch", "sm_90"], 2, "--arch: got 'sm_90'"),
        (["build", "--source", "cuda"], 2, "--source: got 'cuda'"),
        (["build", "--op", "mx_gemm", "--arch", "gfx942"], 2, "no other has the scaled instruction"),
    ):
        done = command("dispatcher", *arguments)
        assert done.code == code
        assert message in done.err


def test_places_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    rowcolquant = OPERATIONS["rowcolquant"]
    config = rowcolquant.default_configs("gfx950")[0]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert str(LibraryExecution().missing(config, "native")) == "no AMD GPU (torch sees none)"
    assert EmulatorExecution().missing(config, "native") is None
    assert "gfx950" in str(EmulatorExecution().missing(rowcolquant.default_configs("gfx942")[0], "native"))
    assert "native" in str(EmulatorExecution().missing(config, "ck_tile"))
    assert "native" in str(TritonExecution().missing(config, "ck_tile"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "run from the source tree" in str(EmulatorExecution().missing(config, "native"))
    assert str(TritonExecution().missing(config, "native")) == "triton is not installed"


def test_native_kernels_pass_in_the_emulator(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_objdump()
    for name in ("rowcol-fp8", "rowcol-bf8"):  # what the self-test finds built
        built(name, tmp_path_factory)
    monkeypatch.setenv("MXGEMM_CACHE", str(shared_cache(tmp_path_factory)))
    rows = selftest(operations=["rowcolquant"], archs=["gfx950"])
    emulated = [(row.dtype, row.status, row.reason) for row in rows if row.where == "gfx950 emulator"]
    assert emulated == [("fp8", "PASS", ""), ("bf8", "PASS", "")]
    assert all(row.status == "PASS" for row in rows)
