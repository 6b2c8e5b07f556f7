"""The first launch of route fp8_fold in CUDA C++, run lane by lane: its bytes are those of mxgemm.mx.fold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mxgemm
from bench.mma_cases import placed, strided
from mxgemm.cuda import fold_rows
from mxgemm.cuda.launch import KERNELS
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.mx.fold import fold, row_bases
from mxgemm.mx.formats import ScaleRounding
from mxgemm.problem import Problem, Strides
from tests.cuda import lanes, lanes_wgmma
from tests.cuda.sass import disassemble

HOPPER = KNOWN_MACHINES["sm_90"]
CPU = torch.device("cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOW = pytest.mark.slow


def problem(m: int, k: int, layout: str = "contiguous", dtype: torch.dtype = BF16, rounding: str = "even") -> Problem:
    strides = Strides(a=strided((m, k), layout), b=(k // 2, 1), b_scales=(k // 32, 1), out=(16, 1))
    return Problem.of(
        m, 16, k, HOPPER, derived="fp8_fold", a_dtype=dtype, scale_rounding=rounding, strides=strides  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "k", "layout", "dtype", "rounding"),
    [
        (3, 416, "contiguous", BF16, "even"),
        (5, 2880, "padded", BF16, "even"),
        (4, 32, "contiguous", BF16, "floor"),
        (3, 96, "transposed", BF16, "ceil"),
        (4, 320, "contiguous", FP32, "rceil"),
        (3, 512, "contiguous", FP16, "even"),
        pytest.param(3, 16416, "contiguous", FP16, "even", marks=SLOW),
        pytest.param(3, 16416, "contiguous", BF16, "ceil", marks=SLOW),
    ],
)
def test_bytes_are_those_of_the_definition(
    m: int, k: int, layout: str, dtype: torch.dtype, rounding: ScaleRounding
) -> None:
    """Of rows that fold; of others, of NaN and infinity and of zeros what is said of them."""
    random_ = torch.Generator().manual_seed(k)
    p = problem(m, k, layout, dtype, rounding)
    assert not fold_rows.refused(p)
    powers = torch.randint(-3, 4, (m, k // 32), generator=random_).float()
    a = torch.randn(m, k, generator=random_) * torch.exp2(powers).repeat_interleave(32, dim=1)
    a[m - 1, k // 2] = torch.nan if k > 32 else torch.inf
    if m > 3:
        a[0] = 0
    if k > 64:
        a[1, 32:64] *= 2.0**15  # does not fold
    a = a.to(dtype)
    placed_a = placed(a, layout, float("nan"), CPU)[1]
    sizes = [m * k, 4 * m, 4 * m]
    at = [0, m * k, m * k + 4 * m + 12]
    arena = torch.full((at[2] + sizes[2],), 255, dtype=torch.uint8)
    folded, bases, unfolded = (arena[first : first + size] for first, size in zip(at, sizes, strict=True))
    packed = fold_rows.POINTERS.pack(*(x.data_ptr() for x in (placed_a, folded, bases, unfolded)))
    packed += fold_rows.constants(p)
    macros = (*sorted(fold_rows.defines(p).items()), ("SPLITS", 1))
    library = lanes_wgmma.built(macros, fold_rows.SOURCE, fold_rows.KERNEL)
    block = fold_rows.lanes(p), 1, 1
    lanes._run(library, packed, fold_rows.grid(p), block, (placed_a, arena), fold_rows.shared_bytes(p))

    rounded = mxgemm.quantize(a, scale_rounding=rounding)
    base, folds = row_bases(rounded)
    want, want_bases = fold(rounded, base)
    finite = a.isfinite().all(1)
    assert torch.equal(unfolded.view(torch.int32)[finite] == 0, folds[finite])
    assert not unfolded.view(torch.int32)[~finite].any()
    got, chosen = bases.view(FP32), finite & folds
    assert torch.equal(got[chosen], want_bases[:m][chosen])
    assert bool(got[~finite].isnan().all())
    values = folded.view(torch.float8_e4m3fn).view(m, k).float()  # -0 may be 0
    assert torch.equal(values[chosen], want[:m].view(torch.float8_e4m3fn).float()[chosen])
    assert bool((arena[at[1] + sizes[1] : at[2]] == 255).all())


@pytest.mark.parametrize("k", [2880, pytest.param(8192, marks=SLOW), pytest.param(28672, marks=SLOW)])
def test_machine_code(k: int, tmp_path: Path) -> None:
    """Nothing is spilled; loads and stores are wide; few registers, so that many lanes are there at once."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    p = problem(64, k)
    code = disassemble(build(fold_rows.SOURCE, arch="sm_90", defines=fold_rows.defines(p), folder=KERNELS), tmp_path)
    pieces = fold_rows.values(p) // 16
    assert code.kernel["STG.E.128"] == pieces
    assert code.kernel["LDG.E.128"] == 2 * pieces
    assert code.registers <= 64
    assert sum(code.kernel.values()) < 520 * pieces


def test_what_is_refused() -> None:
    assert fold_rows.refused(problem(3, 1024 * 32 + 32))
    assert fold_rows.refused(problem(3, 64, dtype=torch.float64))
    assert not fold_rows.refused(problem(3, 1024 * 32))
