"""The entry point of vLLM's plug-in where vLLM is another one, broken, or not there."""

from __future__ import annotations

import logging
import re
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

from mxgemm import notices
from mxgemm.integrations import vllm as plugin

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def _says_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", {})
    monkeypatch.delenv("MXGEMM_VLLM_UNTESTED", raising=False)


def vllm(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Stand in for a package ``vllm`` that has a version and nothing else."""
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    module = types.ModuleType("vllm")
    module.__version__ = version
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.delitem(sys.modules, "mxgemm.integrations.vllm_kernel", raising=False)


def test_the_entry_point_is_the_function() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (found,) = re.findall(
        r'^\[project.entry-points."vllm.general_plugins"\]\nmxgemm = "(.*):(.*)"$', text, re.MULTILINE
    )
    assert getattr(import_module(found[0]), found[1]) is plugin.register


def test_another_version_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm(monkeypatch, "0.31.0")
    plugin.register()
    plugin.register()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "vLLM is 0.31.0; tested with 0.32.0" in record.getMessage()


@pytest.mark.parametrize("version, untested", [("0.32.0", ""), ("0.32.0+cpu", ""), ("0.40.0", "1")])
def test_a_vllm_of_another_shape_is_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, untested: str
) -> None:
    vllm(monkeypatch, version)
    monkeypatch.setenv("MXGEMM_VLLM_UNTESTED", untested)
    plugin.register()
    (record,) = caplog.records
    assert "goes on with its own kernels: ModuleNotFoundError: " in record.getMessage()


def test_no_vllm_is_no_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    plugin.register()
    assert "goes on with its own kernels" in caplog.text
