"""A process that forks while other threads plan and launch: its children plan and launch too, and none hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxgemm.triton.support import triton_version

CHILDREN = 60
FORKING = """
import os, signal, sys, threading, time
import torch
import mxgemm
from mxgemm import plan

route, children = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
w = mxgemm.quantize(torch.randn(32, 64))
a = torch.randn(40, 64)
want = mxgemm.gemm(a, w, route=route)

def work():
    while True:
        for m in range(1, 40):
            plan.clear_plans()
            mxgemm.gemm(a[:m], w, route=route)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()

def in_child():
    same = all(torch.equal(mxgemm.gemm(a[:m], w, route=route), want[:m]) for m in (1, 3, 40))
    os._exit(0 if same else 3)

def wait_for(child):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "right" if status == 0 else f"status {status}"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"

ends = {}
for i in range(children):
    time.sleep(0.0007 * (i % 10))
    child = os.fork()
    if child == 0:
        in_child()
    end = wait_for(child)
    ends[end] = ends.get(end, 0) + 1
    if end == "hung":
        break
print(ends, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("route", ["reference", "a16wfp4"])
@pytest.mark.slow
def test_children_forked_while_other_threads_plan(route: str) -> None:
    """The second route launches in triton's interpreter, so the fork may also come within a first launch."""
    if route != "reference" and (triton_version() or (0, 0)) < (3, 9):
        pytest.skip("no triton, or one whose interpreter has no dot_scaled")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, route, str(CHILDREN if route == "reference" else 20)],
        env=environment, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == str({"right": CHILDREN if route == "reference" else 20}), done.stderr
