"""Locks between threads and processes that fork and are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mxgemm import files

FORK = multiprocessing.get_context("fork")


def count_up(path: Path, times: int) -> None:
    for _ in range(times):
        with files.locked(f"{path}.lock") as held:
            assert held
            path.write_text(str(int(path.read_text()) + 1))


def test_one_at_a_time_holds_a_lock_and_its_file_goes(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    workers = [FORK.Process(target=count_up, args=(path, 100)) for _ in range(4)]
    threads = [threading.Thread(target=count_up, args=(path, 50)) for _ in range(4)]
    for worker in (*workers, *threads):
        worker.start()
    for worker in (*workers, *threads):
        worker.join()
    assert path.read_text() == "600"
    assert [entry.name for entry in tmp_path.iterdir()] == ["count"]


def test_who_does_not_wait_is_told(tmp_path: Path) -> None:
    with files.locked(tmp_path / "l") as first, files.locked(tmp_path / "l", wait=False) as second:
        assert (first, second) == (True, False)
    with files.locked(tmp_path / "l", wait=False) as third:
        assert third
    assert list(tmp_path.iterdir()) == []


def fork_and(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    return pid


def test_a_child_forked_while_a_lock_is_held_does_not_hold_it(tmp_path: Path) -> None:
    lock = tmp_path / "l"
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with files.locked(lock):
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    child = fork_and(lambda: time.sleep(60))
    try:
        with files.locked(lock, wait=False) as held:
            assert not held, "the parent has it"
        leave.set()
        holder.join()
        with files.locked(lock, wait=False) as held:
            assert held, "the child lives, and has not"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_that_leaves_the_block_lets_go_of_nothing(tmp_path: Path) -> None:
    with files.locked(tmp_path / "l"):
        child = os.fork()
        if child == 0:
            os._exit(0 if leave_as_a_child(tmp_path) else 1)
        assert os.waitpid(child, 0)[1] == 0
        with files.locked(tmp_path / "l", wait=False) as held:
            assert not held


def leave_as_a_child(folder: Path) -> bool:
    """Go through what a child does that runs on to the end of the block: nothing is unlocked, nothing is removed."""
    with files.locked(folder / "l", wait=False) as held:
        return not held and (folder / "l").exists()


def hold_with_a_child(lock: Path, pids: Any) -> None:
    with files.locked(lock):
        pids.put(fork_and(lambda: time.sleep(60)))
        time.sleep(60)


def test_a_killed_holder_lets_go_though_its_child_lives_on(tmp_path: Path) -> None:
    pids = FORK.SimpleQueue()
    holder = FORK.Process(target=hold_with_a_child, args=(tmp_path / "l", pids))
    holder.start()
    child = pids.get()
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    try:
        with files.locked(tmp_path / "l", wait=False) as held:
            assert held
    finally:
        os.kill(child, signal.SIGKILL)
