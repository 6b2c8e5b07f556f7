"""The submission's HIP form from end to end: its own ctypes calls, its own kernel text, the emulator as the GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import traceback
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from bench.leaderboard_task import Case, disagreement, make_inputs
from evidence.gfx950_cases import Case as EmulatorCase
from evidence.hip_cases import problem_of_case
from evidence.submission_compile import load
from gfx950emu import run_code_object
from mxgemm import submission
from mxgemm.hip import fused, fused_choice
from mxgemm.hip.build import KERNELS
from mxgemm.hip.kernarg import Layout
from mxgemm.submission import hip_text
from tests.emulator import INSTALL, require_objdump

CPU = torch.device("cpu")
CLANG = ("clang-22", "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc")
VOID, INT, UINT, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p
HANDLE = 0x7F00_1234_5678


class Rocm:
    """libhiprtc and libamdhip64 with C's calling convention: clang compiles, the emulator runs, both for real.

    Attributes:
        k: of the problem, which a kernel's arguments do not say.
        broken: name of a function that fails.
        launches: grids and blocks so far.
        kernels: code and configuration of each loaded kernel, by its handle.
    """

    def __init__(self, k: int, broken: str = "") -> None:
        self.k, self.broken = k, broken
        self.launches: list[tuple[int, ...]] = []
        self.kernels: dict[int, tuple[bytes, fused.FusedConfig]] = {}
        self._config = fused.FusedConfig()
        self._text = self._code = b""
        signatures: dict[str, tuple[Any, ...]] = {
            "hiprtcCreateProgram": (VOID, TEXT, TEXT, INT, VOID, VOID),
            "hiprtcCompileProgram": (VOID, INT, VOID),
            "hiprtcGetProgramLogSize": (VOID, VOID),
            "hiprtcGetProgramLog": (VOID, VOID),
            "hiprtcGetCodeSize": (VOID, VOID),
            "hiprtcGetCode": (VOID, VOID),
            "hiprtcDestroyProgram": (VOID,),
            "hipMemGetAddressRange": (VOID, VOID, VOID),
            "hipModuleLoadData": (VOID, VOID),
            "hipModuleGetFunction": (VOID, VOID, TEXT),
            "hipModuleLaunchKernel": (VOID, *(UINT,) * 7, VOID, VOID, VOID),
        }
        for name, types in signatures.items():
            setattr(self, name, ctypes.CFUNCTYPE(INT, *types)(self._answer(name)))

    def _answer(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.broken:
                return 1
            try:
                getattr(self, f"on_{name}", lambda *_: None)(*arguments)
            except Exception:  # it cannot pass through C: print it, and fail as a library would
                traceback.print_exc()
                return 999
            return 0

        return call

    def on_hiprtcCreateProgram(self, program: int, text: bytes, *_: Any) -> None:
        VOID.from_address(program).value = HANDLE
        self._text = text

    def on_hiprtcCompileProgram(self, program: int, count: int, options: int) -> None:
        assert program == HANDLE
        flags = [option.decode() for option in (TEXT * count).from_address(options)]
        defined = dict(flag[2:].split("=") for flag in flags if flag.startswith("-D"))
        self._config = fused.FusedConfig(*(int(defined[field.name.upper()]) for field in fields(fused.FusedConfig)))
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "kernel.hip", Path(folder) / "out"
            source.write_bytes(self._text)
            subprocess.run([*CLANG, *flags, "-Wall", "-Werror", str(source), "-o", str(out)], check=True)
            self._code = out.read_bytes()

    def on_hiprtcGetProgramLogSize(self, program: int, size: int) -> None:
        ctypes.c_size_t.from_address(size).value = 8

    def on_hiprtcGetProgramLog(self, program: int, log: int) -> None:
        ctypes.memmove(log, b"no such\0", 8)

    def on_hiprtcGetCodeSize(self, program: int, size: int) -> None:
        ctypes.c_size_t.from_address(size).value = len(self._code)

    def on_hiprtcGetCode(self, program: int, code: int) -> None:
        ctypes.memmove(code, self._code, len(self._code))

    def on_hipMemGetAddressRange(self, start: int, length: int, address: int) -> None:
        # As HIP before it looked for nulls: ROCm/clr, hipamd/src/hip_memory.cpp.
        VOID.from_address(start).value = address
        ctypes.c_size_t.from_address(length).value = 4

    def on_hipModuleLoadData(self, module: int, image: int) -> None:
        assert ctypes.string_at(image, len(self._code)) == self._code
        VOID.from_address(module).value = HANDLE

    def on_hipModuleGetFunction(self, function: int, module: int, name: bytes) -> None:
        assert (module, name) == (HANDLE, fused.KERNEL.encode())
        handle = HANDLE + 1 + len(self.kernels)
        self.kernels[handle] = self._code, self._config
        VOID.from_address(function).value = handle

    def on_hipModuleLaunchKernel(self, function: int, *rest: Any) -> None:
        *sizes, shared, queue, pointers, extra = rest
        assert (shared, queue, pointers) == (0, None, None)
        code, config = self.kernels[function]
        self.launches.append(tuple(sizes))
        first, memory, second, size, end = (VOID * 5).from_address(extra)
        assert (first, second, end) == (1, 2, 3)
        given = ctypes.string_at(memory, ctypes.c_size_t.from_address(size).value)
        assert len(given) == Layout(fused.ARGUMENTS).size
        a, weight, scales, bias, c = np.frombuffer(given[:40], "<u8").tolist()
        m, a_bytes, c_bytes = np.frombuffer(given[40:52], "<u4").tolist()
        n = c_bytes // 2
        problem = next(p for p in problems() if (p.m, p.n, p.k) == (m, n, self.k))
        nbytes, counters = fused.workspace(problem, config)
        assert (bias, a_bytes) == (0, 2 * self.k)
        lengths = {
            "a": m * a_bytes,
            "weight": n * self.k // 2,
            "scales": -(-n // 256) * 256 * (-(-self.k // 256) * 8),
            "c": m * c_bytes,
        }
        at = dict(zip(lengths, (a, weight, scales, c), strict=True))
        if counters:
            lengths |= {"partials": nbytes, "counters": 4 * counters}
            at |= dict(zip(("partials", "counters"), np.frombuffer(given[56:], "<u8").tolist(), strict=True))
        arrays = {name: np.frombuffer(ctypes.string_at(at[name], length), np.uint8) for name, length in lengths.items()}

        def arguments(addresses: Any) -> bytes:
            placed = [addresses[name] if name != "bias" else 0 for name in ("a", "weight", "scales", "bias", "c")]
            sums = [addresses[name] if counters else 0 for name in ("partials", "counters")]
            segment = Layout(fused.ARGUMENTS).pack(*placed, m, a_bytes, c_bytes, *sums)
            return segment + bytes(-len(segment) % 16)

        after, _ = run_code_object(
            code,
            fused.KERNEL,
            tuple(sizes[:3]),
            tuple(sizes[3:]),
            arguments,
            arrays,
            strict=True,
            read_only={"a", "weight", "scales"},
        )
        for name in ("c", "partials", "counters") if counters else ("c",):
            result = after[name].tobytes()
            ctypes.memmove(at[name], result, len(result))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    require_objdump()
    for tool in (CLANG[0], "ld.lld-22"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; {INSTALL}")
    pytest.importorskip("triton")
    return load(submission.write(tmp_path_factory.mktemp("submission") / "submission.py"))


def pretend(module: ModuleType, rocm: Rocm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file believe that this is a gfx950 with ROCm."""
    monkeypatch.setattr(module, "rocm_library", lambda name: rocm)
    monkeypatch.setattr(module, "architecture_of", lambda device: "gfx950")
    monkeypatch.setattr(module, "FORMS", {"hip": module.FORMS["hip"]})
    module.loaded_kernels.clear()
    module.chosen_forms.clear()


