"""The disassembler's results are kept in a folder of the user's own, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gfx950emu import disassemble

LINES = [[0, [1], "s_nop", "s_nop", "", ["0"], {}, "s_nop 0"]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    codes: list[bytes] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(disassemble, "_decides", lambda: b"this parser")
    monkeypatch.setattr(disassemble, "_objdump", lambda code: codes.append(code) or "")
    monkeypatch.setattr(disassemble, "parse", lambda text: LINES)
    return codes


def test_a_result_is_kept_by_the_code_and_by_what_reads_it(asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        assert disassemble.disassemble(b"code")[0].name == "s_nop"
    assert asked == [b"code"]
    monkeypatch.setattr(disassemble, "_decides", lambda: b"another parser")
    disassemble.disassemble(b"code")
    assert asked == [b"code"] * 2
    monkeypatch.undo()
    assert b"def parse(" in disassemble._decides()


@pytest.mark.parametrize("foreign", ["everybody may write it", "another user's", "a file", "a link"])
def test_a_folder_that_is_not_ones_own_is_not_believed(foreign: str, asked: list[bytes], tmp_path: Path) -> None:
    disassemble.disassemble(b"code")
    folder = tmp_path / f"gfx950emu-{os.getuid()}"
    if foreign == "everybody may write it":
        folder.chmod(0o777)
    elif foreign == "another user's":
        if os.geteuid():
            pytest.skip("only root can give a file to another user")
        os.chown(folder, 12345, 12345)
    else:
        folder.rename(tmp_path / "moved")
        folder.touch() if foreign == "a file" else folder.symlink_to("moved")
    for _ in range(2):
        assert disassemble.disassemble(b"code")[0].name == "s_nop"
    assert asked == [b"code"] * 3


def test_a_damaged_result_is_made_again(asked: list[bytes], tmp_path: Path) -> None:
    disassemble.disassemble(b"code")
    (file,) = tmp_path.rglob("*.json")
    file.write_text(file.read_text()[:10])
    disassemble.disassemble(b"code")
    disassemble.disassemble(b"code")
    assert asked == [b"code"] * 2
