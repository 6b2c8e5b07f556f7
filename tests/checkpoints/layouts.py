"""Every layout of a file in tests, as functions that make one: ``MAKERS[name](path, weights, plain)``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mxgemm import checkpoints
from mxgemm.checkpoints import Checkpoint
from tests.checkpoints import made
from tests.checkpoints.made import Weight, weight

Maker = Callable[[Path, dict[str, Weight], dict[str, np.ndarray]], Path]


def _torchao(is_swizzled: bool) -> Maker:
    def make(path: Path, weights: dict[str, Weight], plain: dict[str, np.ndarray]) -> Path:
        fields = made.torchao_metadata(list(weights), list(plain), is_swizzled)
        return made.folder(path, {**made.torchao(weights, is_swizzled), **plain}, {}, fields)

    return make


def _gguf(path: Path, weights: dict[str, Weight], plain: dict[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return made.gguf_of(path.with_suffix(".gguf"), weights, plain)


MAKERS: dict[str, Maker] = {
    "quark": lambda path, w, plain: made.folder(path, {**made.quark(w), **plain}, made.quark_config()),
    "quark a4": lambda path, w, plain: made.folder(path, {**made.quark(w), **plain}, made.quark_config("fp4")),
    "compressed-tensors": lambda path, w, plain: made.folder(
        path, {**made.compressed_tensors(w), **plain}, made.compressed_tensors_config()
    ),
    "compressed-tensors 0.13": lambda path, w, plain: made.folder(
        path, {**made.compressed_tensors(w, bias=125), **plain}, made.compressed_tensors_config(version="0.13.0")
    ),
    "gpt-oss": lambda path, w, plain: made.folder(path, {**made.gpt_oss(w), **plain}, made.GPT_OSS_CONFIG),
    "torchao": _torchao(False),
    "torchao-swizzled": _torchao(True),
    "gguf": _gguf,
}


def skip_without(name: str) -> None:
    """Skip what needs a package that is not here."""
    if name == "gguf" and importlib.util.find_spec("gguf") is None:
        pytest.skip("GGUF files need the gguf package, which is not installed (mxgemm[test] has it)")


SHARDS = {f"l{i}.weight": weight(32, 64, seed=i) for i in range(6)}
ONE = 32 * 34


def sharded_source(path: Path) -> Checkpoint:
    return checkpoints.open(MAKERS["quark"](path, SHARDS, {}))
