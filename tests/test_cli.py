import json
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
    assert text.count("pass") == 2
    document = json.loads(path.read_text())
    assert document["kind"] == "mxgemm-bench"
    first = document["results"][0]
    assert (first["m"], first["n"], first["k"], first["passed"]) == (3, 32, 64, True)
    assert first["us"] > 0
    assert first["checked"] == 96
    assert first["gb_per_s"] == pytest.approx((3 * 64 * 2 + 32 * 34 + 3 * 32 * 2) / first["us"] / 1e3)
    for field in ("date", "device", "torch", "method", "gates"):
        assert document[field]


def test_a_wrong_result_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxgemm.benchmark.gemm", lambda a, w, **_: mxgemm.gemm(a, w) * 1.01)
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
        (["explain", "1", "1", "33"], "k: got 33, want a positive multiple of 32"),
        (["explain", "1", "1", "32", "--device", "cpu", "--route", "quantum"], "route: got 'quantum'"),
    ):
        monkeypatch.setattr("sys.argv", ["mxgemm", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert exit_.value.code == 2
        assert message in capsys.readouterr().out
