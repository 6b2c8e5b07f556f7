"""What commands and scripts write: asked about before the work, never over somebody else's file, never lost."""

from __future__ import annotations

import argparse
import errno
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mxgemm import files, measure
from mxgemm.files import FileError
from mxgemm.measure import output, parity, tuned
from mxgemm.routing import tables
from mxgemm.routing.tables import Row
from tests.command import command as command_line

ROOT = Path(__file__).resolve().parents[2]
FORK = multiprocessing.get_context("fork")
QUICK = ["--shape", "3,32,64", "--device", "cpu", "--seconds", "0"]
CALLS = ["--warm-up", "1", "--repeats", "2"]
COMMANDS = {
    "bench": (["bench", *QUICK, "--json"], "mxgemm.measure.run"),
    "doctor": (["doctor", "--verify", *QUICK, "--json"], "mxgemm.measure.checkup.run"),
    "tune": (["tune", *QUICK, "--route", "reference", "-o"], "mxgemm.measure.tuner.run"),
    "submission": (["submission", "--form", "aiter", "-o"], "mxgemm.submission.generate.render"),
    "parity": (["parity", "route:auto", "peer:torch_mm", *QUICK[:4], *CALLS, "--csv"], "mxgemm.measure.parity.parity"),
}


def state(path: Path) -> tuple[float, ...]:
    """What a write would change; looking at a link may change the time of the last access."""
    status = path.lstat()
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime


