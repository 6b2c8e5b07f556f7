"""Threads on a GPU, whose launches let go of the interpreter's lock: the bits of a serial run, in every form."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mxgemm import workspace
from mxgemm.triton.tile_config import TileConfig
from tests.cases import make, run_route

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "bench" / "threads.py"
    spec = importlib.util.spec_from_file_location("bench_threads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_eight_threads(recipe: ModuleType) -> None:
    rows, left_out = recipe.run(8, 48, time.monotonic() + 300)
    assert rows
    assert left_out == []
    assert [row for row in rows if row["wrong"]] == []


def test_a_graph_is_captured_while_another_thread_multiplies(recipe: ModuleType) -> None:
    """The graph's scratch is its own: replays and eager calls do not touch each other."""
    call = recipe.cases()[0].calls[0]
    want = call()
    torch.cuda.synchronize()
    done, results = threading.Event(), []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not done.is_set() or len(results) < 100:
                results.append(torch.equal(call(), want))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = call()
        replayed = []
        for _ in range(100):
            out.fill_(torch.nan)
            graph.replay()
            replayed.append(torch.equal(out, want))
    finally:
        done.set()
        thread.join()
    assert all(replayed)
    assert all(results)


def test_a_forked_child_neither_uses_nor_frees_the_parents_scratch() -> None:
    case = make(16, 512, 4096, device="cuda")
    config = TileConfig(block_k=256, split_k=8, one_launch=True)
    want = run_route("a16wfp4", case, config=config)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        workspace.clear()
        with workspace.take(100, torch.device("cpu")):
            taken = len(workspace._free)
        os._exit(0 if taken == 1 and workspace._inherited else 3)
    end = time.monotonic() + 60
    status = None
    while status is None and time.monotonic() < end:
        done, code = os.waitpid(child, os.WNOHANG)
        status = code if done else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == 0
    assert torch.equal(run_route("a16wfp4", case, config=config), want)
