"""What w4_mma compiles to for Hopper: nothing spilled, wide loads, and no more instructions than were counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mxgemm.cuda import w4_mma
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.problem import Problem
from tests.cuda.sass import disassemble

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

FAMILIES: tuple[tuple[int, str, torch.dtype, MmaConfig, dict[str, Any], int, int], ...] = (
    # M, a_format, dtype of A, configuration, more of the problem; registers and instructions of the loop: as counted
    (1, "e2m1", BF16, MmaConfig(4, 1, 8, 1, False), {}, 176, 985),
    (1, "e2m1", BF16, MmaConfig(1, 1, 4, 2, True), {}, 92, 857),
    (1, "e4m3", BF16, MmaConfig(1, 1, 4, 2, True), {}, 92, 893),
    (16, "e2m1", BF16, MmaConfig(1, 1, 8, 2, False), {}, 128, 1038),
    (16, "bf16", BF16, MmaConfig(2, 1, 8, 1, False), {}, 103, 641),
    (32, "e2m1", BF16, MmaConfig(2, 1, 4, 1, False), {}, 167, 1145),
    (32, "bf16", BF16, MmaConfig(2, 1, 4, 1, True), {}, 211, 752),
    (32, "e2m1", BF16, MmaConfig(2, 4, 2, 1, False), {"k": 2880, "scale_rounding": "floor"}, 164, 1285),
    (8, "e2m1", FP32, MmaConfig(1, 1, 4, 1, False), {}, 96, 656),
    (8, "e4m3", FP16, MmaConfig(1, 1, 4, 1, False), {"aligned": False}, 96, 894),
)


@pytest.mark.parametrize(("m", "a_format", "a_dtype", "config", "more", "registers", "instructions"), FAMILIES, ids=str)
def test_machine_code(
    m: int,
    a_format: str,
    a_dtype: torch.dtype,
    config: MmaConfig,
    more: dict[str, Any],
    registers: int,
    instructions: int,
    tmp_path: Path,
) -> None:
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    given = {"k": 4096, **more}
    problem = Problem.of(m, 4096, machine=KNOWN_MACHINES["sm_90"], a_format=a_format, a_dtype=a_dtype, **given)
    code = disassemble(
        build(w4_mma.SOURCE, arch="sm_90", defines=w4_mma.defines(problem, config), folder=KERNELS), tmp_path
    )
    products = 8 * config.tiles * w4_mma.tiles_m(problem) * config.depth
    assert code.count("HMMA") == products
    assert code.loop["HMMA.16816.F32.BF16"] == products
    if problem.aligned:
        assert code.loop["LDG.E.NA.128.CONSTANT"] == 2 * config.tiles * config.depth  # the weight: 16 bytes a lane
        blocks = w4_mma.tiles_m(problem) * config.depth
        assert code.loop["LDG.E.128"] == blocks * 2 * a_dtype.itemsize  # A: whole blocks
        assert code.count("LDG") == sum(number for name, number in code.loop.items() if "LDG.E" in name)
    assert not {name for name in code.kernel if name.startswith(("LDL", "STL"))}
    assert code.registers <= min(255, 1.1 * registers)
    assert sum(code.loop.values()) <= 1.05 * instructions
