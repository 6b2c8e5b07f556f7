import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from mxgemm import build_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path) -> None:
    (folder / "x.bin").write_bytes(b"built")


def test_a_file_is_built_once_and_found_again() -> None:
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        write(folder)

    first = build_cache.cached({"source": "a"}, "x.bin", build, "x")
    assert first.read_bytes() == b"built"
    assert build_cache.cached({"source": "a"}, "x.bin", build, "x") == first
    assert len(calls) == 1
    assert build_cache.cached({"source": "b"}, "x.bin", build, "x") != first


def test_a_failed_build_leaves_nothing_and_is_tried_again(cache: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError("compiler said no")

    with pytest.raises(RuntimeError, match="compiler said no"):
        build_cache.cached({}, "x.bin", fail, "x")
    with pytest.raises(FileNotFoundError, match="wrote no x.bin"):
        build_cache.cached({}, "x.bin", lambda folder: None, "x")
    assert list(cache.iterdir()) == []
    assert build_cache.cached({}, "x.bin", write, "x").read_bytes() == b"built"


def test_a_slow_build_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cache, "SLOW_SECONDS", -1.0)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        build_cache.cached({}, "x.bin", write, "the kernel")
        build_cache.cached({}, "x.bin", write, "the kernel")
    assert [record.message.split(" in ")[0] for record in caplog.records] == ["built the kernel"]


def build_slowly(log: Path) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as handle:
            handle.write(f"{os.getpid()}\n")
        time.sleep(0.5)
        write(folder)

    build_cache.cached({}, "x.bin", build, "x")


def test_processes_that_build_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = [multiprocessing.get_context("fork").Process(target=build_slowly, args=(log,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(log.read_text().split()) == 1


def hang(started: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        started.touch()
        time.sleep(60)

    build_cache.cached({}, "x.bin", build, "x")


def test_a_killed_builder_lets_go_of_its_lock(tmp_path: Path) -> None:
    started = tmp_path / "started"
    worker = multiprocessing.get_context("fork").Process(target=hang, args=(started,))
    worker.start()
    while not started.exists():
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    file = build_cache.cached({}, "x.bin", write, "x")
    assert sorted(path.name for path in file.parent.iterdir()) == ["manifest.json", "x.bin"]
