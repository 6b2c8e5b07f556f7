"""bench/soak.py and bench/tensor_parallel.py: what they call wrong is wrong, and what they count is there."""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.test_bench_scripts import BENCH, script

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")


@pytest.fixture(scope="module")
def soak():
    made = script("soak")
    made.BATCHES, made.WINDOWS, made.SETTLED = (1, 2), 2, 1
    return made


def tiny(soak):
    return soak.Sizes(width=64, inner=64, layers=1, words=32, tokens=3, prompts=(2,), head=32, groups=2)


def test_a_model_is_served_and_every_logit_compared(soak) -> None:
    options = argparse.Namespace(seconds=0.1, plain_seconds=0.05, threads=2, note="a test")
    kept: list[dict] = []
    document = soak.run(torch.device("cpu"), tiny(soak), options, kept.append)
    json.dumps(document)
    assert document["wrong_total"] == 0
    for name in ("mxfp4", "bf16"):
        found = document[name]
        assert found["requests"] > 0
        assert found["tokens"] >= 3 * found["requests"]
        assert sum(step["count"] for step in found["step_us"].values()) == 2 * found["requests"]
        assert all(step["p50"] <= step["p99"] for step in found["step_us"].values() if step["count"])
    assert len(document["memory"]["between_windows_mb"]) == 2
    assert [one["windows"] for one in kept] == [[1, 2], [2, 2]]
    assert kept[-1] == document
    assert document["note"] == "a test"


def test_memory_that_grows_to_the_end_is_growth(soak, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "WINDOWS", 10)
    monkeypatch.setattr(soak, "SETTLED", 3)
    memory = soak.Memory(torch.device("cpu"))
    kept = [900, 900, 950, 990, 1000, 1000, 1000, 1000, 1000, 1000]
    for s in range(10):
        memory.between.append({"s": s, "allocated": 7.0 * max(s, 2), "reserved": kept[s], "device": 10.0 * s})
        memory.growth()  # of the windows so far, which a document kept early has
    assert memory.growth() == {"allocated": 49.0, "reserved": 0.0, "device": 50.0}


def test_one_wrong_bit_is_a_wrong_logit_and_errors_of_threads_are_raised(soak) -> None:
    with torch.inference_mode():
        served = soak.Served(soak.Decoder(tiny(soak)).bfloat16().requires_grad_(False), 2, torch.device("cpu"))
        served.wanted[1, 2][1].view(torch.int16)[1, 0, 5] ^= 1
        served.request(0, 1, 2, served.tally)
        served.request(1, 2, 2, served.tally)
    assert served.tally.wrong == 1

    def fail(index: int) -> None:
        raise ValueError(f"thread {index}")

    crew = soak.Crew(2)
    with pytest.raises(ValueError, match="thread"):
        crew.run(fail)
    crew.run(lambda index: None)


def test_quantiles_are_within_a_bin(soak) -> None:
    bins = Counter(soak.binned(us / 1e6) for us in range(1, 1001))
    found = soak.quantiles(bins)
    assert found["count"] == 1000
    assert abs(found["p50"] / 500 - 1) < 0.02
    assert abs(found["p99"] / 990 - 1) < 0.02
    assert soak.quantiles(Counter()) == {"count": 0}


def test_growth_leaves_out_the_first_windows(soak) -> None:
    memory = soak.Memory(torch.device("cpu"))
    memory.between = [{"s": 1, "process": 50.0}, {"s": 2, "process": 80.0}]
    assert memory.growth() == {"process": 30.0}
    assert soak.limit("allocated") < soak.limit("process")


@pytest.mark.exhaustive
def test_layers_that_two_processes_share_are_judged(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    command = [sys.executable, str(BENCH / "tensor_parallel.py"), "--backend", "gloo", "--small", "-o", str(out)]
    done = subprocess.run(command, cwd=BENCH.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    document = json.loads(out.read_text())
    assert {row["way"] for row in document["rows"]} >= {"row", "column", "rows quantised and gathered"}
    assert all(row["right"] for row in document["rows"])
