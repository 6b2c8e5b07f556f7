"""The prediction's sums and what it counts: L1 by how lanes lie, causes that add up, assumptions that have a source."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evidence.cross_compile import problem_of
from evidence.hip_isa import BEFORE, RESULTS
from evidence.predict import ASSUMPTIONS, Figures, predict, total
from gfx950emu.profile import l1_cycles

LANES = np.arange(64)
FIGURES = Figures(256, 4, 800.0, 100.0, 640.0, 64.0, 1, 1600, False, False)


@pytest.mark.parametrize(
    "size, addresses, cycles",
    [
        (16, 16 * LANES, 16),  # four lanes a piece
        (16, 4096 * (LANES % 16) + 64 * (LANES // 16), 64),  # a piece a lane: a quarter of the rate
        (16, 16 * LANES + 8, 32),  # each piece is touched twice
        (4, 4 * LANES, 4),
        (4, 0 * LANES, 4),
    ],
)
def test_cycles_of_l1(size: int, addresses: np.ndarray, cycles: int) -> None:
    assert l1_cycles(addresses.astype(np.uint64), size, LANES) == cycles


def test_the_causes_add_up() -> None:
    problem = problem_of(32, 4096, 512, "gfx950")
    parts = predict([FIGURES], problem)
    assert parts["issue"] == round(800 / 2400, 2)
    assert parts["memory"] == max(parts["hbm"], parts["l1"])
    assert total(parts) == round(sum(parts.values()) - parts["hbm"] - parts["l1"], 1)
    shared = Figures(257, 5, 800.0, 4000.0, 640.0, 64.0, 3, 1600, True, True)
    slower = predict([shared], problem)  # a CU has two workgroups, a SIMD three waves, all busy with matrices
    assert slower["issue"] == round(3 * 4000 / 2400, 2)
    assert slower["misses"] == parts["misses"]  # the other two trips are the hand-over's
    assert slower["handover"] == ASSUMPTIONS["handover"].value
    assert slower["arguments"] > parts["arguments"] == 0
    assert predict([FIGURES, FIGURES], problem)["dispatch"] == 2.5 + 1.5


def test_committed_predictions_name_their_sources() -> None:
    now, before = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, BEFORE))
    assert {row["name"] for row in now["assumptions"]} == set(ASSUMPTIONS)
    assert all(row["source"] for row in now["assumptions"])
    for row, old in zip(now["rows"], before["rows"], strict=True):
        assert row["predicted_us"] < old["predicted_us"]
        assert row["predicted_us"] == total(row["parts"])
