"""The HIP kernel for many rows on whole sizes and its largest block: what takes long in the emulator."""

from __future__ import annotations

import pytest

from evidence.mx_cases import MXRun
from mxgemm.hip.mx import MXConfig
from mxgemm.measure import LEADERBOARD
from mxgemm.mx.formats import SCALE_ROUNDINGS
from tests.emulator import require_hip_compiler, require_objdump
from tests.evidence.test_hip_mx_emulated import case, check, mutants


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_objdump()
    require_hip_compiler()


@pytest.mark.parametrize("shape", LEADERBOARD, ids=str)
def test_leaderboard_shapes(shape: tuple[int, int, int]) -> None:
    check(MXRun(case(*shape)))


@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
def test_many_steps(rounding: str) -> None:
    check(MXRun(case(300, 288, 2176, rounding=rounding, awkward=True, bias=True), MXConfig()))


def test_a_missing_wait_or_barrier_is_noticed() -> None:
    found = mutants(MXRun(case(200, 256, 1024, out_dtype="float32"), MXConfig()))
    assert found.share >= 0.8, found
