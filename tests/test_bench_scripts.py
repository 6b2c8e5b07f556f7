"""The scripts in bench/ that measure and draw: they run, and measuring needs neither typer, rich nor matplotlib."""

import importlib.util
import json
import subprocess
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


def main(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int | None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    return script(name).main()


def test_measuring_needs_no_extra_and_its_json_is_drawn_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    blocked = "import sys, runpy; sys.modules.update(dict.fromkeys(('typer', 'rich', 'matplotlib')));"
    arguments = ["run.py", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--peers", "--json", str(path)]
    code = f"{blocked} sys.argv = {arguments!r}; runpy.run_path({str(BENCH / 'run.py')!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCH.parent, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "reference*" in done.stdout
    assert "absent humming" in done.stdout
    assert json.loads(path.read_text())["results"][0]["accuracy"]["passed"]

    assert main(monkeypatch, "run", "--compare", str(path), str(path)) == 0
    assert "same" in capsys.readouterr().out
    document = json.loads(path.read_text())
    for name in ("us", "low", "high"):
        document["results"][0]["device"][name] *= 100
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(document))
    assert main(monkeypatch, "run", "--compare", str(path), str(slow)) == 1

    pytest.importorskip("matplotlib")
    main(monkeypatch, "plot", str(path), "-o", str(tmp_path / "p"))
    assert (tmp_path / "p" / "r_time.png").stat().st_size > 5000
    assert (tmp_path / "p" / "routes_cpu_mk.svg").exists()


def test_parity_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.csv"
    quick = ["--shape", "3,32,64", "--device", "cpu", "--warm-up", "1", "--repeats", "3"]
    code = main(monkeypatch, "parity", "route:reference", "peer:torch_mm", *quick, "--csv", str(path))
    assert code == 0
    out = capsys.readouterr().out
    assert "A = route reference, B = peer torch_mm" in out
    assert "1 sizes" in out
    assert path.read_text().count("\n") == 2
    zeros = tmp_path / "zeros.py"
    zeros.write_text(
        "import torch\ndef gemm(a, w):\n    return torch.zeros(len(a), w.shape[0], dtype=torch.bfloat16)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(monkeypatch, "parity", "route:reference", "python:zeros:gemm", *quick) == 1
    assert "B zeros:gemm: all zero" in capsys.readouterr().out
    assert main(monkeypatch, "parity", "route:quantum", "route:auto", *quick) == 2


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
