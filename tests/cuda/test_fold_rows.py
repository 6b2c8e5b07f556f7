"""The first launch of route fp8_fold in CUDA C++, run lane by lane: its bytes are those of mxgemm.mx.fold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from bench.mma_cases import Case, described, placed
from mxgemm.cuda import fold_rows
from mxgemm.cuda.launch import KERNELS
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.mx import layouts
from mxgemm.mx.fold import fold, row_bases
from mxgemm.mx.layouts import round_up
from tests.cuda import lanes, lanes_wgmma
from tests.cuda.sass import disassemble

CPU = torch.device("cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOW = pytest.mark.slow


def spread(rows: int, k: int, octaves: int, random_: torch.Generator) -> torch.Tensor:
    powers = torch.randint(-octaves, octaves + 1, (rows, k // 32), generator=random_).float()
    return torch.randn(rows, k, generator=random_) * torch.exp2(powers).repeat_interleave(32, dim=1)


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        (Case(3, 40, 416, None, derived="fp8_fold_compact"), 40),  # type: ignore[arg-type]
        (Case(5, 33, 2880, None, derived="fp8_fold_compact", w_layout="padded"), 33),  # type: ignore[arg-type]
        (Case(4, 48, 64, None, derived="fp8_fold_compact", layout=("preshuffled", "shuffled")), 48),  # type: ignore[arg-type]
        (Case(2, 16, 32, None, derived="fp8_fold_compact", scale_rounding="floor"), 0),  # type: ignore[arg-type]
        pytest.param(Case(3, 16, 16416, None, a_dtype=FP16, derived="fp8_fold_compact"), 0, marks=SLOW),  # type: ignore[arg-type]
        (Case(3, 16, 96, None, a_layout="transposed", derived="fp8_fold_compact", scale_rounding="ceil"), 0),  # type: ignore[arg-type]
        (Case(3, 16, 320, None, a_dtype=FP32, derived="fp8_fold_compact", scale_rounding="rceil"), 16),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_bytes_are_those_of_the_definition(case: Case, rows: int) -> None:
    """Of rows that fold; of others, of NaN and of zeros what is said of them."""
    random_ = torch.Generator().manual_seed(1)
    problem = described(case)
    assert not fold_rows.refused(problem, rows)
    m, n, k = case.m, case.n, case.k
    a = spread(m, k, 3, random_).to(case.a_dtype)
    a[m - 1, k // 2] = torch.nan
    a[0] = 0 if rows else a[0]
    if k > 64:
        a[1, 32:64] *= 2.0**15  # does not fold
    weight = mxgemm.quantize(spread(n, k, 4, random_))
    base, folds = row_bases(weight)
    assert bool(folds.all())
    data, scales = weight.data, weight.scales
    if case.layout != ("row_major", "row_major"):
        data, scales = layouts.preshuffle_weight(data), layouts.shuffle_scales(scales)
    placed_a = placed(a, case.a_layout, float("nan"), CPU)[1]
    placed_w = placed(data, case.w_layout, 255, CPU)[1]
    placed_s = placed(scales, case.w_layout if case.layout[1] == "row_major" else "contiguous", 255, CPU)[1]
    sizes = [round_up(size, 16) for size in (m * k, 4 * m, 4 * m, round_up(n, 16) * k, 4 * round_up(n, 16))]
    arena = torch.full((sum(sizes),), 255, dtype=torch.uint8)
    folded, bases, unfolded, decoded, factors = arena.split(sizes)
    bytes_ = base.to(torch.uint8)
    tensors = placed_a, folded, bases, unfolded, placed_w, placed_s, bytes_, decoded, factors
    packed = fold_rows.POINTERS.pack(*(x.data_ptr() for x in tensors)) + fold_rows.constants(problem, rows)
    macros = (*sorted(fold_rows.defines(problem, rows).items()), ("SPLITS", 1))
    library = lanes_wgmma.built(macros, fold_rows.SOURCE, fold_rows.KERNEL)
    block = fold_rows.lanes(problem), 1, 1
    shared = fold_rows.shared_bytes(problem)
    operands = placed_a, placed_w, placed_s, bytes_, arena
    lanes._run(library, packed, fold_rows.grid(problem, rows), block, operands, shared)

    of_a = mxgemm.quantize(a, scale_rounding=case.scale_rounding)  # type: ignore[arg-type]
    base_a, folds_a = row_bases(of_a)
    want, want_bases = fold(of_a, base_a)
    finite = ~a.isnan().any(1)
    assert torch.equal(unfolded[: 4 * m].view(torch.int32)[finite] == 0, folds_a[finite])
    assert not unfolded[: 4 * m].view(torch.int32)[~finite].any()
    got = bases[: 4 * m].view(FP32)
    chosen = finite & folds_a
    assert torch.equal(got[chosen], want_bases[:m][chosen])
    assert got[~finite].isnan().all()
    values = folded[: m * k].view(torch.float8_e4m3fn).view(m, k).float()  # -0 may be 0
    assert torch.equal(values[chosen], want[:m].view(torch.float8_e4m3fn).float()[chosen])
    if rows:
        want, want_bases = fold(weight, base)
        assert torch.equal(decoded[: n * k].view(n, k), want[:n].view(torch.uint8))
        assert torch.equal(factors.view(FP32)[: round_up(n, 16)], want_bases)
    else:
        assert bool((decoded == 255).all())


@pytest.mark.parametrize(
    "more", [{"k": 2880}, pytest.param({"k": 8192}, marks=SLOW), pytest.param({"k": 28672}, marks=SLOW)]
)
def test_machine_code(more: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is spilled; loads and stores are wide; few registers, so that many lanes are there at once."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    problem = replace(described(Case(64, 4096, 4096, None, derived="fp8_fold_compact")), **more)  # type: ignore[arg-type]
    problem = replace(problem, strides=None)
    image = build(fold_rows.SOURCE, arch="sm_90", defines=fold_rows.defines(problem, 4096), folder=KERNELS)
    code = disassemble(image, tmp_path)
    assert code.kernel["STG.E.128"] == fold_rows.TURNS + fold_rows.values(problem) // 16
    loads = sum(number for name, number in code.kernel.items() if name.startswith("LDG") and ".64" in name)
    assert loads == fold_rows.TURNS
    assert code.registers <= 64
    assert sum(code.kernel.values()) < 900