def test_it_is_right_in_the_emulator(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = Rocm(512)
    pretend(module, rocm, monkeypatch)
    inputs = make_inputs(Case(4, 2880, 512, seed=11), CPU)
    result = module.custom_kernel(inputs.data)  # chosen by its own check, then launched
    assert disagreement(result, inputs.expected) is None
    assert rocm.launches == [launch_of(module, 4, 2880, 512)] * 2


def test_long_k_is_right_in_the_emulator(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = Rocm(7168)
    pretend(module, rocm, monkeypatch)
    assert module.choose_form(8, 2112, 7168, CPU)
    assert rocm.launches == [launch_of(module, 8, 2112, 7168)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", hip_text.PUBLISHED, ids=str)
def test_every_configuration_is_right_in_the_emulator(
    shape: tuple[int, int, int], module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(module, Rocm(shape[2]), monkeypatch)
    operands = module.synthetic_operands(*shape, CPU)
    for name, config in module.hip_tiles(*shape, "gfx950").items():
        assert module.disagrees(module.hip_form(*shape, CPU, config), operands) is None, name


def launch_of(module: ModuleType, m: int, n: int, k: int) -> tuple[int, ...]:
    """Grid and block as the library would launch the first configuration of a shape."""
    config = fused.FusedConfig(*module.HIP_TABLE[m, n, k][0])
    problem = next(p for p in problems() if (p.m, p.n, p.k) == (m, n, k))
    return (*fused.grid(problem, config), *fused.block(config))


@pytest.mark.parametrize("broken", ["hiprtcCompileProgram", "hipModuleLoadData", "hipMemGetAddressRange"])
def test_what_fails_makes_way(broken: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(module, Rocm(512, broken), monkeypatch)
    with pytest.raises(RuntimeError, match="no form works for .*: RuntimeError: hip"):
        module.choose_form(4, 2880, 512, CPU)


def test_other_machines_and_shapes_are_not_meant(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(module.NotHere):
        module.hip_tiles(4, 2880, 512, "gfx942")
    pretend(module, Rocm(512), monkeypatch)
    with pytest.raises(RuntimeError, match="no form works for"):
        module.choose_form(5, 2880, 512, CPU)
    assert "not used" not in capsys.readouterr().err


def problems() -> list[Any]:
    return [problem_of_case(EmulatorCase("", "hip_fused", *shape)) for shape in hip_text.PUBLISHED]


def test_configurations_are_legal_and_sources_are_whole(module: ModuleType) -> None:
    for problem in problems():
        configs = [fused.FusedConfig(*row) for row in module.HIP_TABLE[problem.m, problem.n, problem.k]]
        assert configs[0] == fused_choice.candidates(problem)[0]
        assert len(set(configs)) == len(configs) >= 2
        for config in configs:
            assert fused.config_refusal(problem, config) is None
    assert "#include" not in module.HIP_SOURCE
    for name in (fused.SOURCE, "buffer.h", "fp4_block.h", "mfma.h", "quantize_bf16.h", "split_k.h", "vectors.h"):
        lines = (KERNELS / name).read_text(encoding="utf-8").splitlines()
        body = "\n".join(line for line in lines if not line.startswith(("#include", "#pragma once")))
        assert body.strip().split("\n\n")[-1] in module.HIP_SOURCE, name
