"""What tests/conftest.py promises of ids, order and reports."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import id_refusal

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import logging
import pytest

@pytest.mark.parametrize("i", range(20))
def test_number(i):
    pass

def test_of_a_name_that_is_no_utf_8():
    logging.getLogger().warning("logged: \\udcff")
    assert "raised: \\udcff" == ""
"""


@pytest.mark.parametrize(
    "nodeid, refusal",
    [
        ("tests/test_a.py::test_b[1-2.5-e2m1]", "None"),
        ("tests/test_a.py::test_b[v_cmp_lt_i64 vcc, 0xffffffff]", "None"),
        ("tests/test_a.py::test_b[\udcff]", "printable ASCII"),
        ("tests/test_a.py::test_b[\u00e9]", "printable ASCII"),
        ("tests/test_a.py::test_b[a\nb]", "printable ASCII"),
        ("tests/test_a.py::test_b[<function f at 0x7f31c0a4b6d0>]", "an address"),
    ],
    ids=range(6),
)
def test_ids(nodeid: str, refusal: str) -> None:
    assert refusal in str(id_refusal(nodeid))


@pytest.mark.slow
def test_order_and_reports_in_a_worker(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_here.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", "1", "--shuffle", "3", "."]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment | {"PYTHONPATH": str(ROOT)}
    )
    assert "1 failed, 20 passed" in done.stdout, done.stdout + done.stderr
    assert "logged: \\udcff" in done.stdout
    assert "raised: \\udcff" in done.stdout
    order = [int(i) for i in re.findall(r"PASSED test_here\.py::test_number\[(\d+)\]", done.stdout)]
    assert order != sorted(order) == list(range(20))
