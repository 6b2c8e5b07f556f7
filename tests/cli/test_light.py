"""What a line says without work is said without torch; what options may be is what the library has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mxgemm_cli
from mxgemm import checkpoints, measure
from mxgemm.checkpoints.convert import SHARD_BYTES
from mxgemm.device import KNOWN_MACHINES
from mxgemm.dispatcher import OPERATIONS
from mxgemm.dispatcher.build import SOURCES
from mxgemm.measure import compare, forms, parity
from mxgemm.measure.moe_sets import MOE_SETS
from mxgemm.mx.formats import ACTIVATION_FORMATS, SCALE_ROUNDINGS
from mxgemm.mx.tensor import FLOAT_DTYPES
from mxgemm.routes import ROUTES
from mxgemm.submission.generate import FORMS
from mxgemm_cli import names, parser, values

ROOT = Path(__file__).resolve().parents[2]
SHELL = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")}
LINES = [
    *(["--help"], ["--version"], [], ["bench", "--help"], ["dispatcher", "selftest", "--help"], ["nonsense"]),
    *(["bench", "--shape", "3"], ["explain", "1", "1", "33"], ["bench", "--route", "quantum"]),
    *(["tune", "--rows", "4"], ["tune", "--dry-run", "-o", "x"]),
    *(["bench", "--set", "moon"], ["doctor", "--json", "x"], ["plot", "-o", "p"]),
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_answers_without_torch(line: list[str]) -> None:
    code = (
        "import sys, mxgemm_cli\n"
        f"status = mxgemm_cli.main({line!r})\n"
        "assert not {'torch', 'numpy', 'mxgemm', 'rich'} & set(sys.modules)\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=SHELL, capture_output=True, text=True)
    status = 0 if {"--help", "--version"} & set(line) else 2
    assert done.returncode == status, done.stderr
    assert bool(done.stdout) == (status == 0)
    assert bool(done.stderr) == (status == 2)
    assert all(len(text) <= 80 for text in done.stdout.splitlines())


@pytest.mark.parametrize("line", [["--version"], ["tune", "--help"], ["bench", "--shape", "3"]], ids=" ".join)
def test_the_module_answers_without_torch_too(line: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "mxgemm", *line]
    done = subprocess.run(command, cwd=ROOT, env=SHELL, capture_output=True, text=True)
    assert done.returncode == (2 if "--shape" in line else 0)
    assert "mxgemm_cli.parser" in done.stderr
    assert "torch" not in done.stderr
    assert "numpy" not in done.stderr


def test_importing_mxgemm_reads_no_command_line() -> None:
    """Another program's ``-m`` and options are its own."""
    code = "import sys, mxgemm, torch; torch.ops.mxgemm.gemm; assert 'mxgemm_cli' not in sys.modules"
    command = [sys.executable, "-c", f"import sys; sys.argv = ['-m', '--version']; {code}"]
    assert subprocess.run(command, cwd=ROOT, env=SHELL, capture_output=True, text=True).returncode == 0


def test_names_are_the_librarys() -> None:
    assert tuple(ROUTES) == names.ROUTES
    assert names.ACTIVATION_FORMATS == ACTIVATION_FORMATS
    assert names.METRICS == compare.METRICS
    assert tuple(FORMS) == names.FORMS
    assert forms.FORMS == names.WEIGHT_FORMS
    assert tuple(OPERATIONS) == names.OPERATIONS
    assert names.SOURCES == SOURCES
    assert tuple(measure.PEERS) == names.PEERS
    assert tuple(KNOWN_MACHINES) == names.MACHINES
    assert tuple(checkpoints.FORMATS) == names.CHECKPOINTS
    assert names.SCALE_ROUNDINGS == SCALE_ROUNDINGS
    assert tuple(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES) == names.DTYPES
    assert tuple(values.shape_sets()) == tuple(measure.SETS)
    assert tuple(values.moe_sets()) == tuple(MOE_SETS)
    options = parser.read(["parity", "route:auto", "peer:torch_mm"])
    assert (options.warm_up, options.repeats) == (parity.WARM_UP, parity.REPEATS)
    assert parser.read(["bench"]).seconds == measure.session.DEFAULT_EFFORT.seconds
    assert parser.read(["convert", "a", "b", "--to", "quark"]).shard_size == SHARD_BYTES


@pytest.mark.parametrize("command", [["bench"], ["explain", "4,64,64"], ["tune", "-o", "t"], ["parity", "a", "b"]])
def test_one_pair_of_flags_says_how_the_weight_comes(command: list[str]) -> None:
    assert parser.read(command).prepared is True
    assert parser.read([*command, "--prepared"]).prepared is True
    assert parser.read([*command, "--raw"]).prepared is False


def test_every_command_is_a_file() -> None:
    files = {path.stem for path in (ROOT / "mxgemm" / "cli").glob("*.py")}
    no_commands = {"__init__", "app", "dispatcher_kernels", "model_sizes", "sizes", "terminal"}
    assert set(parser._parser()[1]) == files - no_commands


def test_status_of_a_line_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert mxgemm_cli.main([]) == mxgemm_cli.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert "explain" in said.err
