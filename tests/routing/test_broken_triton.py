"""A triton that is installed and cannot be imported counts as missing, with its error."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.measure import doctor
from mxgemm.triton import support


@pytest.mark.parametrize(
    "files, said",
    [
        ({"__init__.py": "raise OSError('libcuda.so.1: cannot open')"}, "OSError: libcuda.so.1: cannot open"),
        ({"__init__.py": "import a_module_that_is_nowhere"}, "No module named 'a_module_that_is_nowhere'"),
        ({"__init__.py": "raise RuntimeError('2 active drivers')"}, "RuntimeError: 2 active drivers"),
        ({"__init__.py": "def ("}, "SyntaxError"),
        ({"__init__.py": ""}, "has no attribute '__version__'"),
        ({"__init__.py": "__version__ = 'main'"}, "ValueError"),
        ({"notes.txt": ""}, "has no attribute '__version__'"),  # a folder that is no package at all
    ],
)
def test_a_triton_that_cannot_be_imported(
    files: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "triton").mkdir()
    for name, text in files.items():
        (tmp_path / "triton" / name).write_text(text)
    real = sys.path
    monkeypatch.setattr(sys, "path", [str(tmp_path), *([] if "notes.txt" in files else real)])
    support._find.cache_clear()
    try:
        refusal = support.triton_missing(KNOWN_MACHINES["sm_90"])
        version, failure = support.triton_version(), support.triton_failure()
    finally:
        monkeypatch.undo()
        support._find.cache_clear()
    assert version is None
    assert failure is not None
    assert said in failure
    assert refusal == Refusal(
        *("triton", f"installed, but cannot be imported ({failure})"),
        *("an intact triton >= 3.6 (pip install 'mxgemm[triton]')", "installation"),
    )


def test_a_module_in_the_place_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    support._find.cache_clear()
    try:
        assert "ValueError" in (support.triton_failure() or "")
        assert doctor._triton().startswith("cannot be imported (ValueError")
    finally:
        support._find.cache_clear()
