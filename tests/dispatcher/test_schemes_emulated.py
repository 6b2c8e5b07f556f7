"""Native libraries of the schemes with scales by groups, whole, in the gfx950 emulator, against exact products."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfx950emu.api import load
from gfx950emu.hazards import find
from mxgemm.dispatcher.execution import EmulatorExecution
from mxgemm.dispatcher.native_kernel import blocks, wanted_instruction
from tests.dispatcher.native_libraries import CONFIGS, built, description
from tests.dispatcher.scheme_cases import REST, SCHEMES, SEVERAL_AQUANT, drawn
from tests.emulator import require_objdump


def sizes(name: str) -> list[tuple[int, int, int]]:
    """M of 1 and 33 (2 and 34 where two rows of A share a byte), N and K at the tile, at their least and beyond."""
    config = CONFIGS[name][0]
    block = blocks(config, "gfx950")
    paired = "i4-c" in name
    few, many = (2, 34) if paired else (1, 33)
    beyond = (many, block.n + 40, 2 * block.k + 32)
    return [(few, block.n, block.k), (many, 1, 32), (few, 2, 32), beyond]


@pytest.mark.parametrize("name", [*SCHEMES, *REST])
def test_product(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    require_objdump()
    library: Path = built(name, tmp_path_factory)
    config = CONFIGS[name][0].pinned("gfx950")
    for variant in description(library)["variants"]:
        assert set(variant["matrix_instructions"]) == {wanted_instruction(config, "gfx950")}
        assert variant["scratch_bytes"] == 0
        assert variant["spills"] == 0 or variant["name"] != "even"  # scalars of the others, to lanes of registers
    place = EmulatorExecution()
    for m, n, k in sizes(name):
        case = drawn(config, "gfx950", m, n, k, seed=m + n + k)
        out, _ = place.run(config, library, case.inputs)
        accuracy = case.judge(out)
        assert accuracy.passed, (m, n, k, accuracy)


@pytest.mark.parametrize("name", ["a-fp8-rrr", "a-bf8-ccr", "mx-bf16bf16"])
def test_sizes_that_fill_the_tile(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The variant without masks, of a column-major A with M at the tile too."""
    library = built(name, tmp_path_factory)
    config = CONFIGS[name][0].pinned("gfx950")
    block = blocks(config, "gfx950")
    case = drawn(SCHEMES[name], "gfx950", 2 * block.m, 2 * block.n, 2 * block.k)
    out, _ = EmulatorExecution().run(config, library, case.inputs)
    assert case.judge(out).passed


@pytest.mark.parametrize("name", SEVERAL_AQUANT)
def test_several_problems_wait_for_their_sums(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On every path from a matrix instruction to what reads its sums, in each variant."""
    require_objdump()
    library = built(name, tmp_path_factory)
    for variant in description(library)["variants"]:
        program = load((library.parent / f"{variant['name']}.hsaco").read_bytes())
        for kernel in program.kernels.values():
            assert find(program, kernel.entry) == []
