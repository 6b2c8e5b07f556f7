"""The last launch of route fp8_fold where it applies the bases of rows, run lane by lane, and what it compiles to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from bench.mma_cases import placed, strided
from mxgemm.cuda import fold_last
from mxgemm.cuda.launch import KERNELS
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.mx.fold import fold, row_bases
from mxgemm.mx.layouts import round_up
from mxgemm.mx.oracle import scale_values
from mxgemm.problem import Problem, Strides
from tests.cuda import lanes
from tests.cuda.sass import disassemble

HOPPER = replace(KNOWN_MACHINES["sm_90"], cu_count=3)
CPU = torch.device("cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOW = pytest.mark.slow
WHERE_NOTHING_FOLDS = 7.0
"""In the product, of rows that do not fold: it is no matter."""


@dataclass(frozen=True)
class Case:
    """What is multiplied, and where it lies."""

    m: int
    n: int
    k: int
    out_dtype: torch.dtype = BF16
    a_dtype: torch.dtype = BF16
    bias: torch.dtype | None = None
    data: str = "spread"
    a_layout: str = "contiguous"
    out_layout: str = "contiguous"

    @property
    def product_dtype(self) -> torch.dtype:
        """As the route has it."""
        return FP32 if self.bias is not None or self.out_dtype == FP16 else self.out_dtype

    @property
    def columns(self) -> int:
        """Of the product."""
        return round_up(self.n, 16)

    @property
    def in_place(self) -> bool:
        """The product lies where the result is to be."""
        return self.product_dtype == self.out_dtype and self.n == self.columns and self.out_layout == "contiguous"

    def problem(self) -> Problem:
        """Return the whole product's."""
        strides = Strides(
            a=strided((self.m, self.k), self.a_layout), b=(self.k // 2, 1), b_scales=(self.k // 32, 1),
            out=strided((self.m, self.n), self.out_layout), bias=1 if self.bias is None else 2,
        )  # fmt: skip
        return Problem.of(
            self.m, self.n, self.k, HOPPER, derived="fp8_fold", out_dtype=self.out_dtype, a_dtype=self.a_dtype,
            has_bias=self.bias is not None, bias_dtype=self.bias or FP32, strides=strides,
        )  # fmt: skip


def operands(case: Case, random_: torch.Generator) -> tuple[Tensor, mxgemm.MXTensor]:
    """Return A, of which some rows do not fold or are NaN, and a weight that folds."""
    m, n, k = case.m, case.n, case.k
    half = case.a_dtype == FP16
    powers = torch.randint(-3, 4, (m, k // 32), generator=random_).float()
    a = torch.randn(m, k, generator=random_) * torch.exp2(powers).repeat_interleave(32, dim=1)
    of_rows = torch.randint(-40, 40, (n, 1), generator=random_).float()
    w = torch.randn(n, k, generator=random_) * torch.exp2(of_rows)
    if case.data in ("large", "small"):
        # One block of A is large where the weight is 0, another of the weight where A is: so the bases' product is far
        # above all results, and a float has it no more, or far below one.
        a, w = (torch.randn(rows, k, generator=random_) for rows in (m, n))
        up = 75.0 if case.data == "large" else -50.0
        a *= 2.0 ** (up - 14)
        w *= 2.0 ** (up - 14)
        a[:, :32] *= 2.0**12
        w[:, 32:64] *= 2.0**12
        w[:, :32], a[:, 32:64] = 0, 0
        return a.to(case.a_dtype), mxgemm.quantize(w)
    a[0] *= 2.0 ** (-8 if half else -40)
    if m > 2:
        a[m // 2, :32] *= 2.0 ** (12 if half else 20)  # does not fold
        a[m - 1] = 0
    if m > 8:
        a[7, 3], a[5, k - 1] = torch.nan, torch.inf
    return a.to(case.a_dtype), mxgemm.quantize(w)


def run(case: Case, seed: int = 0) -> None:
    """Run the launch on an exact product and compare with what is exact."""
    random_ = torch.Generator().manual_seed(seed)
    a, weight = operands(case, random_)
    m, n, k, problem = case.m, case.n, case.k, case.problem()
    base, folds = row_bases(weight)
    assert bool(folds.all())
    data, factors = fold(weight, base)
    rounded = mxgemm.quantize(a)
    nan = (rounded.scales == 255).any(1)
    clean = replace(rounded, scales=torch.where(nan[:, None], 127, rounded.scales.int()).to(torch.uint8))
    base_a, folds_a = row_bases(clean)
    unfolded = torch.nn.functional.pad((~folds_a & ~nan).int(), (0, -m % 4), value=1)
    exact_a, exact_w = exact(clean), exact(weight)
    bases = (base_a.int() << 23).view(FP32).clone()
    bases[nan] = torch.nan
    sums = (exact_a / scale_values_of(base_a)[:, None]) @ data.view(torch.float8_e4m3fn)[:n].double().T
    sums[unfolded[:m] != 0] = WHERE_NOTHING_FOLDS
    product = torch.zeros(m, case.columns, dtype=case.product_dtype)
    product[:, :n] = sums.to(case.product_dtype)
    memory, out = placed(torch.full((m, n), torch.nan, dtype=case.out_dtype), case.out_layout, torch.nan, CPU)
    of_product = product[:, :n].double()
    if case.in_place:
        out.copy_(product)
        product = out
    bias = None if case.bias is None else torch.randn(n, 2, generator=random_).to(case.bias)[:, 0]
    placed_a = placed(a, case.a_layout, torch.nan, CPU)[1]

    given = unfolded, product, bases, placed_a, data, factors, bias, out
    macros = fold_last.macros(problem, case.product_dtype)
    in_pieces = case.n % 8 == 0 and case.out_layout != "transposed"
    assert macros["PACKED"] == int(in_pieces and case.out_dtype == case.product_dtype == BF16)
    library = lanes._built(tuple(sorted(macros.items())), (fold_last.SOURCE, fold_last.KERNEL, "Arguments", 0))
    packed = fold_last.POINTERS.pack(*(0 if x is None else x.data_ptr() for x in given))
    packed += fold_last.constants(problem, case.columns)
    lanes._run(library, packed, fold_last.grid(problem), (fold_last.THREADS, 1, 1), given, 0)

    added = torch.zeros(n, dtype=torch.float64) if bias is None else bias.double()
    scales = scale_values_of(base_a)[:, None] * factors[:n].double()
    got, plain = out.double(), folds_a & ~nan
    assert bool(got[nan].isnan().all())
    want = (of_product * scales + added).float().to(case.out_dtype).double()
    least = {BF16: 2.0**-132, FP16: 2.0**-24, FP32: 2.0**-148}[case.out_dtype]  # subnormals are rounded twice
    assert bool(((got - want).abs() <= least)[plain & want.isfinite().all(1)].all())
    assert torch.equal(got[plain].isinf(), want[plain].isinf())
    # Rows that do not fold are summed anew, in fp32.
    anew = ~plain & ~nan
    want = exact_a[anew] @ exact_w.T + added
    room = (k + 64) * 2.0**-24 * (exact_a[anew].abs() @ exact_w.abs().T)
    step = {BF16: 2.0**-8, FP16: 2.0**-10, FP32: 2.0**-22}[case.out_dtype]
    fits = want.abs() < torch.finfo(case.out_dtype).max
    assert bool(((got[anew] - want).abs() <= step * want.abs() + room + least)[fits].all())
    outside = memory.clone()
    outside.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(torch.nan)
    assert bool(outside.isnan().all()), "memory outside the result was written"


def exact(of: mxgemm.MXTensor) -> Tensor:
    return mxgemm.dequantize(replace(of, scales=torch.full_like(of.scales, 127))).double() * (
        scale_values_of(of.scales).repeat_interleave(32, 1)
    )


def scale_values_of(scales: Tensor) -> Tensor:
    return torch.from_numpy(scale_values(scales.numpy()))


@pytest.mark.parametrize(
    "case",
    [
        Case(9, 48, 96),
        Case(33, 50, 160, FP32),
        Case(20, 16, 32, FP32, FP32),
        Case(12, 80, 96, data="large"),
        Case(12, 80, 96, FP32, data="small"),
        Case(10, 264, 96, FP16),
        Case(40, 272, 64, bias=BF16),
        Case(3, 33, 64, out_layout="transposed", a_layout="transposed"),
        pytest.param(Case(1, 7, 32), marks=SLOW),
        pytest.param(Case(18, 48, 96, a_dtype=FP16), marks=SLOW),
        pytest.param(Case(12, 48, 96, FP16, FP16, bias=FP16), marks=SLOW),
        pytest.param(Case(17, 64, 96, out_layout="padded", a_layout="padded"), marks=SLOW),
        pytest.param(Case(17, 72, 96, FP32, bias=FP32, out_layout="padded"), marks=SLOW),
        pytest.param(Case(300, 33, 64), marks=SLOW),
        pytest.param(Case(290, 16, 64, bias=FP32), marks=SLOW),
        pytest.param(Case(12, 33, 96, data="large"), marks=SLOW),
        pytest.param(Case(12, 80, 96, data="small"), marks=SLOW),
        pytest.param(Case(12, 80, 96, FP32, bias=FP32, data="large"), marks=SLOW),
    ],
    ids=str,
)
def test_results(case: Case) -> None:
    """Tails of M and N, rows of zeros, NaN and infinity, rows that do not fold; bases whose product no float has."""
    run(case)


@pytest.mark.parametrize(
    ("m", "product_dtype", "more", "most"),
    [
        (128, BF16, {}, 2200),
        pytest.param(512, BF16, {}, 2350, marks=SLOW),
        pytest.param(512, FP32, {"has_bias": True, "bias_dtype": BF16}, 3600, marks=SLOW),
        pytest.param(64, FP32, {"out_dtype": FP16}, 3600, marks=SLOW),
    ],
)
def test_machine_code(m: int, product_dtype: torch.dtype, more: dict[str, Any], most: int, tmp_path: Path) -> None:
    """Nothing is spilled, and registers leave room for the workgroups that each kind is to have on a multiprocessor."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    problem = Problem.of(m, 5120, 2880, KNOWN_MACHINES["sm_90"], derived="fp8_fold", **more)
    macros = fold_last.macros(problem, product_dtype)
    code = disassemble(build(fold_last.SOURCE, arch="sm_90", defines=macros, folder=KERNELS), tmp_path)
    assert code.registers <= (80 if macros["ROWS"] == 2 else 128)
    assert sum(code.kernel.values()) <= most
    assert code.kernel["STG.E.128"] >= int(macros["ROWS"])
    assert not {name for name in code.kernel if name.startswith(("LDL", "STL"))}
