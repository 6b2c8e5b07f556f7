"""The kernels of w4_fp8 without a GPU: their text run lane by lane against the oracle, and what they compile to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from bench import fp8_cases
from bench.fp8_cases import DATA, judged, make
from bench.mma_cases import Case, decoded, described
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.w4_fp8 import (
    SOURCE,
    Fp8Config,
    defines,
    fp8_refusal,
    registers_allowed,
)
from mxgemm.cuda.w4_fp8_choice import candidates
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, Operands
from tests.cuda import lanes_fp8
from tests.cuda.sass import disassemble
from tests.marks import EXHAUSTIVE, first_of

HOPPER = KNOWN_MACHINES["sm_90"]
CPU = torch.device("cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOW = pytest.mark.slow
FORMS = ("fp8_fold", "fp8_fold_compact")


def case_of(m: int, n: int, k: int, config: Fp8Config, **more: Any) -> Case:
    return Case(m, n, k, config, **{"derived": "fp8_fold", **more})  # type: ignore[arg-type]


def run(case: Case, seed: int = 0, late: int = 0) -> int:
    made = make(case, seed, CPU)
    config: Any = case.config
    products = lanes_fp8.run(made.problem, config, made.operands, late)
    found = judged(case, made)
    assert not found, f"{case}: {found}"
    return products


@pytest.mark.parametrize("derived", FORMS)
def test_every_kind_of_data(derived: str) -> None:
    """In both orders of the weight, with a tail of K."""
    for data in DATA:
        run(case_of(40, 80, 416, Fp8Config(64, 1, 1, 2, 2), derived=derived, data=data))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        case_of(40, 80, 800, Fp8Config(64, 1, 2, 3, 2), derived="fp8_fold_compact"),
        case_of(33, 33, 352, Fp8Config(64, 1, 2, 3, 3, ahead=False), scale_rounding="floor", a_dtype=FP32),
        case_of(70, 272, 640, Fp8Config(64, 2, 1, 3, 1, 2), bias=BF16),
        case_of(150, 140, 800, Fp8Config(256, 2, 1, 2, 2), bias=FP16),
        case_of(150, 70, 800, Fp8Config(192, 1, 1, 3, 2), derived="fp8_fold_compact"),
        case_of(33, 100, 288, Fp8Config(64, 1, 4, 5, 1, 3), derived="fp8_fold_compact", out_dtype=FP32),
        case_of(65, 300, 288, Fp8Config(64, 4, 1, 4, ahead=False), out_dtype=FP16, out_layout="transposed"),
        case_of(130, 48, 256, Fp8Config(128, 1, 1, 2), a_dtype=FP16, a_layout="transposed"),
        case_of(65, 80, 96, Fp8Config(128, 2, 1, 2, 1, ahead=False), scale_rounding="ceil", a_layout="padded"),
        case_of(37, 80, 320, Fp8Config(64, 2, 1, 2), derived=FORMS[1], layout=("preshuffled", "shuffled"), bias=FP32),
        case_of(1, 1, 32, Fp8Config(64, 1, 1, 2), derived=FORMS[1], w_layout="padded"),
    ],
    ids=str,
)
def test_configurations_layouts_and_strides(case: Case) -> None:
    for i, data in enumerate(DATA):
        run(replace(case, data=data), i)


@pytest.mark.parametrize("late", [1, 40])
@pytest.mark.parametrize(
    "config",
    [
        Fp8Config(64, 2, 1, 2, 1),
        Fp8Config(64, 1, 3, 4, 2, ahead=False),
        Fp8Config(64, 2, 2, 5, 1, 2, ahead=False),
        pytest.param(Fp8Config(128, 2, 1, 3, 2), marks=SLOW),
        pytest.param(Fp8Config(256, 2, 1, 2, 2, ahead=False), marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_slabs_that_come_late(config: Fp8Config, late: int) -> None:
    """Nobody reads what has not come or writes over what is read, and everybody goes on."""
    for data in ("even", "outliers"):
        run(case_of(min(70, config.columns), 130, 2400, config, data=data), late=late)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(2)))
def test_drawn_cases(seed: int) -> None:
    """What bench/w4_fp8.py draws for a GPU, as far as it is small."""
    cases = [case for case in fp8_cases.drawn(400, seed) if case.n * case.k * -(-case.m // 64) < 25_000]
    for i, case in enumerate(cases[:4]):
        run(replace(case, data=DATA[2 * i]), i)


def test_a_step_that_does_not_fold_takes_four_times_the_products() -> None:
    """And only that one: a row of A with one large block. One far from the rest of its row takes no more."""
    case = case_of(40, 64, 512, Fp8Config(64, 1, 1, 2, 2))
    made = make(case, 0, CPU)
    config: Any = case.config
    plain = lanes_fp8.run(made.problem, config, made.operands)
    assert plain == 4 * 4 * 4  # chunks, warps, products of 32
    made.operands.a[:, 128:256] *= 2.0**20
    assert lanes_fp8.run(made.problem, config, made.operands) == plain
    made.operands.a[7, 140] *= 2.0**40
    assert lanes_fp8.run(made.problem, config, made.operands) == plain + 3 * plain // 2


@pytest.mark.slow
@pytest.mark.parametrize("derived", FORMS)
def test_every_code_and_every_scale_that_folds_is_exact(derived: str) -> None:
    """A has a single 1 or -2 a row, so results are decoded weights; blocks of zeros have any scale, NaN's are NaN."""
    codes = torch.arange(16, dtype=torch.uint8)
    data = (codes | codes.flip(0) << 4).repeat(256, 2)
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1).repeat(1, 2)
    scales[:, 1] = (scales[:, 0].int() - torch.arange(256) % 15).clamp(min=0).to(torch.uint8)  # and its whole span
    data[::17, :16] &= 0x88
    weight = replace(mxgemm.quantize(torch.zeros(256, 64)), data=data, scales=scales)
    a = torch.zeros(64, 64, dtype=BF16)
    a.fill_diagonal_(1.0)
    a[1::2] *= -2.0
    parts = fp8_cases.made_of(weight, derived, CPU)
    out = torch.full((64, 256), torch.nan)
    problem = Problem.of(
        64, 256, 64, HOPPER, out_dtype=FP32, derived=derived,
        strides=Strides(a=(64, 1), b=(32, 1), b_scales=(2, 1), out=(256, 1)),
    )  # fmt: skip
    lanes_fp8.run(problem, Fp8Config(64, 1, 1, 2, 1), Operands(a, None, data, scales, None, out, parts))
    want = (a.double() @ decoded(weight, CPU).T).float().double()  # infinite from 2^128 on
    want[:, 255] = torch.nan
    want = torch.where(decoded(weight, CPU).isnan().any(1), torch.nan, want)
    assert torch.equal(out.double().nan_to_num(7.0, 8.0, 9.0), want.nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.slow
def test_every_bf16_is_rounded_as_quantize_does() -> None:
    """Beside a larger value of its block, and alone."""
    values = torch.arange(0, 1 << 16, 7, dtype=torch.int32).to(torch.int16).view(BF16)
    a = torch.zeros(values.numel(), 32, dtype=BF16)
    a[:, 3] = values
    a[: values.numel() // 2, 17] = (values.abs().clamp(max=2.0**126) * 1.5 * (values.abs() < 1e30))[
        : values.numel() // 2
    ]
    want = mxgemm.dequantize(mxgemm.quantize(a)).double()[:, 3]
    data = torch.zeros(1, 16, dtype=torch.uint8)
    data[0, 1] = 2 << 4  # code 2 is 1, at k = 3
    scales, out = torch.full((1, 1), 127, dtype=torch.uint8), torch.full((a.shape[0], 1), torch.nan)
    problem = Problem.of(
        a.shape[0], 1, 32, HOPPER, out_dtype=FP32, derived="fp8_fold_compact",
        strides=Strides(a=(32, 1), b=(16, 1), b_scales=(1, 1), out=(1, 1)),
    )  # fmt: skip
    base = torch.full((1,), 121, dtype=torch.uint8)
    lanes_fp8.run(problem, Fp8Config(128, 1, 1, 2, 1), Operands(a, None, data, scales, None, out, (base,)))
    assert torch.equal(out[:, 0].double().nan_to_num(7.0), want.nan_to_num(7.0))


FAMILIES = (
    # configuration, more of the problem
    (Fp8Config(64, 4, 1, 6, 3, ahead=False), {}),
    (Fp8Config(64, 1, 2, 6, 4), {"derived": FORMS[1]}),
    (Fp8Config(128, 2, 1, 5, 3), {}),
    (Fp8Config(256, 2, 1, 2, 3, 2), {"derived": FORMS[1]}),
    (Fp8Config(256, 2, 1, 2, 3, ahead=False), {"k": 2880}),
    (Fp8Config(128, 2, 1, 5, 3, 2), {"derived": FORMS[1], "k": 2880, "out_dtype": FP32}),
    (Fp8Config(64, 3, 1, 6, 3, ahead=False), {"k": 2880}),
    (Fp8Config(64, 1, 2, 3, 3, 4, 2, False), {}),
    (Fp8Config(128, 1, 1, 2, 3, 1, 2), {}),
    (Fp8Config(128, 1, 2, 5, 3, ahead=False), {}),
    (Fp8Config(192, 2, 1, 3, 3, ahead=False), {}),
    (Fp8Config(192, 2, 1, 3, 3), {"k": 2880}),
    (Fp8Config(64, 1, 4, 6, 3, ahead=False), {"derived": FORMS[1], "k": 2880}),
)
MARKS = {0: (), 2: SLOW, 3: SLOW}  # of FAMILIES


@pytest.mark.parametrize(
    ("config", "more"),
    [pytest.param(*one, marks=MARKS.get(i, EXHAUSTIVE)) for i, one in enumerate(FAMILIES)],
    ids=str,
)
def test_machine_code(config: Fp8Config, more: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is spilled; four products of a chunk that nothing waits between, weights by copies of 16 bytes."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    problem = Problem.of(config.columns, 4096, machine=HOPPER, **{"k": 4096, "derived": FORMS[0], **more})
    assert fp8_refusal(problem, config) is None
    code = disassemble(build(SOURCE, arch="sm_90", defines=defines(problem, config), folder=KERNELS), tmp_path)
    products = "QGMMA.64x64x32.F32.E4M3.E4M3"
    # Of both chunks, and of one block by block.
    assert code.kernel[products] == 3 * 4 * config.columns // 64
    assert {name for name in code.kernel if "GMMA" in name} == {products}
    assert sum(code.kernel.values()) <= 1700 + 25 * config.columns
    assert not {name for name in code.kernel if name.startswith(("LDL", "STL", "HMMA"))}
    assert code.registers <= registers_allowed(config)


def problem(m: int = 64, n: int = 2112, k: int = 7168, **options: Any) -> Problem:
    return Problem.of(m, n, k, HOPPER, **{"derived": "fp8_fold", **options})


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("a", {"a_quantized": True}),
        ("a.dtype", {"a_dtype": torch.float64}),
        ("a_format", {"a_format": "bf16"}),
        ("b_format", {"b_format": "e4m3"}),
        ("b", {"derived": ""}),
        ("b", {"derived": "bf16"}),
        ("data_ptr()", {"derived": "fp8_fold_compact", "aligned": False}),
        ("k", {"k": 1 << 25, "n": 32}),
        ("n", {"n": 1 << 31, "k": 32}),
        ("n * k", {"n": 1 << 20, "k": 1 << 14, "derived": "fp8_fold_compact"}),
        ("m", {"m": 1 << 23}),
        ("m * k", {"m": 1 << 20, "k": 1 << 20}),
        ("bias.dtype", {"has_bias": True, "bias_dtype": torch.float64}),
    ],
)
def test_refusals_name_the_field(field: str, options: dict[str, Any]) -> None:
    refusal = ROUTES["w4_fp8"].can_implement(problem(**options))
    assert refusal is not None
    assert refusal.field == field


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("columns", Fp8Config(columns=32)),
        ("groups_n", Fp8Config(groups_n=0)),
        ("groups", Fp8Config(groups_n=3, groups_k=2)),
        ("stages", Fp8Config(groups_k=2, stages=2)),
        ("depth", Fp8Config(depth=17)),
        ("splits", Fp8Config(splits=9)),
        ("resident", Fp8Config(resident=3)),
        ("ahead", Fp8Config(columns=128, groups_n=1, groups_k=2)),
        ("ahead", Fp8Config(columns=192, groups_n=1, groups_k=2)),
        ("groups", Fp8Config(columns=256, groups_n=1, ahead=False)),
        ("registers", Fp8Config(columns=128, groups_n=3)),
        ("shared memory", Fp8Config(columns=128, stages=12)),
    ],
)
def test_illegal_configurations(field: str, config: Fp8Config) -> None:
    refusal = fp8_refusal(problem(), config)
    assert refusal is not None
    assert refusal.field == field, refusal


@pytest.mark.parametrize("m", [1, 64, 65, 5000])
def test_every_problem_has_a_configuration(m: int) -> None:
    for n, k in ((1, 32), (16, 96), (2112, 7168), (57344, 8192)):
        for derived in FORMS:
            made = problem(m, n, k, derived=derived)
            found = candidates(made)
            assert found, (m, n, k)
            assert all(fp8_refusal(made, config) is None for config in found)


def test_what_is_drawn_for_a_gpu_is_legal() -> None:
    for case in fp8_cases.drawn(40, 1):
        config: Any = case.config
        assert fp8_refusal(described(case), config) is None
