"""The snippets of this folder, compiled once and run by name, in normal and in strict mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gfx950emu import Stats, run_code_object
from tests.emulator import compile_hip

HIP = Path(__file__).parent / "hip"
Run = Callable[..., list[np.ndarray]]


@pytest.fixture(params=[False, True], ids=["normal", "strict"])
def strict(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def run(strict: bool) -> Run:
    """``run("memory", "atomics", *arrays, scalars=(n,), grid=4)`` -> the arrays afterwards."""

    def call(
        file: str, kernel: str, *arrays: np.ndarray, scalars: tuple[int, ...] = (), grid: int = 1, block: int = 64
    ) -> list[np.ndarray]:
        named = {f"array{i}": array for i, array in enumerate(arrays)}
        after, stats = run_code_object(
            compile_hip(HIP / f"{file}.hip"), kernel, (grid,), (block,), [*named, *scalars], named, strict=strict
        )
        assert isinstance(stats, Stats)
        return list(after.values())

    return call


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)
