"""What the grouped kernel for Hopper compiles to, and which calls it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm.cuda.launch import KERNELS
from mxgemm.device import KNOWN_MACHINES
from mxgemm.experts import mma, mma_around, wgmma
from mxgemm.experts.mma import FEW_PAIRS, GroupedConfig, config_for, grouped_refusal
from mxgemm.experts.problem import GroupedProblem, Routing, Strides, Tokens
from mxgemm.experts.w4_mma import GroupedMMA
from mxgemm.hip.build import build, compiler_refusal
from tests.cuda.sass import Code, disassemble

HOPPER = KNOWN_MACHINES["sm_90"]


def problem(a_format: str = "e2m1", *, gated: bool = True, tokens: int = 1, **changes: Any) -> GroupedProblem:
    """A product of gpt-oss-20b's experts."""
    quantised = a_format != "bf16"
    n, width = 5760 if gated else 2880, {"e2m1": 1440, "e4m3": 2880, "bf16": 2880}[a_format]
    one = GroupedProblem(
        4 * tokens, tokens, n, 2880, 32, HOPPER,
        Strides((width, 1), (n * 1440, 1440, 1), (n * 90, 90, 1), (width, 1), (90, 1) if quantised else (0, 0), (n, 1)),
        a_format=a_format, a_dtype=torch.uint8 if quantised else torch.bfloat16,
        out_dtype=(torch.uint8 if quantised else torch.bfloat16) if gated else torch.float32,
        bias_dtype=torch.bfloat16, reads_index=gated, writes_index=not gated,
        activation=mxgemm.SwiGLU() if gated else None, out_format=a_format if gated and quantised else "",
    )  # fmt: skip
    return replace(one, **changes)


CASES = (
    # a_format, gated, tokens, fragments, by ids, rounds; registers and instructions of the loop: as counted
    ("e2m1", True, 1, True, True, False, 107, 795),
    ("e2m1", True, 1, False, True, False, 131, 929),
    ("e2m1", False, 16, True, False, False, 120, 780),
    ("bf16", True, 1, True, True, False, 127, 752),
    ("bf16", False, 16, True, False, False, 128, 740),
    ("bf16", False, 1, True, True, False, 154, 1285),
    ("e2m1", False, 1, True, True, False, 120, 1412),
    ("e2m1", True, 64, True, False, True, 64, 305),
    ("e4m3", True, 64, True, False, True, 64, 305),
    ("bf16", False, 64, True, False, False, 64, 305),
    ("bf16", False, 100, True, False, False, 203, 831),
    ("e4m3", True, 100, True, False, False, 177, 1020),
    ("e2m1", True, 100, True, False, False, 159, 915),
    ("e2m1", False, 64, False, False, False, 159, 1063),
)


