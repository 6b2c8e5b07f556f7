"""The command: what it prints, what it saves, and what it says when it is used wrongly."""

from pathlib import Path

import numpy as np
import pytest

from gfx950emu.cli import main
from gfx950emu.profile import conflict_cycles
from tests.emulator import compile_hip
from tests.gfx950emu.conftest import HIP


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "code.hsaco"
    path.write_bytes(compile_hip(HIP / "memory.hip"))
    return str(path)


def test_info_check_dis(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", code]) == 0
    assert "argument at  16,  4 bytes: by_value" in capsys.readouterr().out
    assert main(["check", code]) == 0
    assert "0 names not supported" in capsys.readouterr().out
    assert main(["dis", code]) == 0
    assert "global_load_lds_dwordx4" in capsys.readouterr().out


def test_check_names_hazards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "code.hsaco"
    path.write_bytes(compile_hip(HIP / "strict.hip"))
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "convert_close: VALU writes part of a VGPR" in out
    assert "convert_apart" not in out
    assert "v_mfma_f64_16x16x4_f64 is not in the emulator's table" in out


def test_run_and_save(code: str, tmp_path: Path) -> None:
    x = np.arange(1024, dtype=np.uint32).reshape(256, 4)
    np.save(tmp_path / "x.npy", x)
    saved = tmp_path / "o.npy"
    arguments = ["--array", f"x={tmp_path}/x.npy", "--array", "o=zeros:uint32:256,4", "--args", "x", "o"]
    status = main(
        ["run", code, "load_lds_16", "--grid", "1", "--block", "256", "--strict", *arguments, "--save", f"o={saved}"]
    )
    assert status == 0
    t = np.arange(256)
    assert (np.load(saved) == x[((t + 77) & 255) ^ 3]).all()


def test_profile(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--array", "x=random:uint32:256,4", "--array", "o=zeros:uint32:256,4", "--args", "x", "o"]
    assert main(["profile", code, "load_lds_16", "--grid", "1", "--block", "256", *arguments]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "load to lds 16 bytes 256 lanes 4096 bytes" in lines
    assert "store 16 bytes 256 lanes 4096 bytes" in lines
    assert "LDS: 32 cycles, of which 0 for conflicts over 64 banks" in lines
    assert "assumed:" in lines


def test_bank_conflicts() -> None:
    lane = np.arange(64)
    everyone = np.ones(64, bool)
    assert conflict_cycles(lane * 4, 4, everyone, 64).tolist() == [1]
    assert conflict_cycles(lane * 8, 4, everyone, 64).tolist() == [2]
    assert conflict_cycles(lane * 256, 4, everyone, 64).tolist() == [64]
    assert conflict_cycles(lane * 0, 4, everyone, 64).tolist() == [1]  # one dword for all: a broadcast
    assert conflict_cycles(lane * 16, 16, everyone, 16).tolist() == [1, 1, 1, 1]
    assert conflict_cycles(lane * 256, 16, everyone, 16).tolist() == [16, 16, 16, 16]
    assert conflict_cycles(lane * 256, 4, lane < 8, 64).tolist() == [8]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--args", "nosuch"], "--args nosuch: neither an array's name nor a number"),
        (["--array", "x=zeros:uint8"], "wanted NAME=zeros:DTYPE:SHAPE"),
        (["--save", "y=y.npy"], "no array 'y'"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = ["--array", "x=zeros:uint32:256,4", "--array", "o=zeros:uint32:256,4"]
    command = ["run", code, "load_lds_16", "--grid", "1", "--block", "256", *arrays, "--args", "x", "o"]
    assert main([*command, *arguments]) == 1
    assert message in capsys.readouterr().err