@pytest.mark.parametrize("what", ["foreign", "device", "pipe", "folder", "no folder"])
@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_command_finds_out_before_its_work(
    command: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, work = COMMANDS[command]
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("worked for a file that it cannot write"))
    path = tmp_path / "out"
    if what == "foreign":
        path.write_text("my notes\n")
    elif what == "device":
        path.symlink_to(os.devnull)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "out"
    before = state(path) if what != "no folder" else None
    result = command_line(*arguments, str(path))
    assert result.code == 1, result.text
    assert str(path) in result.text
    assert before is None or state(path) == before


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.slow
def test_a_command_writes_through_a_link_again_and_again_and_by_force(command: str, tmp_path: Path) -> None:
    arguments, _ = COMMANDS[command]
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    for _ in range(2):  # what it wrote itself it replaces, or adds to
        result = command_line(*arguments, str(link))
        assert result.code == 0, result.text
        assert link.is_symlink()
        assert target.stat().st_size > 100
    target.chmod(0o600)
    target.write_text("my notes\n")
    assert command_line(*arguments, str(link)).code == 1
    assert target.read_text() == "my notes\n"
    assert command_line(*arguments, str(link), "--force").code == 0
    assert target.stat().st_size > 100
    assert target.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"link", "target"}


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.slow
def test_a_command_whose_disk_fills_up_says_where_its_results_are(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, _ = COMMANDS[command]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = command_line(*arguments, str(tmp_path / "out"))
    monkeypatch.undo()
    assert result.code == 1, result.text
    assert "No space left on device" in result.text
    (kept,) = (tmp_path / "elsewhere").iterdir()
    assert str(kept) in result.text
    if command == "submission":
        assert "Made by mxgemm" in kept.read_text()
    elif command == "parity":
        assert kept.read_text().startswith(",".join(parity.COLUMNS))
    elif command == "tune":
        assert len(tables.load(kept).rows) == 1
    else:
        assert files.read_json(kept)["results"]
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_run_goes_on_while_its_file_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mxgemm import measure

    path = tmp_path / "results" / "r.json"
    keeper = measure.Keeper(path)
    path.mkdir()
    for _ in range(3):
        keeper.keep({"kind": "mxgemm-bench"})
    assert caplog.text.count("the run goes on") == 1
    path.rmdir()
    keeper.finish({"kind": "mxgemm-bench", "whole": True})
    assert json.loads(path.read_text())["whole"]


def test_pictures_of_somebody_else_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["bench", *QUICK, "--plot", str(tmp_path)]
    assert command_line(*arguments).code == 0
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert pictures == ["bench_roofline.png", "bench_time.png"]
    assert command_line(*arguments).code == 0, "its own are drawn anew"
    for name in pictures:
        mine = tmp_path / name
        drawn = mine.read_bytes()
        mine.write_bytes(drawn.replace(b"mxgemm", b"xmgemm", 2))
        with monkeypatch.context() as patch:
            patch.setattr("mxgemm.measure.run", lambda *_, **__: pytest.fail("measured for pictures it cannot draw"))
            refused = command_line(*arguments)
            assert (refused.code, name in refused.text) == (1, True)
        mine.write_bytes(drawn)


def add_rows(path: Path, worker: int, count: int) -> None:
    for index in range(count):
        row = Row(1 + worker, 32, 32 * (1 + index), "reference", f"run {worker}", "measured", 1.5)
        tuned.write(path, "cpu", {f"run {worker}": {"title": f"run {worker}"}}, [row])


WRITERS, ROWS = 6, 10


def test_no_row_of_many_writers_of_one_table_is_lost(tmp_path: Path) -> None:
    path, link = tmp_path / "mine.json", tmp_path / "link.json"
    link.symlink_to(path)
    workers = [FORK.Process(target=add_rows, args=((path, link)[i % 2], i, ROWS)) for i in range(WRITERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    rows = tables.load(path).rows
    assert {(row.m, row.k) for row in rows} == {(1 + i, 32 * (1 + j)) for i in range(WRITERS) for j in range(ROWS)}
    assert len(rows) == WRITERS * ROWS
    assert {entry.name for entry in tmp_path.iterdir()} == {"mine.json", "link.json"}


def test_rows_are_kept_where_the_table_was_damaged_while_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    path = tmp_path / "mine.json"
    add_rows(path, 0, 1)
    for text in ("{", json.dumps(json.loads(path.read_text()) | {"arch": "gfx950"}), "x" * 10):
        path.write_text(text)
        with pytest.raises(FileError, match="it is in") as error:
            add_rows(path, 3, 1)
        (row,) = tables.load(Path(str(error.value).rpartition("it is in ")[2])).rows
        assert row.m == 4
        assert path.read_text() == text


@pytest.mark.slow
def test_the_submission_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    command = [sys.executable, "-m", "mxgemm", "submission", "--form", "aiter", "-o", str(path)]
    path.write_text("print('mine')\n")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, path.read_text()) == (1, "print('mine')\n")
    assert "is no submission" not in done.stderr
    assert "--force replaces it" in done.stderr
    assert subprocess.run([*command, "--force"], cwd=ROOT, timeout=120).returncode == 0
    assert subprocess.run(command, cwd=ROOT, timeout=120).returncode == 0


def test_a_scripts_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["spans.py"])
    parser = argparse.ArgumentParser()
    output.add_options(parser)
    path = tmp_path / "deep" / "r.json"
    keep = output.json_file(parser.parse_args(["-o", str(path)]), "mxgemm-spans")
    keep({"kind": "mxgemm-spans", "worst": float("nan")})
    assert json.loads(path.read_text()) == {"kind": "mxgemm-spans", "worst": None}
    output.json_file(parser.parse_args(["-o", str(path)]), "mxgemm-spans")
    with pytest.raises(SystemExit, match="^spans.py: .*r.json: is there already and is not JSON with"):
        output.json_file(parser.parse_args(["-o", str(path)]), "mxgemm-other")
    output.json_file(parser.parse_args(["-o", str(path), "--force"]), "mxgemm-other")
    output.json_file(parser.parse_args([]), "mxgemm-spans")({"kind": "mxgemm-spans"})
    path.write_text(parity.csv_text([]))
    output.text_file(path, parity.CSV, force=False)
    path.write_text("m,n\n1,2\n")
    with pytest.raises(SystemExit, match="columns"):
        output.text_file(path, parity.CSV, force=False)


def test_every_result_that_is_committed_is_told_as_ours() -> None:
    for path in [*(ROOT / "bench" / "results").glob("*.json"), *(ROOT / "routing_tables").glob("*.json")]:
        files.check_writable(path, files.json_mark(files.read_json(path)["kind"]))
    files.check_writable(ROOT / "bench" / "results" / "parity_h200.csv", parity.CSV)
    for path in (ROOT / "bench" / "results").glob("bench_*.json"):
        assert measure.load(path)["results"]


def test_nothing_writes_past_the_one_writer() -> None:
    """Outside the writer, files are opened for writing in folders of the process's own only: builds, temporary ones."""
    own_folders = {
        "mxgemm/build_cache.py",
        "mxgemm/checkpoints/work.py",
        "mxgemm/dispatcher/ck_tile.py",
        "mxgemm/dispatcher/native.py",
        "mxgemm/dispatcher/native_worker.py",
        "mxgemm/hip/compilers.py",
        "bench/hot_path.py",
        "bench/tensor_parallel.py",
        "evidence/gfx950_cases.py",
        "evidence/gfx950_compile.py",
        "gfx950emu/disassemble.py",
        "gfx950emu/pcode/__main__.py",
    }
    words = (".write_text(", ".write_bytes(", '.open("w', '"wb")', ".savefig(path", "json.dump(")
    found = {
        path.relative_to(ROOT).as_posix()
        for part in ("mxgemm", "bench", "evidence", "gfx950emu", "routing_tables")
        for path in (ROOT / part).rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
    }
    assert found - own_folders == {"mxgemm/files.py"}
