"""The one reader and the one writer of files: whatever lies there, whatever fails, whoever else writes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxgemm import fields, files
from mxgemm.files import FileError

MARK = files.json_mark("mxgemm-test")
OURS = files.json_text({"kind": "mxgemm-test", "rows": [1, 2, 3]})
FORK = multiprocessing.get_context("fork")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


def loop(path: Path) -> None:
    path.symlink_to(path)


def null_device(path: Path) -> None:
    path.symlink_to(os.devnull)


NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (Path.mkdir, "is a folder, want a regular file"),
    "pipe": (fifo, "is a pipe, want a regular file"),
    "socket": (listening, "is a socket, want a regular file"),
    "device": (null_device, "is a device, want a regular file"),
    "loop": (loop, "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("kind", list(NO_FILES))
def test_what_is_no_file_is_neither_read_nor_replaced(kind: str, tmp_path: Path) -> None:
    make, message = NO_FILES[kind]
    path = tmp_path / "x"
    make(path)
    before = path.lstat()
    for use in (
        lambda: files.read_json(path),
        lambda: files.check_writable(path, MARK, force=True),
        lambda: files.write(path, OURS, MARK, force=True),
    ):
        with pytest.raises(FileError, match=message):
            use()
    assert path.lstat() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def nested(depth: int, open_: str = "[", close: str = "]") -> bytes:
    return (open_ * depth + close * depth).encode()


NO_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "truncated": (OURS.encode()[:-3], "not JSON"),
    "binary": (bytes(range(256)), "not JSON"),
    "latin-1": ('{"a": "\xe9"}'.encode("latin-1"), "not JSON .*utf-8"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "not JSON"),
    "NUL": (b'{"a": \0}', "not JSON"),
    "33 levels": (nested(files.DEPTH_LIMIT + 1), "more than 32 levels deep"),
    "deep lists": (nested(100_000), "more than 32 levels deep"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "more than 32 levels deep"),
    "a name twice": (b'{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}', "'c' twice in one object"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "not JSON .*surrogates"),
}


@pytest.mark.parametrize("kind", list(NO_JSON))
def test_what_is_no_json_is_named(kind: str, tmp_path: Path) -> None:
    content, message = NO_JSON[kind]
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as error:
        files.read_json(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 400


def test_names_that_are_none_and_sizes_beyond_the_limit(tmp_path: Path) -> None:
    for name in ("a\0b", str(tmp_path / "none"), "x" * 300, str(tmp_path / ("y/" * 3000))):
        with pytest.raises(FileError, match="cannot be read"):
            files.read_json(name)
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(files.READ_LIMIT + 1)
    with pytest.raises(FileError, match="the most that is read"):
        files.read_json(sparse)
    with pytest.raises(FileError, match="over 3 bytes"):
        files.read_bytes(sparse, 3)


def test_what_may_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + '{"a": [1, 2.5, "\xe9", "\\ud83d\\ude00", null, true]}'.encode())
    assert files.read_json(path) == {"a": [1, 2.5, "\xe9", "\U0001f600", None, True]}
    path.write_bytes(nested(files.DEPTH_LIMIT))
    files.read_json(path)
    (tmp_path / "link").symlink_to(path)
    assert files.read_bytes(tmp_path / "link") == path.read_bytes()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "9" * 5000, "-" + "9" * 19, "1" + "0" * 400])
def test_numbers_beyond_all_bounds_fail_the_check_of_their_field(number: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(f'{{"a": {{"us": [1, {number}]}}}}')
    document = files.read_json(path)
    for check in (fields.number(0), fields.integer(-(1 << 62), 1 << 62)):
        with pytest.raises(FileError, match=r"x: us\[1\]: got ") as error:
            fields.every(fields.optional(check))(document["a"]["us"], "x: us")
        assert len(str(error.value)) < 120


def test_every_check_names_its_place() -> None:
    check = fields.record({"a": fields.every(fields.record({"b": fields.flag()}, {"c": fields.text()}))})
    check({"a": [{"b": True, "c": "x"}]}, "f")
    for value, message in (
        ([], "f: got list, want an object"),
        ({}, "f: unknown fields [], missing fields ['a']"),
        ({"a": {}}, "f.a: got dict, want a list"),
        ({"a": [{"b": 1}]}, "f.a[0].b: got 1, want true or false"),
        ({"a": [{"b": True, "c": "\x1b[2J"}]}, "f.a[0].c: got '\\x1b[2J', want text"),
        ({"a": [{"b": True, "d": 1}]}, "f.a[0]: unknown fields ['d'], missing fields []"),
    ):
        with pytest.raises(FileError) as error:
            check(value, "f")
        assert str(error.value) == message
    with pytest.raises(FileError, match="got True, want one of 1, 2"):
        fields.one_of([1, 2])(True, "x")
    with pytest.raises(FileError, match="got {}, want one of none"):
        fields.one_of([])({}, "x")


def test_a_new_file_honours_the_umask_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "x.json"
    before = os.umask(0o027)
    try:
        files.write(path, OURS, MARK)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        files.write(path, OURS, MARK)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_symlink_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, second, target = tmp_path / "link.json", tmp_path / "second.json", tmp_path / "real" / "x.json"
    link.symlink_to("second.json")
    second.symlink_to(target)  # which is not there yet
    for text in (OURS, OURS.replace("1", "7")):
        files.check_writable(link, MARK)
        files.write(link, text, MARK)
        assert target.read_text() == text
        assert (os.readlink(link), os.readlink(second)) == ("second.json", str(target))
        assert [entry.name for entry in target.parent.iterdir()] == ["x.json"]


def test_what_somebody_else_wrote_is_replaced_by_request_only(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    foreign = ("my notes", '{"kind": "mxgemm-bench"}', '[{"kind": "mxgemm-test"}]', "#!/bin/sh\n", '{"kind": 3}', "\n")
    for content in foreign:
        path.write_text(content)
        for use in (files.check_writable, lambda path, mark: files.write(path, OURS, mark)):
            with pytest.raises(FileError, match='is there already and is not JSON with "kind": "mxgemm-test".*--force'):
                use(path, MARK)
        assert path.read_text() == content
        files.check_writable(path, MARK, force=True)
        assert path.read_text() == content, "a check changes nothing"
        files.write(path, OURS, MARK, force=True)
        assert path.read_text() == OURS
    for content in ("", OURS, OURS[:40], '{"version": 2,\n"kind":"mxgemm-test"}'):  # an empty one is anybody's
        path.write_text(content)
        files.write(path, OURS, MARK)
        assert path.read_text() == OURS


@pytest.mark.parametrize("failing", ["os.open", "os.fsync", "os.replace", "os.fchmod"])
@pytest.mark.parametrize("there", [True, False])
def test_whatever_fails_the_old_file_stays_and_the_new_text_is_kept(
    failing: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    path = folder / "x.json"
    if there:
        path.write_text('{"kind": "mxgemm-test", "old": true}')
    name = failing.removeprefix("os.")
    real = getattr(os, name)

    def fail(*arguments: Any, **more: Any) -> Any:
        if name != "open" or (str(folder) in str(arguments[0]) and arguments[1] & os.O_CREAT):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **more)

    monkeypatch.setattr(os, name, fail)
    if failing == "os.fchmod" and not there:
        files.save(path, OURS, MARK)  # a new file has no mode to keep
        return
    with pytest.raises(FileError, match="x.json: cannot be written .No space left on device.; it is in ") as error:
        files.save(path, OURS, MARK)
    monkeypatch.undo()
    assert Path(str(error.value).rpartition("it is in ")[2]).read_text() == OURS
    assert [entry.read_text() for entry in folder.iterdir()] == ['{"kind": "mxgemm-test", "old": true}'] * there


def limited(script: str, folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Run a script that can write files of ``size`` bytes at most: a full disk, but for the number."""
    head = f"from mxgemm import files\nfrom pathlib import Path\npath = Path({str(folder / 'x.json')!r})\n"
    return subprocess.run(
        [sys.executable, "-c", head + script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


def test_a_disk_that_is_full_everywhere_leaves_standard_output(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "x.json").write_text('{"kind": "mxgemm-test"}')
    done = limited(
        "files.check_writable(path, files.json_mark('mxgemm-test'))\n"
        "files.save_json(path, {'kind': 'mxgemm-test', 'rows': list(range(2000))}, 'mxgemm-test')",
        tmp_path,
        1000,
    )
    assert "cannot be written (File too large); nor can the temporary directory" in done.stderr
    assert json.loads(done.stdout)["rows"] == list(range(2000))
    assert (tmp_path / "x.json").read_text() == '{"kind": "mxgemm-test"}'
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp", "x.json"] or not list((tmp_path / "tmp").iterdir())


def test_a_folder_that_takes_no_file_is_found_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be written .Not a directory"):
        files.check_writable(tmp_path / "file" / "x.json", MARK)
    with pytest.raises(FileError, match="cannot be written"):
        files.check_writable("a\0b", MARK)
    with pytest.raises(FileError, match="is a folder"):
        files.check_writable("", MARK)
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(FileError, match="Permission denied"):
            files.check_writable(tmp_path / "closed" / "x.json", MARK)
    elif os.path.isdir("/proc/sys"):
        with pytest.raises(FileError, match="cannot be written"):
            files.check_writable("/proc/sys/x.json", MARK)


def write_for_ever(path: Path) -> None:
    for count in range(1_000_000):
        files.write(path, files.json_text({"kind": "mxgemm-test", "count": count, "padding": "x" * 50_000}), MARK)


KILLED = 25


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    rng = random.Random(1)
    for _ in range(KILLED):
        writer = FORK.Process(target=write_for_ever, args=(path,))
        writer.start()
        while not path.exists():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.03))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert len(files.read_json(path)["padding"]) == 50_000


def test_a_reader_sees_whole_files_while_many_write(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write(path, OURS, MARK)
    over = threading.Event()
    writers = [threading.Thread(target=write_some, args=(path, number, over)) for number in range(3)]
    for writer in writers:
        writer.start()
    lengths = [len(files.read_json(path)["rows"]) for _ in range(300)]
    over.set()
    for writer in writers:
        writer.join()
    assert set(lengths) <= {3, 1000, 2000, 3000}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def write_some(path: Path, number: int, over: threading.Event) -> None:
    while not over.is_set():
        files.write(path, files.json_text({"kind": "mxgemm-test", "rows": [number] * 1000 * (number + 1)}), MARK)


def test_numbers_that_json_lacks_become_null() -> None:
    text = files.json_text({"a": [1.5, float("nan"), (float("inf"), "NaN")], "b": {"c": -float("inf")}})
    assert json.loads(text) == {"a": [1.5, None, [None, "NaN"]], "b": {"c": None}}
