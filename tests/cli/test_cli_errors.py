"""What the command line says of wrong input, of what fails, and where it cannot write: never a traceback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mxgemm_cli
from mxgemm import RouteUnavailable
from mxgemm.errors import Refusal
from tests.command import output

ROOT = Path(__file__).resolve().parents[2]
LARGE = f"{10**6},{10**7},{32 * 10**6}"
HOSTILE = (
    *("[/x]", "[bold]y", ":smile:", "", " ", "\n", "--", "%s{}", "None", "true", "x" * 10_000),
    *("-1", "0", "0.5", "nan", "inf", "-inf", "1e3", "1e400", "9" * 30, "9" * 5000),
    *("a,b,c", "1,2", "1,2,3,4", "0,32,64", "-1,32,64", "1,32,33", "1,32,0", LARGE),
    *("\u00e9\u2603", "\udcff", "x\x00y", "..", "/dev/null", "cuda:99", "meta", "gfx", "sm_", "gfx950;"),
)  # fmt: skip
CASES: dict[str, tuple[list[str], str, tuple[str, ...]]] = {
    "bench --shape": (["bench", "--device", "cpu"], "--shape", ()),
    "bench --set": (["bench", "--device", "cpu"], "--set", ()),
    "bench --device": (["bench"], "--device", ()),
    "bench --a-format": (["bench", "--device", "cpu"], "--a-format", ()),
    "bench --route": (["bench", "--device", "cpu"], "--route", ()),
    "bench --seconds": (["bench", "--device", "cpu"], "--seconds", ("0", "0.5", "1e3", "9" * 30)),
    "bench --metric": (["bench"], "--metric", ()),
    "tune --shape": (["tune", "-o", "none/t.json", "--device", "cpu"], "--shape", ()),
    "tune --device": (["tune", "-o", "none/t.json"], "--device", ()),
    "tune --a-format": (["tune", "-o", "none/t.json", "--device", "cpu"], "--a-format", ()),
    "tune --route": (["tune", "-o", "none/t.json", "--device", "cpu"], "--route", ()),
    "tune --seconds": (["tune", "-o", "none/t.json", "--device", "cpu"], "--seconds", ("0", "0.5", "1e3", "9" * 30)),
    "doctor --shape": (["doctor", "--verify", "--device", "cpu"], "--shape", ()),
    "doctor --device": (["doctor", "--verify"], "--device", ()),
    "doctor --seconds": (["doctor", "--verify"], "--seconds", ("0", "0.5", "1e3", "9" * 30)),
    "doctor --budget": (["doctor", "--verify", "--shape", "1,1,32"], "--budget", ("0", "0.5", "1e3", "9" * 30)),
    "explain m": (["explain"], "M N K", ()),
    "explain n": (["explain", "1"], "M N K", ()),
    "explain k": (["explain", "1", "1"], "M N K", ()),
    "explain --shape": (["explain"], "--shape", (LARGE,)),
    "explain --device": (["explain", "4", "64", "64"], "--device", ()),
    "explain --a-format": (["explain", "4", "64", "64"], "--a-format", ()),
    "explain --route": (["explain", "4", "64", "64"], "--route", ()),
    "build --shape": (["build"], "--shape", (LARGE,)),
    "build --arch": (["build"], "--arch", ()),
    "submission --form": (["submission", "-o", "none/s.py"], "--form", ()),
    "dispatcher names --op": (["dispatcher", "names"], "--op", ()),
    "dispatcher names --arch": (["dispatcher", "names"], "--arch", ()),
    "dispatcher build --op": (["dispatcher", "build"], "--op", ()),
    "dispatcher build --arch": (["dispatcher", "build"], "--arch", ()),
    "dispatcher build --source": (["dispatcher", "build"], "--source", ()),
    "dispatcher build --jobs": (["dispatcher", "build"], "--jobs", ()),
    "dispatcher selftest --op": (["dispatcher", "selftest"], "--op", ()),
    "dispatcher selftest --arch": (["dispatcher", "selftest"], "--arch", ()),
    "dispatcher selftest --source": (["dispatcher", "selftest"], "--source", ()),
    "dispatcher selftest --jobs": (["dispatcher", "selftest"], "--jobs", ()),
    "plot --map": (["plot", "-o", "none"], "--map", ("gfx950",)),
    "parity --shape": (["parity", "route:auto", "peer:torch_mm", "--device", "cpu"], "--shape", ()),
    "parity --set": (["parity", "route:auto", "peer:torch_mm", "--device", "cpu"], "--set", ()),
    "parity --device": (["parity", "route:auto", "peer:torch_mm"], "--device", ()),
    "parity --time": (["parity", "route:auto", "peer:torch_mm"], "--time", ()),
    "parity --warm-up": (["parity", "route:auto", "peer:torch_mm"], "--warm-up", ()),
    "parity --repeats": (["parity", "route:auto", "peer:torch_mm"], "--repeats", ()),
}
"""What is called, the option or argument that gets hostile values, and those of them that it may take."""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command line as the ``mxgemm`` command does, and return status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["mxgemm", *arguments])
        code = mxgemm_cli.main()
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_hostile_values_are_refused_by_name(case: str, call: Call, tmp_path: Path) -> None:
    arguments, option, taken = CASES[case]
    for value in HOSTILE:
        if value in taken:
            continue
        line = [*arguments, option, value]
        if not option.startswith("-"):
            line = ["explain", "--", *arguments[1:], value, *["64"] * (3 - len(arguments))]
        code, out, err = call(*line)
        assert code == 2, (value[:50], out, err)
        assert out == ""
        named = option.lstrip("-").replace("-", "_")
        by_the_library = f"{case.split()[1]}: got" in err  # a size beyond what a tensor has
        assert named in err.replace("-", "_") or by_the_library, (value[:50], err[:500])
        assert len(err) < 20_000 + len(value)
    assert not list(tmp_path.iterdir())


def test_values_come_out_as_they_went_in(call: Call) -> None:
    for text in ("[/x]", "[red]z[/red]", ":smile:", "[link=x]", "\\[", "{0}"):
        for arguments in (
            ["bench", "--shape", text],
            ["bench", "--set", text],
            ["explain", "4", "64", "64", "--device", text],
        ):
            assert repr(text) in call(*arguments)[2]
        assert f"{text}.json" in call("bench", "--compare", f"{text}.json", "other")[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
@pytest.mark.parametrize(
    "command", [["bench"], ["tune", "-o", "t.json"], ["doctor", "--verify"], ["explain", "4", "64", "64"]]
)
def test_a_gpu_that_is_not_there(command: list[str], device: str, call: Call) -> None:
    code, _, err = call(*command, "--device", device)
    assert code == 2
    assert f"got {device}, want a GPU that is here: torch sees none" in err


def test_help_keeps_its_brackets(call: Call) -> None:
    assert "(mxgemm[bench])" in " ".join(call("bench", "--help")[1].split())


def test_what_fails_is_one_line_and_status_1(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _, err = call("explain", "4", "64", "64", "--device", "cpu", "--route", "fused_asm")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("mxgemm: route 'fused_asm' cannot run: arch is cpu")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("MXGEMM_CK_INCLUDE", raising=False)
    code, _, err = call("dispatcher", "build", "--source", "ck_tile")
    assert (code, err.count("\n")) == (1, 1)
    assert "MXGEMM_CK_INCLUDE" in err
    (tmp_path / "file").touch()
    for arguments in (
        ["submission", "-o", "file/s.py"],
        ["submission", "-o", "."],
    ):
        code, _, err = call(*arguments)
        assert (code, err.count("\n")) == (1, 1), err
        assert arguments[-1] in err


@pytest.mark.parametrize(
    "error, status",
    [
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device", "/x/[y]"), 1),
        (PermissionError(13, "Permission denied", "/x"), 1),
        (MemoryError("no memory"), 1),
        (torch.OutOfMemoryError("CUDA out of memory"), 1),
        (RouteUnavailable("a", Refusal("arch", "b", "c")), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_failure(error: BaseException, status: int, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("mxgemm.cli.explain.explain_shape", fail)
    code, out, err = call("explain", "4", "64", "64")
    assert (code, out) == (status, "")
    assert err == ("" if status == 130 else f"mxgemm: {error}\n")


@pytest.mark.parametrize(
    "body",
    ["None < 3", "int('x')", "{}[0]", "None.x", "assert 0", "torch.zeros(2) @ torch.zeros(3)", "torch.device(())"],
)
def test_a_fault_keeps_its_traceback(body: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = ModuleType("mxgemm.faulty")
    exec(f"import torch\ndef explain(*_, **__):\n    {body}", inside.__dict__)
    monkeypatch.setattr("mxgemm.cli.explain.explain_shape", inside.explain)
    monkeypatch.setattr("sys.argv", ["mxgemm", "explain", "4", "64", "64"])
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError, AssertionError, RuntimeError)):
        mxgemm_cli.main()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``bench --json`` writes of two sizes."""
    path = tmp_path_factory.mktemp("run") / "run.json"
    shapes = ["--shape", "3,32,64", "--shape", "4,32,64"]
    output("bench", *shapes, "--device", "cpu", "--seconds", "0", "--json", path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


WRONG_VALUES = (None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**400, "x", "[/x]", [], {}, [[]], [{}], {"us": 1})


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inner for place in ((*path, key), *_places(item, (*path, key)))]


