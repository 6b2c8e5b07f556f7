"""The build cache where folders are odd, disks are full, and builders fork and are killed."""

import errno
import os
import pwd
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxgemm import build_cache, shared_library
from tests.test_build_cache import CONTENT, FORK, ROOT, build_two, cache, compile_good, hang, truncated, write

__all__ = ["cache"]  # the fixture of every test here


NAMES = ("with space", "with\nnewline", "quote'\"`$(touch x)", "*?[a-f]", "-rf", "x" * 200)
BYTES = ("\u00e9\u4e2d".encode(), b"\xff")  # one is UTF-8, which the locale need not be


@pytest.mark.parametrize("name", [*NAMES, *map(os.fsdecode, BYTES)], ids=ascii)
def test_any_name_of_a_cache_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path / name / "c"))
    first = build_cache.cached({}, "kernel.so", compile_good, "x")
    leftover = first.parent.with_name(f"{first.parent.name}.dead.partial")
    leftover.mkdir()
    truncated(3)(first)
    assert build_cache.cached({}, "kernel.so", compile_good, "x") == first
    assert not leftover.exists()
    assert shared_library.load(first).answer() == 42
    assert not build_cache._told


def test_the_cache_is_found_without_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, "relative")
    assert build_cache.folder() == tmp_path / "relative"
    monkeypatch.delenv(build_cache.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build_cache.folder() == tmp_path / "xdg" / "mxgemm"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert build_cache.folder() == tmp_path / "home" / ".cache" / "mxgemm"
    monkeypatch.setenv("HOME", "")
    with pytest.raises(build_cache.CacheUnusable, match="no home folder; name a folder in MXGEMM_CACHE"):
        build_cache.folder()
    monkeypatch.delenv("HOME")
    assert build_cache.folder().is_absolute()
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as for a number that no user has
    with pytest.raises(build_cache.CacheUnusable, match="no home folder; name a folder in MXGEMM_CACHE"):
        build_cache.folder()
    file = build_cache.cached({}, "x.bin", write, "x")
    assert file.read_bytes() == b"built"
    assert build_cache.cached_bytes({}, "x.bin", lambda: b"made", "x") == b"made"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_still_serves_what_is_in_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = build_cache.cached({"a": 1}, "x.bin", build_two, "x")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(cache))

    monkeypatch.setattr(build_cache.files, "locked", read_only)
    assert build_cache.cached({"a": 1}, "x.bin", build_two, "x") == file
    assert caplog.text == ""
    with pytest.raises(OSError, match="Read-only file system"):  # nor can the temporary directory be
        build_cache.cached({"b": 1}, "x.bin", build_two, "x")
    assert build_cache.cached_bytes({"b": 1}, "x.bin", lambda: CONTENT, "x") == CONTENT
    assert caplog.text.count("Read-only file system") == 1


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tiny / "cache"))
    small = build_cache.cached({"small": 1}, "x.bin", write, "x")
    made: list[int] = []

    def large() -> bytes:
        made.append(1)
        return CONTENT * 20

    assert [build_cache.cached_bytes({"large": 1}, "x.bin", large, "x") for _ in range(2)] == [CONTENT * 20] * 2
    assert len(made) == 1, "what was made is not lost with the disk"
    file = build_cache.cached(
        {"large": 2}, "x.bin", lambda folder: (folder / "x.bin").write_bytes(CONTENT * 20) and None, "x"
    )
    assert file.read_bytes() == CONTENT * 20
    assert tiny not in file.parents
    assert caplog.text.count("No space left on device") == 1
    assert build_cache.cached({"small": 1}, "x.bin", lambda _: pytest.fail("built again"), "x") == small
    assert [path.name for path in (tiny / "cache").iterdir()] == [small.parent.name], "nothing half made is left"


def test_an_error_of_the_build_is_its_own(cache: Path) -> None:
    calls: list[Path] = []

    def fail(folder: Path) -> None:
        calls.append(folder)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "some-compiler")

    with pytest.raises(FileNotFoundError, match="some-compiler"):
        build_cache.cached({}, "x.bin", fail, "x")
    assert len(calls) == 1
    assert not build_cache._told


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_a_file_size_limit_everywhere() -> None:
    script = """
from mxgemm import build_cache
assert build_cache.cached_bytes({}, "x", lambda: b"x" * 5000, "x") == b"x" * 5000
try:
    build_cache.cached({}, "x", lambda folder: (folder / "x").write_bytes(b"x" * 5000), "x")
except OSError as error:
    print(error)
"""
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=120, preexec_fn=limit_files)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout


def build_in_pieces(folder: Path) -> None:
    with (folder / "x.bin").open("wb") as file:
        for at in range(0, len(CONTENT), 100):
            file.write(CONTENT[at : at + 100])
            file.flush()
            time.sleep(0.0005)


