"""What holds for every test: where kernels run, what `make check` leaves out, ids and reports that can be sent."""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Generator
from typing import Final

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # which must be chosen before import
os.environ["MXGEMM_TABLES"] = ""  # no test shall depend on what somebody has tuned on this machine
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # triton 3.9 warns unless it is set
with contextlib.suppress(ImportError):
    import triton  # noqa: F401  # now, ahead of tests that choose otherwise for a while: its own functions would keep that

ADDRESS: Final = re.compile(r"\bat 0x[0-9a-f]+")
SLOW_FOLDERS: Final = ("dispatcher", "evidence", "gfx950emu", "hip", "submission")
"""Compilers and the emulator: minutes, and not what a change of the library mostly breaks."""
EXHAUSTIVE_FILES: Final = (
    "cpu/test_kernels.py",
    "dispatcher/test_schemes_emulated.py",
    "evidence/test_hip_mx_large.py",
    "experts/test_compiled.py",
    "experts/test_grouped.py",
    "experts/test_moe.py",
    "routes/test_quant_gemm_mx.py",
    "scaled/test_compiled.py",
    "scaled/test_emulated.py",
    "scaled/test_quant_gemm.py",
)
"""Whose slow tests show for every type, layout or instruction what others show for some: `make test-all` runs them.

So it does what is marked exhaustive where it is (tests/marks.py)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order, the same for a seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        refusal = id_refusal(item.nodeid)
        if refusal:
            raise pytest.UsageError(refusal)
        if item.path.parent.name in SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)
        if "slow" in item.keywords and item.path.as_posix().endswith(EXHAUSTIVE_FILES):
            item.add_marker(pytest.mark.exhaustive)
        if "exhaustive" in item.keywords:
            item.add_marker(pytest.mark.slow)
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA or ROCm device; torch sees none"))
    seed = config.getoption("shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)


def id_refusal(nodeid: str) -> str | None:
    """Say what pytest-xdist, whose workers must collect the same printable ids, would trip over, or None."""
    if not (nodeid.isascii() and nodeid.isprintable()):
        return f"the id {nodeid!a} is not printable ASCII: give the parameter an id"
    if ADDRESS.search(nodeid):
        return f"the id {nodeid} has an address, another one in each process: give the parameter an id"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is no UTF-8, as in a folder's name that was logged: a worker of pytest-xdist dies of sending it."""
    report = yield
    report.sections = [(title, escaped(text)) for title, text in report.sections]
    failure = str(report.longrepr)
    if failure != escaped(failure):
        report.longrepr = escaped(failure)
    return report


def escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@pytest.fixture(autouse=True)
def _no_grad_and_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_table_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Nor where a test names tables of its own in ``MXGEMM_TABLES``."""
    from mxgemm.routing import tables

    nowhere = tmp_path_factory.getbasetemp() / "no cache"
    with pytest.MonkeyPatch.context() as patch:  # the tests' own is theirs to undo, before other fixtures end
        patch.setattr(tables, "own_path", lambda arch: nowhere / f"{arch}.json")
        yield
