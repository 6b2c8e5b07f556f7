"""``mxgemm parity so: so:`` without a GPU: both kernels in the emulator, outputs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import command, output
from tests.dispatcher.native_libraries import built
from tests.emulator import require_objdump


@pytest.mark.slow
@pytest.mark.parametrize("a, b, most", [("b-fp8", "grouped-b", 0.12), ("mx-bf16fp4", "mx-bf16bf16", 0.0)])
def test_two_libraries_are_compared(a: str, b: str, most: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    require_objdump()
    left, right = (built(name, tmp_path_factory) for name in (a, b))
    text = output("parity", f"so:{left}", f"so:{right}", "--shape", "3,32,128", "--device", "cpu")
    assert "(emulated)" in text
    assert "outputs alone were compared" in text
    (row,) = (line for line in text.splitlines() if line.startswith("3,32,128"))
    difference = float(row.split()[-1])
    assert difference <= most  # of the second pair 0: MXFP4 weights are exact in bf16


@pytest.mark.slow
def test_a_kernel_that_no_emulator_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = built("rowcol-fp8-gfx942", tmp_path_factory)
    done = command("parity", f"so:{path}", f"so:{path}", "--shape", "3,32,128", "--device", "cpu")
    assert done.code == 2
    assert "want an AMD GPU" in done.err
    assert "the emulator runs native kernels for gfx950" in done.err