def _mutant(document: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a run with one value left out, or replaced by another."""
    mutant = deepcopy(document)
    *path, last = draw.choice(_places(document))
    inner: Any = mutant
    for key in path:
        inner = inner[key]
    wrong = draw.choice((*WRONG_VALUES, ...))
    if wrong is ...:
        del inner[last]
    else:
        inner[last] = wrong
    return mutant


def test_damaged_runs_are_refused_or_compared(document: dict[str, Any], call: Call, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(document))
    assert call("bench", "--compare", str(good), str(good))[0] == 0
    draw = random.Random(0)
    refused = 0
    for number in range(200):
        bad.write_text(json.dumps(_mutant(document, draw)))
        pair = (bad, good) if number % 2 else (good, bad)
        code, _, err = call("bench", "--compare", *map(str, pair))
        assert code in (0, 1, 2)
        assert (code == 2) == ("bad.json" in err), err
        refused += code == 2
    assert refused > 40


def test_files_that_hold_no_run(document: dict[str, Any], call: Call, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "[bad].json"
    text = json.dumps(document)
    good.write_text(text)
    draw = random.Random(0)
    cut = [text[: draw.randrange(len(text))].encode() for _ in range(20)]
    for data in (b"", b"\xff\xfe", b"\x00", b"[" * 100_000, b"9" * 5000, b"{}", b"[]", b"null", b'{"kind": []}', *cut):
        bad.write_bytes(data)
        code, _, err = call("bench", "--compare", str(bad), str(good))
        assert code == 2
        assert str(bad) in err
    for path in (tmp_path, tmp_path / "none.json", Path("x" * 5000), tmp_path / "x\x00y"):
        code, _, err = call("bench", "--compare", str(good), str(path))
        assert code == 2
        assert str(path)[:200] in err or "--compare" in err


def _shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LANG", "LC_ALL")}
    line = command.replace("mxgemm ", f"{sys.executable} -m mxgemm ", 1)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=ROOT, env=variables | environment, capture_output=True, text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip


@pytest.mark.parametrize(
    "command, environment, codes, said",
    [
        ("mxgemm dispatcher names | head -1", {}, (0, 1), "gemm_"),
        ("mxgemm explain 4 64 64 >&-", {}, (0,), ""),
        ("mxgemm explain 4 64 64 >/dev/full", {}, (1,), "No space left"),
        ("mxgemm bench --help >/dev/full", {}, (1,), "No space left"),
        ("mxgemm bench --compare \u00e9\u2603 x", {"PYTHONIOENCODING": "ascii"}, (2,), "\\xe9\\u2603"),
        ("mxgemm bench --compare $'\\xff' x", {"LC_ALL": "C", "PYTHONUTF8": "0"}, (2,), "\\udcff"),
        ("mxgemm doctor", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "20"}, (0,), "HIP"),
        ("mxgemm bench --help", {"COLUMNS": "20"}, (0,), "--shape"),
        ("mxgemm explain 4 64 64", {"COLUMNS": "0"}, (0,), "reference"),
    ],
)
@pytest.mark.slow
def test_places_that_cannot_be_written_to(
    command: str, environment: dict[str, str], codes: tuple[int, ...], said: str
) -> None:
    done = _shell(command, **environment)
    text = done.stdout + done.stderr
    assert done.returncode in codes, text
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    assert said in text


def test_an_interrupt_ends_with_130_and_no_traceback() -> None:
    code = (
        "import os, signal, threading, sys\n"
        "import time, mxgemm_cli, mxgemm.cli.bench, mxgemm.measure\n"
        "mxgemm.measure.run = lambda *_, **__: time.sleep(60)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "sys.argv = ['mxgemm', 'bench', '--device', 'cpu', '--seconds', '60', '--shape', '4,64,64']\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "sys.exit(mxgemm_cli.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_that_torch_turned_into_another_error_is_one() -> None:
    """As its conversions of Python objects do, now and then: a Ctrl-C within them came out as a damaged file."""
    code = (
        "import signal, sys, mxgemm_cli, mxgemm.cli.bench, mxgemm.measure\n"
        "def interrupted(*_, **__):\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        raise ValueError('a file is damaged') from None\n"
        "mxgemm.measure.run = interrupted\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = ['mxgemm', 'bench', '--device', 'cpu', '--shape', '4,64,64']\n"
        "status = mxgemm_cli.main()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
