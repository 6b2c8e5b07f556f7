import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")
typer_testing = pytest.importorskip("typer.testing")

import mxgemm  # noqa: E402
from mxgemm import cli  # noqa: E402

runner = typer_testing.CliRunner()


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(cli.app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_bench_judges_times_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    shapes = ["--shape", "3,32,64", "--shape", "1x2112x96"]
    text = run("bench", *shapes, "--device", "cpu", "--seconds", "0.01", "--json", str(path))
    assert "reference" in text
    assert text.count("pass") >= 2
    assert "…" not in text, "the table is whole where the terminal is narrow"
    assert "eager" not in text, "a column that is empty on a CPU"
    document = json.loads(path.read_text())
    assert document["kind"] == "mxgemm-bench"
    first = document["results"][0]
    assert (first["m"], first["n"], first["k"], first["accuracy"]["passed"]) == (3, 32, 64, True)
    assert first["accuracy"]["checked"] == 96
    assert [record["kind"] for record in document["results"]] == ["route", "route"], "no peers on a CPU unless asked"


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


def test_version_and_user_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--version").strip() == mxgemm.__version__
    for arguments, message in (
        (["bench", "--shape", "3"], "--shape: got '3', want M,N,K"),
        (["bench", "--shape", "3,4,33"], "K a positive multiple of 32"),
        (["bench", "--set", "moon"], "set: got 'moon', want one of leaderboard"),
        (["explain", "1", "1", "33"], "k: got 33, want a positive multiple of 32"),
        (["explain", "1", "1", "32", "--device", "cpu", "--route", "quantum"], "'--route': got 'quantum'"),
    ):
        monkeypatch.setattr("sys.argv", ["mxgemm", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err


def test_a_table_in_a_pipe_is_not_cut_to_80_columns() -> None:
    command = [sys.executable, "-c", "from mxgemm.cli.app import console; print(console.width)"]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    wide = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(wide.stdout) >= 160
    asked = subprocess.run(command, env=environment | {"COLUMNS": "70"}, capture_output=True, text=True, check=True)
    assert int(asked.stdout) == 70
