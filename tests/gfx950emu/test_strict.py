"""Strict mode tells code that works by luck from its correct twin; MODE's denormal bits."""

import numpy as np
import pytest

from gfx950emu import EmulatorError, HazardError, RaceError, run_code_object
from tests.emulator import compile_hip
from tests.gfx950emu.conftest import HIP, Run

SOURCE = HIP / "strict.hip"


def launch(kernel: str, *arrays: np.ndarray, strict: bool = True, block: int = 64, flags: tuple[str, ...] = ()):
    named = {f"array{i}": array for i, array in enumerate(arrays)}
    after, _ = run_code_object(compile_hip(SOURCE, *flags), kernel, (1,), (block,), [*named], named, strict=strict)
    return list(after.values())


def matrix_arrays() -> list[np.ndarray]:
    return [np.ones((64, 8), np.uint16), np.ones((64, 8), np.uint16), np.zeros((64, 4), np.float32)]


@pytest.mark.parametrize(
    "kernel, arrays, message",
    [
        ("convert", [np.ones((64, 2), np.float32), np.zeros(64, np.uint32)], "part of a VGPR.*1 wait states.*0 found"),
        ("matrix", matrix_arrays(), "MFMA writes a VGPR.*8 wait states wanted, [45] found"),
        ("operand", matrix_arrays(), "VALU writes a VGPR, MFMA reads it: 2 wait states wanted, [01] found"),
    ],
)
def test_wait_states(kernel: str, arrays: list[np.ndarray], message: str) -> None:
    with pytest.raises(HazardError, match=message):
        launch(f"{kernel}_close", *arrays)
    expected = launch(f"{kernel}_apart", *arrays)
    assert all((a == b).all() for a, b in zip(expected, launch(f"{kernel}_close", *arrays, strict=False), strict=True))


@pytest.mark.parametrize(
    "kernel, message",
    [
        ("race", "reads LDS that wave [0-3] wrote since the last barrier"),
        ("race_write", "writes LDS that wave [0-3] wrote since the last barrier: byte 17"),
        ("race_loop", "writes LDS that wave [0-3] read since the last barrier"),
        ("race_in_flight", "writes LDS that wave [0-3] read since the last barrier"),
    ],
)
def test_lds_races(kernel: str, message: str) -> None:
    arrays = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    launch(kernel, *arrays, strict=False, block=256)
    with pytest.raises(RaceError, match=message) as raised:
        launch(kernel, *arrays, block=256)
    assert "workgroup (0, 0, 0)" in str(raised.value)
    assert "lane" in str(raised.value)


def test_a_load_that_is_not_waited_for_gives_poison() -> None:
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    assert (launch("no_wait", x, out, strict=False)[1] == x).all()
    assert (launch("no_wait", x, out)[1] == 0x7FD0DEAD).all()


TINY = np.float32(2.0**-149)


def test_denormal_mode(run: Run) -> None:
    x = np.full(192, 4 * TINY, np.float32)
    x[::2] = -8.0
    out = run("strict", "subnormals", x, np.full(192, 7, np.float32))[1].reshape(3, 64)
    assert (out[0] == x[:64] * np.float32(0.5)).all()
    assert (out[1] == np.where(np.abs(x[:64]) < 1, 0, x[:64])).all()
    assert (out[2] == out[0]).all()


def test_kernel_that_starts_with_flushing() -> None:
    x = np.full(192, 4 * TINY, np.float32)
    out = launch("subnormals", x, np.full(192, 7, np.float32), flags=("-fgpu-flush-denormals-to-zero",))[1]
    assert (out[:128] == 0).all()
    assert (out[128:] == 2 * TINY).all()


def test_faults_say_where(run: Run) -> None:
    x, out = np.zeros(1000, np.uint32), np.zeros(512, np.uint32)
    with pytest.raises(EmulatorError) as raised:
        run("strict", "beyond", x, out, scalars=(600,), grid=2, block=256)
    text = str(raised.value)
    assert "load of 4 bytes at offset 4000 of buffer 'array0' (4000 bytes), at pc 0x" in text
    assert "`global_load_dword" in text
    assert text.endswith("workgroup (1, 0, 0), wave 2, lane 16")


def test_stores_to_read_only_arrays() -> None:
    arrays = {"x": np.zeros(64, np.uint32), "o": np.zeros(64, np.uint32)}
    with pytest.raises(EmulatorError, match="store to read-only buffer 'o' at offset 0, at pc"):
        run_code_object(compile_hip(SOURCE), "no_wait", (1,), (64,), ["x", "o"], arrays, read_only={"o"})


def test_unsupported_instruction_is_named(run: Run) -> None:
    with pytest.raises(EmulatorError, match=r"unsupported instruction: v_mfma_f64_16x16x4_f64.* at pc 0x\w+ `v_mfma"):
        run("strict", "unknown", np.zeros(64), np.zeros((64, 4)))


def test_missing_objdump(monkeypatch: pytest.MonkeyPatch) -> None:
    from gfx950emu import MissingTool, disassemble

    monkeypatch.setattr(disassemble.shutil, "which", lambda name: None)
    with pytest.raises(MissingTool, match="apt install llvm-22"):
        disassemble.find_tool("GFX950EMU_OBJDUMP")


def test_unknown_kernel_and_too_many_arguments() -> None:
    code = compile_hip(SOURCE)
    with pytest.raises(ValueError, match="no kernel 'nosuch' in this code object; it has .*beyond"):
        run_code_object(code, "nosuch", (1,), (64,), [], {})
    with pytest.raises(ValueError, match="kernel beyond takes 3 arguments, not 4"):
        run_code_object(code, "beyond", (1,), (64,), [1, 2, 3, 4], {})
