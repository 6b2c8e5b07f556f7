"""What commands write fits where it is written: tables, times, progress."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mxgemm.cli import terminal
from mxgemm.measure import text
from mxgemm.measure.layout import Table
from mxgemm.problem import Config
from mxgemm.triton.tile_config import TileConfig
from tests.command import command

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}


def widest(output: str) -> int:
    return max(map(len, output.splitlines()))


@pytest.mark.parametrize(
    "us, said",
    [
        (None, ""), (0.0123, "0.0123 us"), (0.85, "0.850 us"), (20.34, "20.3 us"), (868, "868 us"), (999.6, "1.00 ms"),
        (868352, "868 ms"), (1_234_567, "1.23 s"), (2.5e9, "2500 s"),
    ],
)  # fmt: skip
def test_times_have_three_digits_and_a_unit(us: float | None, said: str) -> None:
    assert text.duration(us) == said


def record(size: tuple[int, int, int], name: str) -> dict[str, Any]:
    time = {"us": 123.4, "low": 120.0, "high": 130.0}
    return {
        **dict(zip("mnk", size, strict=True)), "kind": "route", "name": name,
        "a_format": "e2m1", "form": "fast", "chosen": True, "statement": "", "floor_us": 0.8512,
        "device": time, "eager": time, "host": time, "ratio_to_floor": 144.9,
        "accuracy": {"norm": 1.234e-3, "passed": True},
    }  # fmt: skip


def test_the_widest_table_of_a_gpu_fits_80_columns() -> None:
    sizes = [(4096, 57344, 8192), (16, 2112, 7168)]
    rows = text.rows({"results": [record(size, name) for size in sizes for name in ("triton_kernel", "a16wfp4")]})
    table = Table(text.COLUMNS, rows, text.LEFT, ("what",), text.SHARED)
    lines = ["".join(line).rstrip() for line in table.lines(80)]
    assert widest("\n".join(lines)) <= 80
    assert lines[1] == "4096,57344,8192  floor 0.851 us"
    assert lines[2].split() == ["triton_kernel*", *["123", "us"], "8.1%", *["123", "us"] * 2, "145", "1.23e-03", "pass"]
    assert len(lines) == 1 + 2 * 3
    flat = ["".join(line) for line in table.lines(200)]
    assert len(flat) == 1 + 4
    assert len({len(line) for line in flat}) == 1, "columns are aligned"


def test_a_wrapped_cell_takes_lines_of_its_own() -> None:
    table = Table(("a", "b"), [("x", "one two three four five six"), ("y", "seven")], ("a",), ("b",))
    assert ["".join(line).rstrip() for line in table.lines(19)] == [
        "a  b", "x  one two three", "   four five six", "y  seven",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        ["doctor"],
        ["explain", "16", "2112", "7168", "--device", "gfx950"],
        ["explain", "4,2880,512", "--device", "sm_90", "--raw"],
        ["bench", "--shape", "3,32,64", "--shape", "1,2112,96", "--device", "cpu", "--seconds", "0", "--peers"],
    ],
    ids=lambda line: line[0],
)
def test_tables_fit_a_pipe(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    done = command(*line)
    assert done.code == 0, done.text
    table = done.out.partition("measured ceilings")[0].partition("\nmissing ")[0]
    assert widest(table) <= 80
    assert "=," not in done.out


def test_a_wider_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert 80 < widest(command("explain", "16", "2112", "7168", "--device", "gfx950").out) <= 150


def test_a_configuration_names_no_empty_field() -> None:
    assert str(Config()) == "no options"
    assert "cache" not in str(TileConfig())
    assert "one_launch" not in str(TileConfig())
    assert "block_m=16" in str(TileConfig())
    assert str(TileConfig(cache=".cg", one_launch=True)).endswith(
        "one_launch=True, num_warps=4, num_stages=2, cache=.cg"
    )


def test_a_pipe_gets_a_line_a_size() -> None:
    sizes = ["--shape", "3,32,64", "--shape", "4,32,64", "--device", "cpu"]
    for line in (
        ["bench", *sizes, "--seconds", "0"],
        ["doctor", "--verify", *sizes, "--seconds", "0", "--raw"],
        ["parity", "route:auto", "route:reference", *sizes, "--warm-up", "1", "--repeats", "2"],
    ):
        done = command(*line)
        assert done.code == 0, done.text
        assert done.err.splitlines() == ["[1/2] 3,32,64", "[2/2] 4,32,64"]


def test_a_pipe_hears_of_long_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    with terminal.progress(2) as shown:
        shown.now("first")
        now[0] = 21.0
        shown.now("second")
        shown.now("third")
        shown.done("a size")
    assert capsys.readouterr().err == "[0/2] second ...\n[1/2] a size\n"


def in_a_terminal(code: str) -> str:
    """Run Python code whose output and errors go to a terminal, and return what that shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = io.BytesIO()
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not data:
            break
        shown.write(data)
    os.close(ours)
    assert process.wait() == 0, shown.getvalue().decode()
    return shown.getvalue().decode()


USES = """
from mxgemm.cli import terminal
with terminal.progress(2) as shown:
    shown.now("[/x] one")
    shown.done("two")
terminal.say_table(("a", "b"), [("[/x]", "pass")], left=("a",))
"""


def test_a_terminal_with_rich_has_colours() -> None:
    pytest.importorskip("rich")
    shown = in_a_terminal(USES)
    assert "\x1b[32mpass" in shown
    assert "[/x]" in shown
    assert "1/2" in shown


def test_a_terminal_without_rich_has_plain_text() -> None:
    shown = in_a_terminal(f"import sys\nsys.modules['rich'] = None\n{USES}")
    assert "\r\x1b[K[0/2] [/x] one\r\x1b[K[1/2] two\r\x1b[K" in shown
    assert shown.endswith("a        b\r\n[/x]  pass\r\n")
