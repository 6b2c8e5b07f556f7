"""A driver without a GPU, and the steady call in C told of it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from mxgemm import steady, workspace
from mxgemm.native import build, module
from tests.native import stub
from tests.native.stub import (
    counter,
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        build.built()
    except build.BuildError as error:
        pytest.skip(str(error))
    return stub.build(tmp_path_factory.mktemp("double"))


@pytest.fixture(params=["CUDA"])
def double(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ctypes.CDLL]:
    """The driver of CUDA, or of HIP where a test asks for it."""
    launches = (0, stub.address(library.launch_on_amd)) if request.param == "HIP" else (stub.address(library.launch), 0)
    pointers = *launches, stub.address(library.is_capturing)
    vendor = stub.address(library.multiply), stub.address(library.describe)
    monkeypatch.setattr(module, "_driver_functions", lambda: pointers)
    monkeypatch.setattr(module, "_vendor_functions", lambda: vendor)
    monkeypatch.setattr(steady, "quick", None)
    for name in ("launches", "fails_at", "capturing", "refused"):
        counter(library, name).value = 0
    module._load.cache_clear()
    workspace.clear()
    yield library
    module._load.cache_clear()
    workspace.clear()