def build_pieces() -> None:
    build_cache.cached({}, "x.bin", build_in_pieces, "x")


KILLED = 20


def test_builders_killed_at_any_moment(cache: Path) -> None:
    rng = random.Random(0)
    for _ in range(KILLED):
        worker = FORK.Process(target=build_pieces)
        worker.start()
        time.sleep(rng.uniform(0, 0.08))
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        for place in cache.glob("?" * 32):  # whatever has its final name is whole
            assert (place / "x.bin").read_bytes() == CONTENT
            shutil.rmtree(place)
    file = build_cache.cached({}, "x.bin", build_in_pieces, "x")
    assert file.read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == [file.parent.name]


def test_leftovers_of_dead_builders_go_and_those_of_living_ones_stay(cache: Path, tmp_path: Path) -> None:
    build_cache.cached({"other": 0}, "x.bin", write, "x")
    dead = cache / f"{build_cache.digest({'dead': 1})}.abc.partial"
    dead.mkdir()
    foreign = cache / "notes.partial"
    foreign.mkdir()
    started = tmp_path / "started"
    worker = FORK.Process(target=hang, args=(started,))
    worker.start()
    while not started.exists():
        time.sleep(0.01)
    (alive,) = cache.glob(f"{build_cache.digest({})}.*.partial")
    build_cache.cached({"other": 1}, "x.bin", write, "x")
    assert (dead.exists(), alive.exists(), foreign.exists()) == (False, True, True)
    worker.kill()
    worker.join()
    build_cache.cached({"other": 2}, "x.bin", write, "x")
    assert not alive.exists()


def test_a_survivor_of_a_killed_builder_writes_into_no_other_build(cache: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    late = "import sys, time; open(sys.argv[2], 'w'); time.sleep(1); open(sys.argv[1], 'wb').write(b'late')"

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-c", late, folder / "x.bin", started], stderr=subprocess.DEVNULL)

    def build_slowly(folder: Path) -> None:
        build_two(folder)
        time.sleep(2)  # while the survivor writes

    builder = FORK.Process(target=lambda: build_cache.cached({}, "x.bin", build, "x"))
    builder.start()
    while not started.exists():
        time.sleep(0.01)
    builder.kill()
    builder.join()
    file = build_cache.cached({}, "x.bin", build_slowly, "x")
    assert file.read_bytes() == CONTENT
    assert build_cache.cached({}, "x.bin", lambda _: pytest.fail("built again"), "x") == file


def build_other() -> None:
    build_cache.cached({}, "x.bin", write, "x")


def test_a_child_forked_while_something_is_built_stops_nobody() -> None:
    building, go_on = threading.Event(), threading.Event()

    def build(folder: Path) -> None:
        building.set()
        go_on.wait()
        raise RuntimeError("no")

    def fails() -> None:
        with pytest.raises(RuntimeError):
            build_cache.cached({}, "x.bin", build, "x")

    builder = threading.Thread(target=fails)
    builder.start()
    building.wait()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        go_on.set()
        builder.join()
        other = FORK.Process(target=build_other)
        other.start()
        other.join(timeout=20)
        assert other.exitcode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def use_and_damage(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        key = {"k": rng.randrange(3)}
        assert build_cache.cached_bytes(key, "x.bin", lambda: CONTENT, "x") == CONTENT
        if rng.random() < 0.3:
            place = build_cache.folder() / build_cache.digest(key) / rng.choice(("x.bin", build_cache.MANIFEST))
            try:
                os.truncate(place, rng.randrange(60))
            except OSError:
                continue


def test_processes_that_build_use_and_damage_at_once_get_what_they_asked_for(cache: Path) -> None:
    workers = [FORK.Process(target=use_and_damage, args=(seed, 60)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert not list(cache.glob("*.partial"))
    assert not list(cache.glob("*.lock"))


def test_a_private_cache_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").touch()
    script = """
import os, sys, time
from mxgemm import build_cache
def build(folder): (folder / "x").write_bytes(b"x")
first = build_cache.cached({}, "x", build, "x")
assert build_cache.cached({}, "x", None, "x") == first
child = os.fork()
if child == 0:
    other = build_cache.cached({}, "x", build, "x")
    assert other != first
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert first.read_bytes() == b"x", "a child's end takes nothing from its parent"
"""
    environment = {**os.environ, "MXGEMM_CACHE": str(tmp_path / "file" / "c"), "TMPDIR": str(tmp_path / "tmp")}
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the build cache cannot be used") <= 1 + done.stderr.count("Not a directory")
    assert list((tmp_path / "tmp").iterdir()) == []
