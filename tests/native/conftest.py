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


@pytest.fixture
def double(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    pointers = stub.address(library.launch), stub.address(library.is_capturing)
    vendor = stub.address(library.multiply), stub.address(library.describe)
    monkeypatch.setattr(module, "_driver_functions", lambda: pointers)
    monkeypatch.setattr(module, "_vendor_functions", lambda: vendor)
    product = stub.address(module._torch_library("cpu").aoti_torch_cpu_mm_out)
    monkeypatch.setattr(module, "_torch_product", lambda: product)
    monkeypatch.setattr(steady, "quick", None)
    for name in ("launches", "fails_at", "capturing", "refused"):
        counter(library, name).value = 0
    module._load.cache_clear()
    workspace.clear()
    yield library
    module._load.cache_clear()
    workspace.clear()
