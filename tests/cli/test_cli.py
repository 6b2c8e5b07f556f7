import json
import subprocess
import sys
from pathlib import Path

import pytest

import mxgemm
from tests.cases import cpu_route
from tests.command import command
from tests.command import output as run

ROOT = Path(__file__).resolve().parents[2]


def test_bench_judges_times_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    shapes = ["--shape", "3,32,64", "--shape", "1x2112x96"]
    text = run("bench", *shapes, "--device", "cpu", "--seconds", "0.01", "--json", str(path))
    assert cpu_route() in text
    assert text.count("pass") >= 2
    assert "…" not in text, "the table is whole where the terminal is narrow"
    assert "eager" not in text, "a column that is empty on a CPU"
    document = json.loads(path.read_text())
    assert document["kind"] == "mxgemm-bench"
    first = document["results"][0]
    assert (first["m"], first["n"], first["k"], first["accuracy"]["passed"]) == (3, 32, 64, True)
    assert first["accuracy"]["checked"] == 96
    assert [record["kind"] for record in document["results"]] == ["route", "route"], "no peers on a CPU unless asked"


@pytest.mark.slow
def test_bench_with_every_route_peers_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--all-routes", "--peers"]
    text = run("bench", *arguments, "--plot", str(tmp_path / "p"))
    for part in ("torch_mm", "absent humming: ", "refused fp8_fold (3,32,64): "):
        assert part in text
    assert (tmp_path / "p" / "bench_time.png").stat().st_size > 5000


def test_bench_compares_two_runs(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    run("bench", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--json", str(old))
    assert "0 of 1 slower" in run("bench", "--compare", str(old), str(old))
    document = json.loads(old.read_text())
    for field in ("us", "low", "high"):
        document["results"][0]["device"][field] *= 1000
    new.write_text(json.dumps(document))
    assert "1 of 1 slower" in run("bench", "--compare", str(old), str(new), code=1)
    assert "faster" in run("bench", "--compare", str(new), str(old))


def test_a_wrong_result_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxgemm.measure.routes.gemm", lambda a, w, **_: mxgemm.gemm(a, w) * 1.01)
    assert "FAIL" in run("bench", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0.01", code=1)


def test_explain_and_doctor() -> None:
    assert "route     a16wfp4" in run("explain", "4", "2880", "512", "--device", "gfx950")
    text = run("doctor")
    for part in ("mxgemm", "torch", "a16wfp4", "reference", "available"):
        assert part in text


def test_version_and_user_errors() -> None:
    assert run("--version").strip() == mxgemm.__version__
    for arguments, message in (
        (["bench", "--shape", "3"], "--shape: got '3', want M,N,K"),
        (["bench", "--shape", "3,4,33"], "K a positive multiple of 32"),
        (["bench", "--set", "moon"], "set: got 'moon', want one of leaderboard"),
        (["explain", "1", "1", "33"], "K a positive multiple of 32"),
        (["explain", "1", "1", "32", "--device", "cpu", "--route", "quantum"], "--route: got 'quantum'"),
        (["explain"], "M N K: got none"),
        (["explain", "1", "2"], "M N K: got '1,2', want M,N,K"),
        (["explain", "1,2,32", "7"], "M N K: got '7', want M,N,K"),
        (["plot", "-o", "p"], "want a file that mxgemm bench --json wrote, or --map"),
        (["doctor", "--raw"], "want --verify too"),
        (["bench", "--prepared", "--raw"], "not allowed with"),
        (["parity", "route:quantum", "route:auto", "--device", "cpu"], "route: got 'quantum'"),
        (["bench", "--nonsense"], "unrecognized arguments: --nonsense"),
    ):
        done = command(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("mxgemm")
        assert message in done.err


def test_sizes_are_spelt_one_way() -> None:
    answer = run("explain", "16", "2112", "7168", "--device", "gfx950")
    for spelling in (["16,2112,7168"], ["16x2112x7168"], ["--shape", "16,2112,7168"], ["--shape", "16x2112x7168"]):
        assert run("explain", *spelling, "--device", "gfx950") == answer
    both = run("explain", "--shape", "4,2880,512", "16,2112,7168", "--device", "gfx950")
    assert both.endswith(f"\n\n{answer}")
    assert both.startswith("(4, 2880, 512)")


@pytest.mark.slow
def test_measuring_needs_no_extra_and_its_json_is_drawn_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    line = ["bench", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--peers", "--json", str(path)]
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('typer', 'rich', 'matplotlib')))\n"
        f"import mxgemm_cli; sys.exit(mxgemm_cli.main({line!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{cpu_route()}*" in done.stdout
    assert "absent humming" in done.stdout
    assert json.loads(path.read_text())["results"][0]["accuracy"]["passed"]
    pytest.importorskip("matplotlib")
    said = run("plot", path, "--map", "sm_90", "-o", tmp_path / "p")
    assert (tmp_path / "p" / "r_time.png").stat().st_size > 5000
    for name in ("r_roofline.png", "routes_sm_90_mk.png"):
        assert (tmp_path / "p" / name).exists()
        assert f"wrote {tmp_path / 'p' / name}" in said


def test_pictures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for line in (
        ["plot", "--map", "gfx950", "-o", tmp_path / "p"],
        ["bench", "--shape", "3,32,64", "--device", "cpu", "--plot", tmp_path / "p"],
    ):
        assert "mxgemm[bench]" in run(*line, code=2)
    assert not (tmp_path / "p").exists()


def test_a_plot_of_what_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    assert str(tmp_path / "r.json") in run("plot", tmp_path / "r.json", "-o", tmp_path / "p", code=2)


def test_parity_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.csv"
    quick = ["--shape", "3,32,64", "--device", "cpu", "--warm-up", "1", "--repeats", "3"]
    out = run("parity", "route:reference", "peer:torch_mm", *quick, "--csv", path)
    assert "A = route reference, B = peer torch_mm" in out
    assert "1 sizes" in out
    assert path.read_text().count("\n") == 2
    (tmp_path / "zeros.py").write_text(
        "import torch\ndef gemm(a, w):\n    return torch.zeros(len(a), w.shape[0], dtype=torch.bfloat16)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)  # a module of the user's is found where he stands
    out = run("parity", "route:reference", "python:zeros:gemm", *quick, code=1)
    assert "B zeros:gemm: all zero" in " ".join(out.split())
    run("parity", "route:quantum", "route:auto", *quick, code=2)


@pytest.mark.parametrize("flag, prepared", [("--prepared", True), ("--raw", False)])
def test_the_weight_comes_as_the_flag_says(flag: str, prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = mxgemm.MXTensor.prepare
    monkeypatch.setattr(mxgemm.MXTensor, "prepare", lambda self, *a, **b: seen.append(1) or real(self, *a, **b))
    quick = ["--shape", "3,32,64", "--device", "cpu"]
    run("parity", "route:reference", "route:auto", *quick, "--warm-up", "1", "--repeats", "2", flag)
    assert bool(seen) == prepared
    seen.clear()
    said = run("doctor", "--verify", *quick, "--seconds", "0", flag)
    assert bool(seen) == prepared
    assert ("prepared  " in said, "row-major  " in said) == (prepared, not prepared)
