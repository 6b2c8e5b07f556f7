"""The scripts in bench/."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parent.parent / "bench"


def script(name: str):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_of_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = script("threads")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    right, wrong = torch.arange(5.0), torch.arange(5.0) + 1e-6
    case = threads.Case("half", [right.clone, wrong.clone])
    assert threads.race(case, [right, right], "one stream", 4, 50) == 100
    assert threads.race(case, [right, wrong], "one stream, plans made anew", 4, 50) == 0

    def fail() -> torch.Tensor:
        raise RuntimeError("launch")

    with pytest.raises(RuntimeError, match="launch"):
        threads.race(threads.Case("fails", [fail]), [right], "one stream", 4, 50)
