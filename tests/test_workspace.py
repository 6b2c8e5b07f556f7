"""Scratch: lent to one call at a time, grown, bounded, dropped where a call failed; nothing of it crosses a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from mxgemm import workspace

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    workspace.clear()
    yield
    workspace.clear()


def kept() -> list[workspace.Arena]:
    return [arena for free in workspace._free.values() for arena in free]


def test_one_caller_gets_the_same_memory_again_and_again() -> None:
    with workspace.take(100, CPU) as arena:
        first = arena.memory.data_ptr()
        assert arena.memory.dtype == torch.uint8
        assert arena.memory.numel() >= 100
        assert not kept()
    for nbytes in (0, 1, 100, 4096):
        with workspace.take(nbytes, CPU) as arena:
            assert arena.memory.data_ptr() == first
    assert len(kept()) == 1


def test_memory_in_use_is_nobody_elses() -> None:
    with workspace.take(100, CPU) as outer:
        with workspace.take(100, CPU) as inner:
            assert inner.memory.data_ptr() != outer.memory.data_ptr()
            with workspace.take(100, CPU) as innermost:
                assert innermost.memory.data_ptr() not in (outer.memory.data_ptr(), inner.memory.data_ptr())
        with workspace.take(100, CPU) as again:
            assert again.memory.data_ptr() != outer.memory.data_ptr()


def test_growing() -> None:
    with workspace.take(100, CPU, counters=3) as arena:
        counters = arena.counters.data_ptr()
    with workspace.take(1 << 20, CPU) as arena:
        assert arena.memory.numel() == 1 << 20
        assert arena.counters.data_ptr() == counters  # they were enough
        memory = arena.memory.data_ptr()
    with workspace.take(100, CPU, counters=5000) as arena:
        assert arena.memory.data_ptr() == memory
        assert arena.counters.numel() >= 5000
        assert not arena.counters.any()
    assert len(kept()) == 1
    with workspace.take((1 << 20) + 1, CPU) as arena:
        assert arena.memory.numel() == 1 << 21


def test_a_request_beyond_the_limit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "LIMIT_BYTES", 1 << 16)
    with workspace.take(100, CPU, counters=1) as arena:
        small = arena.memory.data_ptr()
    with workspace.take((1 << 16) + 1, CPU, counters=7) as huge:
        assert huge.memory.numel() == (1 << 16) + 1
        assert huge.counters.numel() >= 7
        assert not huge.counters.any()
    assert [arena.memory.data_ptr() for arena in kept()] == [small]


def test_no_more_than_the_limit_is_kept_of_many_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "LIMIT_BYTES", 3 << 14)
    arenas = [workspace.take(1 << 14, CPU) for _ in range(8)]
    for arena in arenas:
        arena.__exit__(None, None, None)
    assert sum(arena.nbytes for arena in kept()) == 3 << 14
    assert kept() == arenas[-3:]  # those that lay longest are gone


def test_what_a_failed_call_used_is_dropped() -> None:
    def fail(arena: workspace.Arena) -> None:
        arena.counters[:] = 1  # as a kernel leaves them that was not there to the end
        raise RuntimeError("launch")

    with pytest.raises(RuntimeError, match="launch"), workspace.take(100, CPU, counters=4) as arena:
        fail(arena)
    assert not kept()
    with workspace.take(100, CPU, counters=4) as arena:
        assert not arena.counters.any()


def test_clearing_while_memory_is_in_use() -> None:
    with workspace.take(100, CPU):
        workspace.clear()
    assert not kept()
    with workspace.take(100, CPU) as outer:
        workspace.clear()
        with workspace.take(100, CPU):
            pass
    assert len(kept()) == 2
    assert outer in kept()


def test_streams_have_lists_of_their_own_and_the_lists_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_stream(stream: int) -> int:
        monkeypatch.setattr(workspace, "raw_stream", lambda device: stream)
        with workspace.take(100, CPU) as arena:
            return arena.memory.data_ptr()

    monkeypatch.setattr(workspace, "MAX_STREAMS", 4)
    first = [on_stream(stream) for stream in range(3)]
    assert len(set(first)) == 3
    assert [on_stream(stream) for stream in range(3)] == first
    for stream in range(100):
        on_stream(stream)
        assert len(workspace._free) <= 4


@pytest.mark.parametrize("made_in", [False, True])
def test_either_inference_mode_uses_what_the_other_made(made_in: bool) -> None:
    with torch.inference_mode(made_in), workspace.take(100, CPU, counters=2) as arena:
        memory = arena.memory.data_ptr()
    with torch.inference_mode(not made_in), workspace.take(100, CPU, counters=2) as arena:
        assert arena.memory.data_ptr() == memory
        arena.memory[:3].view(torch.uint8).fill_(7)
        arena.counters.zero_()
    with torch.inference_mode(made_in), workspace.take(100, CPU) as arena:
        arena.memory.fill_(1)


def test_fake_memory_serves_no_later_call() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), workspace.take(100, CPU, counters=1):
        pass
    assert not kept()


def test_threads_are_never_handed_the_same_arena() -> None:
    used: set[int] = set()
    collisions: list[int] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for i in range(3000):
            with workspace.take(64 << (seed + i) % 9, CPU, counters=(seed * i) % 5) as arena:
                address = arena.memory.data_ptr()
                if address in used:
                    collisions.append(address)
                used.add(address)
                assert not arena.counters.any()
                used.discard(address)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not collisions
    assert 1 <= len(kept()) <= 8


def test_a_forked_child_leaves_the_parents_arenas_alone() -> None:
    with workspace.take(100, CPU):
        pass
    (arena,) = kept()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        same = any(arena is mine for mine in kept())
        inherited = any(arena in free for lists in workspace._inherited for free in lists.values())
        os.write(write, b"leaves them" if not same and inherited else b"takes them")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"leaves them"
    assert kept() == [arena]
    os.close(read)
    os.close(write)