def compiled(source: str, defines: dict[str, int | str], folder: Path) -> Code:
    """Build a kernel and take it apart."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    return disassemble(build(source, arch="sm_90", defines=defines, folder=KERNELS), folder)


@pytest.mark.parametrize(
    ("a_format", "gated", "tokens", "fragments", "by_ids", "rounds", "registers", "instructions"),
    [pytest.param(*one, marks=[] if i == 0 else pytest.mark.slow) for i, one in enumerate(CASES)],
)
def test_nothing_is_spilled_and_no_more_is_issued_than_was_counted(
    tmp_path: Path, a_format: str, gated: bool, tokens: int, fragments: bool, by_ids: bool, rounds: bool,
    registers: int, instructions: int,
) -> None:  # fmt: skip
    p = problem(a_format, gated=gated, tokens=tokens, fragments=fragments)
    if rounds:
        p = replace(p, a_dtype=torch.bfloat16, strides=replace(p.strides, a=(2880, 1), a_scales=(0, 0)))
    c = config_for(p)
    assert (p.rows <= FEW_PAIRS) is by_ids
    code = compiled(mma.kernel(c)[0], mma.defines(p, c, by_ids=by_ids, early=True), tmp_path)
    assert code.registers <= registers + 8
    assert sum(code.loop.values()) <= 1.02 * instructions
    assert code.count("HMMA") == 8 * c.tiles * c.tiles_m * c.depth
    assert any(".128" in name for name in code.loop if name.startswith("LDG"))
    if c.slots:  # the registers and the shared memory of two workgroups
        assert code.registers * c.threads * c.resident <= 65536
        assert (mma.shared_bytes(p, c) + 1024) * c.resident <= 228 * 1024


def test_the_small_kernels(tmp_path: Path) -> None:
    tokens = Tokens(4, 2880, torch.bfloat16, (2880, 1), "e2m1", "even", True)
    code = compiled(mma_around.QUANTISE_SOURCE, mma_around.quantise_defines(tokens), tmp_path)
    assert code.registers <= 32
    routing = Routing(
        4, 4, 32, 0, 0, torch.int64, 2880, torch.float32, torch.bfloat16, HOPPER, (2880, 1)
    )  # fmt: skip
    code = compiled(mma_around.ROUTE_SOURCE, mma_around.route_defines(8, early=True), tmp_path)
    assert code.registers <= 64
    code = compiled(mma_around.SUM_SOURCE, mma_around.sum_defines(routing), tmp_path)
    assert code.registers <= 40


@pytest.mark.parametrize("gated", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_many_rows(tmp_path: Path, gated: bool) -> None:
    """Warpgroups' products, and what makes their slabs."""
    p = problem(gated=gated, tokens=512, fragments=True)
    c = wgmma.config_for(p)
    code = compiled(wgmma.SOURCE, wgmma.defines(p, c, early=True), tmp_path)
    assert code.registers <= 112, "of 640 threads"
    assert sum(number for name, number in code.kernel.items() if name.startswith("HGMMA")) == 8 * c.depth
    code = compiled(wgmma.SLAB_SOURCE, wgmma.slab_defines(p, c), tmp_path)
    assert code.registers <= 40


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"b_format": "e4m3"}, "w.format"),
        ({"a_format": "e5m2"}, "a_format"),
        ({"k": 16416}, "k"),
        ({"experts": 1025}, "experts"),
        ({"aligned": False}, "a, w"),
        ({"n": 96}, "n"),
        ({"a_rows": 0}, "a"),
    ],
    ids=str,
)
def test_what_it_does_not_take(changes: dict[str, Any], field: str) -> None:
    assert grouped_refusal(problem()) is None
    refusal = grouped_refusal(replace(problem(), **changes))
    assert refusal is not None
    assert refusal.field == field


def test_weights_whose_rows_are_no_whole_pieces_are_refused() -> None:
    one = problem()
    for strides in (
        replace(one.strides, w=(5760 * 1448, 1448, 1)),
        replace(one.strides, w=(1440, 1440 * 32, 2)),
        replace(one.strides, w_scales=(90, 90 * 32, 3)),
        replace(one.strides, a=(1441, 1)),
    ):
        assert grouped_refusal(replace(one, strides=strides)) is not None


def test_both_products_of_a_layer_have_tiles_of_one_height() -> None:
    """One list serves both: where one K is too short for slots, none has them. And where they were the faster ones."""
    one, two = (problem(gated=gated, tokens=64, fragments=True) for gated in (True, False))
    assert all(c.slots == mma.SLOTS for c in GroupedMMA().configs((one, two)))
    mixed = GroupedMMA().configs((one, replace(two, k=288)))
    assert [(c.slots, c.rows) for c in mixed] == [(0, 16), (0, 16)]
    slots = [config_for(problem(tokens=tokens, fragments=True)).slots for tokens in (1, 16, 24, 25, 64, 65)]
    assert slots == [0, 0, 0, 2, 2, 0]
    assert config_for(replace(one, fragments=False)).slots == config_for(replace(one, zeros=True)).slots == 0


def test_a_launch_fits_every_routing() -> None:
    """Tiles of any groups: a part of one for each expert that has rows."""
    for tokens in (1, 2, 16, 300):
        p, c = problem(tokens=tokens), GroupedConfig(tiles_m=1)
        rows = p.rows
        worst = min(p.experts, rows) - 1 + -(-(rows - min(p.experts, rows) + 1) // c.rows)
        assert mma.most_tiles(p, c) >= worst
        assert mma.grid(p, c, True)[0] == 90 * mma.most_tiles(p, c)
        assert mma.grid(p, c, False)[0] == min(90 * mma.most_tiles(p, c), 132 * c.resident)
