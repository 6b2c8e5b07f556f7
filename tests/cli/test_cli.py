import json
from pathlib import Path

import pytest

import mxgemm
from tests.command import command
from tests.command import output as run


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
