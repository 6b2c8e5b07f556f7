"""What w4_mma compiles to for Hopper: nothing spilled, wide loads, and no more instructions than were counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mxgemm.cuda import w4_mma
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.operands import CHUNK
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from tests.cuda.sass import disassemble

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

CODES = MmaConfig(2, 1, 8, 1, True, a_before=True, a_codes=True)
FAMILIES: tuple[tuple[int, str, torch.dtype, MmaConfig, dict[str, Any], int, int], ...] = (
    # M, a_format, dtype of A, configuration, more of the problem; registers and instructions of the loop: as counted
    (1, "e2m1", BF16, MmaConfig(4, 1, 8, 1, False), {}, 128, 934),
    (1, "e2m1", BF16, MmaConfig(1, 1, 4, 2, True), {}, 96, 738),
    (1, "e4m3", BF16, MmaConfig(1, 1, 4, 2, True), {}, 96, 774),
    (16, "e2m1", BF16, MmaConfig(1, 1, 8, 2, False), {}, 121, 996),
    (16, "bf16", BF16, MmaConfig(2, 1, 8, 1, False), {}, 118, 490),
    (32, "e2m1", BF16, MmaConfig(2, 1, 4, 1, False, resident=1), {}, 196, 974),
    (32, "bf16", BF16, MmaConfig(2, 1, 4, 1, True), {}, 242, 571),
    (32, "e2m1", BF16, MmaConfig(2, 4, 2, 1, False), {"k": 2880, "scale_rounding": "floor"}, 174, 1110),
    (8, "e2m1", FP32, MmaConfig(1, 1, 4, 1, False), {}, 96, 643),
    (8, "e4m3", FP16, MmaConfig(1, 1, 4, 1, False), {"aligned": False}, 95, 883),
    (1, "e2m1", BF16, MmaConfig(4, 1, 4, 1, False), {"derived": "fp8_fold"}, 95, 643),
    (1, "e2m1", BF16, MmaConfig(4, 1, 4, 1, True, a_before=True), {"derived": "fp8_fold"}, 96, 539),
    (1, "e2m1", BF16, MmaConfig(4, 1, 4, 1, True, a_before=True), {}, 128, 814),
    (16, "e2m1", BF16, MmaConfig(1, 1, 14, 2, True, a_before=True), {"derived": "bf16"}, 116, 360),
    (16, "bf16", BF16, MmaConfig(4, 2, 2, 1, True, a_before=True, resident=1), {"derived": "bf16"}, 143, 575),
    (32, "e2m1", BF16, MmaConfig(4, 1, 4, 1, False, a_before=True), {"derived": "fp8_fold"}, 202, 656),
    (16, "e2m1", BF16, MmaConfig(4, 1, 4, 1, True, a_before=True, a_codes=True), {"derived": "fp8_fold"}, 122, 677),
    (32, "e4m3", FP16, MmaConfig(2, 1, 2, 1, True, warps_m=4), {"derived": "bf16", "k": 2880}, 122, 737),
    (16, "e2m1", BF16, replace(CODES, resident=3), {"derived": "bf16"}, 80, 417),
    (16, "e2m1", BF16, replace(CODES, tiles=4, resident=2), {"derived": "bf16"}, 123, 677),
    (32, "e2m1", BF16, replace(CODES, resident=2), {"derived": "bf16"}, 128, 554),
    (1, "e2m1", BF16, replace(CODES, tiles=1, a_codes=False, resident=3), {"derived": "bf16"}, 78, 163),
    (1, "e2m1", BF16, MmaConfig(3, 1, 12, 1, a_slots=2), {"derived": "bf16", "k": 2880}, 99, 532),
    (16, "bf16", BF16, MmaConfig(3, 1, 12, 1, a_slots=2, prefetch=True), {"derived": "bf16", "k": 2880}, 107, 453),
    (32, "bf16", BF16, MmaConfig(3, 1, 12, 1, a_slots=2, prefetch=True), {"derived": "bf16", "k": 2880}, 148, 509),
    (16, "e2m1", BF16, MmaConfig(5, 1, 12, 1, a_slots=2), {"derived": "bf16", "k": 8192}, 167, 1016),
    (1, "e2m1", BF16, MmaConfig(3, 1, 16, 1, prefetch=True), {"derived": "bf16", "k": 2880}, 115, 551),
    (32, "e2m1", BF16, MmaConfig(3, 2, 6, 1, a_slots=2, splits=2), {"derived": "bf16", "k": 2880}, 164, 732),
    (32, "bf16", BF16, MmaConfig(3, 1, 8, 2, a_slots=2, splits=2), {"derived": "bf16", "k": 8192}, 171, 1192),
    (32, "e2m1", BF16, MmaConfig(6, 1, 8, 1, a_slots=1, splits=4), {"derived": "bf16", "k": 8192}, 234, 1271),
)
AT_ONCE: tuple[tuple[int, str, MmaConfig, int, int], ...] = (
    # M, a_format, configuration, K; instructions of the kernel: as counted
    (1, "e2m1", MmaConfig(3, 1, 23, 1, a_slots=1, prefetch=True, resident=1), 2880, 1744),
    (16, "bf16", MmaConfig(3, 1, 24, 1, a_slots=1, prefetch=True, resident=1), 2880, 1248),
    (16, "bf16", MmaConfig(3, 1, 24, 1, a_slots=1, prefetch=True, resident=1, in_turn=True), 2880, 1368),
    (16, "e2m1", MmaConfig(3, 1, 20, 1, a_slots=1, prefetch=True, resident=1), 2496, 1928),
    (32, "bf16", MmaConfig(3, 2, 8, 1, a_slots=1, splits=2, resident=1), 2048, 1592),
)
QUICK = 11  # the one of FAMILIES that is built in every run of the tests


@pytest.mark.parametrize(
    ("m", "a_format", "a_dtype", "config", "more", "registers", "instructions"),
    [pytest.param(*one, marks=[] if i == QUICK else pytest.mark.slow) for i, one in enumerate(FAMILIES)],
    ids=str,
)
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
    tiles_of_a = w4_mma.tiles_m(problem) // config.warps_m * config.depth
    products = 8 * config.tiles * tiles_of_a
    assert code.count("HMMA") == products
    assert code.loop["HMMA.16816.F32.BF16"] == products
    if problem.aligned:
        weights = 2 * config.tiles * config.depth  # 16 bytes a lane; kept in L1 where another warp reads them too
        vectors = 0 if config.a_slots else 1 if config.a_codes else 4 if config.a_before else 2 * a_dtype.itemsize
        of_a = tiles_of_a * vectors  # whole blocks
        shared = config.warps_m > 1
        assert code.loop["LDG.E.NA.128.CONSTANT"] == (0 if shared else weights)
        assert code.loop["LDG.E.128"] == of_a + (weights if shared else 0)
        assert code.count("LDG") == sum(number for name, number in code.loop.items() if "LDG.E" in name)
    if config.a_slots:
        rows = 8 * tiles_of_a // config.depth
        whole = -(-given["k"] // CHUNK) <= config.a_slots * config.along_k
        copies = config.a_slots + (0 if whole else config.depth)
        assert code.kernel["LDGSTS.E.BYPASS.128"] == rows // 2 // config.warps_n * copies
        assert code.loop["LDS.128"] >= rows // 2 * config.depth  # 16 pieces of each row, by 32 lanes
    assert not {name for name in code.kernel if name.startswith(("LDL", "STL"))}
    assert code.registers <= min(255, 1.1 * registers)
    assert code.registers <= w4_mma.registers_allowed(config)
    assert sum(code.loop.values()) <= 1.05 * instructions


@pytest.mark.slow
@pytest.mark.parametrize(("m", "a_format", "config", "k", "instructions"), AT_ONCE, ids=str)
def test_what_is_done_at_once(
    m: int, a_format: str, config: MmaConfig, k: int, instructions: int, tmp_path: Path
) -> None:
    """No warp has a second chunk: no loop, and all that is loaded is on its way before any of it is waited for."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    problem = Problem.of(m, 5760, k, KNOWN_MACHINES["sm_90"], a_format=a_format, derived="bf16")
    macros = {**w4_mma.defines(problem, config), "OVERLAP": 1}
    code = disassemble(build(w4_mma.SOURCE, arch="sm_90", defines=macros, folder=KERNELS), tmp_path)
    assert code.kernel["HMMA.16816.F32.BF16"] == 8 * config.tiles * w4_mma.tiles_m(problem) + 8  # 8 for what is left
    assert code.count("HMMA") == 8
    names = list(code.names)
    products = names.index("HMMA.16816.F32.BF16")
    waited = max(i for i, name in enumerate(names[:products]) if name.startswith("DEPBAR"))
    begun = names[names.index("ACQBULK") : waited]
    assert begun.count("LDG.E.NA.128.CONSTANT") == 2 * config.tiles
    assert begun.count("LDGSTS.E.BYPASS.128") == -(-4 * w4_mma.tiles_m(problem) // config.warps_n)
    assert len(begun) <= 185
    assert not {name for name in names if name.startswith(("LDL", "STL"))}
    assert code.registers <= w4_mma.registers_allowed(config)
    assert len(names) <= 1.05 * instructions


@pytest.mark.slow
@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize(("a_format", "a_dtype"), [("e2m1", BF16), ("e4m3", FP32), ("bf16", FP16)])
def test_rounding_before_is_short(a_format: str, a_dtype: torch.dtype, codes: bool, tmp_path: Path) -> None:
    """It runs once: what counts is how long it is, and that all is loaded and stored at once."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    problem = Problem.of(16, 64, 4096, machine=KNOWN_MACHINES["sm_90"], a_format=a_format, a_dtype=a_dtype)
    if codes and a_format != "e2m1":
        pytest.skip("codes are those of e2m1")
    macros = w4_mma.round_defines(problem, MmaConfig(a_before=True, overlap=True, a_codes=codes))
    code = disassemble(build(w4_mma.ROUND_SOURCE, arch="sm_90", defines=macros, folder=KERNELS), tmp_path)
    assert code.kernel["LDG.E.128"] == a_dtype.itemsize // 2
    assert code.kernel["STG.E" if codes else "STG.E.128"] == 1
    assert sum(number for name, number in code.kernel.items() if name.startswith(("BAR", "LDS", "STS"))) == 0
    assert sum(code.kernel.values()) <= (310 if codes else 240)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_ampere_and_ada_compile_it_too(arch: str) -> None:
    """And nothing more is known of it there: the route refuses them."""
    lacking = compiler_refusal(arch)
    if lacking:
        pytest.skip(str(lacking))
    problem = Problem.of(16, 5760, 2880, KNOWN_MACHINES["sm_90"], derived="bf16", scale_rounding="floor")
    for config in (MmaConfig(3, 1, 12, 1, a_slots=2, prefetch=True, overlap=True), replace(CODES, overlap=True)):
        assert build(w4_mma.SOURCE, arch=arch, defines=w4_mma.defines(problem, config), folder=KERNELS)
    assert build(w4_mma.ROUND_SOURCE, arch=arch, defines=w4_mma.round_defines(problem, config), folder=KERNELS)
    machine = replace(KNOWN_MACHINES["sm_90"], arch=arch)
    refusal = ROUTES["w4_mma"].missing(machine)
    assert refusal is not None
    assert refusal.field == "arch"
