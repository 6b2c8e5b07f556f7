"""The kernels of w4_wgmma without a GPU: their text run lane by lane against the oracle, and what they compile to."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from bench import mma_cases, w4_wgmma
from bench.mma_cases import DATA, Case, described, judged, make
from mxgemm.cuda.launch import KERNELS
from mxgemm.cuda.w4_mma import fragments
from mxgemm.cuda.w4_wgmma import SOURCE, WgmmaConfig, defines, registers_allowed, wgmma_refusal
from mxgemm.cuda.w4_wgmma_choice import candidates
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.build import build, compiler_refusal
from mxgemm.mx.fragments import fragment_order
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, Operands
from tests.cuda import lanes_wgmma
from tests.cuda.sass import disassemble, tool
from tests.marks import EXHAUSTIVE, first_of

HOPPER = KNOWN_MACHINES["sm_90"]
CPU = torch.device("cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOW = pytest.mark.slow


def case_of(m: int, n: int, k: int, config: WgmmaConfig, a_format: str = "e2m1", **more: Any) -> Case:
    return Case(m, n, k, config, a_format, **more)  # type: ignore[arg-type]


def run(case: Case, seed: int = 0) -> int:
    made = make(case, seed, CPU)
    config: Any = case.config
    products = lanes_wgmma.run(made.problem, config, made.operands)
    found = judged(case, made)
    assert not found, f"{case}: {found}"
    return products


def test_a_weight_in_fragment_order() -> None:
    """Every kind of scales, in the order that prepare() makes, with a tail of K."""
    for data in DATA:
        run(case_of(40, 80, 160, WgmmaConfig(1, 64, 1, 1, 2), derived="bf16", data=data))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        case_of(40, 80, 288, WgmmaConfig(1, 64, 1, 2, 3, 2)),
        case_of(33, 33, 352, WgmmaConfig(1, 64, 1, 2, 3, 3), "e4m3", scale_rounding="floor", a_dtype=FP32),
        case_of(70, 272, 640, WgmmaConfig(2, 64, 2, 1, 3, 1, 2), "e4m3", derived="fp8_fold", bias=BF16),
        case_of(33, 100, 288, WgmmaConfig(1, 128, 1, 1, 2, 1, 3), "bf16", derived="bf16", out_dtype=FP32),
        case_of(65, 600, 288, WgmmaConfig(4, 64, 2, 1, 4), derived="bf16", out_dtype=FP16, out_layout="transposed"),
        case_of(130, 48, 256, WgmmaConfig(1, 192, 1, 1, 2), "bf16", a_dtype=FP16, a_layout="transposed"),
        case_of(65, 80, 96, WgmmaConfig(1, 256, 2, 1, 2), scale_rounding="ceil", a_layout="unaligned"),
        case_of(37, 272, 320, WgmmaConfig(2, 64, 1, 1, 2), layout=("preshuffled", "shuffled"), bias=FP32),
        case_of(1, 1, 32, WgmmaConfig(1, 64, 1, 1, 2), w_layout="transposed"),
    ],
    ids=str,
)
def test_configurations_layouts_and_strides(case: Case) -> None:
    for i, data in enumerate(DATA):
        run(replace(case, data=data), i)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(2)))
def test_drawn_cases(seed: int) -> None:
    """What bench/w4_wgmma.py draws for a GPU, as far as it is small."""
    cases = [case for case in w4_wgmma.drawn(400, seed) if case.n * case.k * -(-case.m // 64) < 25_000]
    for i, case in enumerate(cases[:3]):
        run(replace(case, data=DATA[i]), i)


@pytest.mark.slow
@pytest.mark.parametrize("derived", ["", "bf16"])
def test_every_code_and_scale_byte_is_exact(derived: str) -> None:
    """A has a single 1 or -2 a row, so results are decoded weights, and those whose scale is 255 are NaN."""
    codes = torch.arange(16, dtype=torch.uint8)
    data = (codes | codes.flip(0) << 4).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1)
    weight = replace(mxgemm.quantize(torch.zeros(256, 32)), data=data, scales=scales)
    a = torch.zeros(32, 32, dtype=BF16)
    a.fill_diagonal_(1.0)
    a[1::2] *= -2.0
    out = torch.full((32, 256), torch.nan)
    problem = Problem.of(
        32, 256, 32, HOPPER, a_format="bf16", out_dtype=FP32, derived=derived,
        strides=Strides(a=(32, 1), b=(16, 1), b_scales=(1, 1), out=(256, 1)),
    )  # fmt: skip
    order = (torch.empty(0), fragment_order(data, scales)) if derived else ()
    lanes_wgmma.run(problem, WgmmaConfig(1, 64, 1, 1, 2, 1), Operands(a, None, data, scales, None, out, order))
    want = (a.double() @ mma_cases.decoded(weight, CPU).T).float().double()  # infinite from 2^128 on
    want[:, 255] = torch.nan
    assert torch.equal(out.double().nan_to_num(7.0, 8.0, 9.0), want.nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.slow
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3"])
def test_every_bf16_is_rounded_as_quantize_does(a_format: str) -> None:
    """Beside a larger value of its block; e4m3's least values, below bf16's range, are rounded to what bf16 has."""
    values = torch.arange(0, 1 << 16, 3 if a_format == "e2m1" else 17, dtype=torch.int32).to(torch.int16).view(BF16)
    a = torch.zeros(values.numel(), 32, dtype=BF16)
    a[:, 3] = values
    a[:, 17] = values.abs().clamp(max=2.0**126) * 1.5 * (values.abs() < 1e30)
    want = mxgemm.dequantize(mxgemm.quantize(a, format=a_format)).double()[:, 3]  # type: ignore[arg-type]
    data = torch.zeros(1, 16, dtype=torch.uint8)
    data[0, 1] = 2 << 4  # code 2 is 1, at k = 3
    scales, out = torch.full((1, 1), 127, dtype=torch.uint8), torch.full((a.shape[0], 1), torch.nan)
    problem = Problem.of(
        a.shape[0], 1, 32, HOPPER, a_format=a_format, out_dtype=FP32,
        strides=Strides(a=(32, 1), b=(16, 1), b_scales=(1, 1), out=(1, 1)),
    )  # fmt: skip
    lanes_wgmma.run(problem, WgmmaConfig(1, 256, 1, 1, 2, 1), Operands(a, None, data, scales, None, out))
    got = out[:, 0].double()
    assert torch.equal(got.isnan(), want.isnan())
    error = (got - want).abs().nan_to_num(0.0)
    assert float(error[want.abs() < 2.0**127].max()) <= (2.0**-133 if a_format == "e4m3" else 0.0)


FAMILIES = (
    # configuration, more of the problem
    (WgmmaConfig(1, 64, 3, 1, 8, 2, 2), {"derived": "fp8_fold"}),
    (WgmmaConfig(1, 64, 1, 4, 8, 1), {"derived": "fp8_fold"}),
    (WgmmaConfig(2, 128, 2, 1, 6, 2), {"derived": "bf16"}),
    (WgmmaConfig(4, 64, 2, 1, 8, 1), {"derived": "bf16"}),
    (WgmmaConfig(1, 256, 2, 1, 3, 2, 2), {"derived": "bf16"}),
    (WgmmaConfig(2, 64, 1, 1, 4, 1), {}),
    (WgmmaConfig(1, 128, 3, 1, 6, 1), {"k": 2880, "out_dtype": FP32}),
)
MARKS = {0: (), 3: SLOW, 5: SLOW}  # of FAMILIES


@pytest.mark.parametrize(
    ("config", "more"),
    [pytest.param(*one, marks=MARKS.get(i, EXHAUSTIVE)) for i, one in enumerate(FAMILIES)],
    ids=str,
)
def test_machine_code(config: WgmmaConfig, more: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is spilled; products of the widest kind there is, each 16 bytes of codes in one load."""
    lacking = compiler_refusal("sm_90")
    if lacking:
        pytest.skip(str(lacking))
    problem = Problem.of(config.columns, 4096, machine=HOPPER, **{"k": 4096, **more})
    assert wgmma_refusal(problem, config) is None
    image = build(SOURCE, arch="sm_90", defines=defines(problem, config), folder=KERNELS)
    code = disassemble(image, tmp_path)
    products = 8 * config.tiles * config.depth
    assert code.kernel[f"HGMMA.64x{config.columns}x16.F32.BF16"] == products
    assert not {name for name in code.kernel if name.startswith(("LDL", "STL", "HMMA"))}
    assert code.kernel["LDG.E.NA.128.CONSTANT"] == 2 * 2 * config.tiles * config.depth  # before the loop, and in it
    assert code.registers <= registers_allowed(config)
    text = subprocess.run(
        [tool("nvdisasm"), "-c", str(tmp_path / "kernel.cubin")], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(\w+)", text)
    at = [i for i, name in enumerate(names) if name == "HGMMA"]
    between = (at[-1] - at[0]) / max(1, len(at) - 1)  # the second factors of rare scales are among them
    assert between <= (34 if fragments(problem) else 44)


def problem(m: int = 64, n: int = 2112, k: int = 7168, **options: Any) -> Problem:
    return Problem.of(m, n, k, HOPPER, **options)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("a", {"a_quantized": True}),
        ("a.dtype", {"a_dtype": torch.float64}),
        ("b_format", {"b_format": "e4m3"}),
        ("k", {"k": 1 << 25}),
        ("n", {"n": 1 << 31}),
        ("m", {"m": 1 << 23}),
        ("m * k", {"m": 1 << 20, "k": 1 << 20}),
        ("bias.dtype", {"has_bias": True, "bias_dtype": torch.float64}),
    ],
)
def test_refusals_name_the_field(field: str, options: dict[str, Any]) -> None:
    refusal = ROUTES["w4_wgmma"].can_implement(problem(**options))
    assert refusal is not None
    assert refusal.field == field


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("tiles", WgmmaConfig(tiles=3)),
        ("columns", WgmmaConfig(columns=32)),
        ("columns", WgmmaConfig(tiles=2, columns=192)),
        ("groups_n", WgmmaConfig(groups_n=0)),
        ("groups", WgmmaConfig(groups_n=3, groups_k=2)),
        ("stages", WgmmaConfig(groups_k=2, stages=2)),
        ("depth", WgmmaConfig(depth=5)),
        ("splits", WgmmaConfig(splits=9)),
        ("registers", WgmmaConfig(tiles=4, depth=2)),
        ("shared memory", WgmmaConfig(columns=256, stages=4)),
    ],
)
def test_illegal_configurations(field: str, config: WgmmaConfig) -> None:
    refusal = wgmma_refusal(problem(derived="bf16"), config)
    assert refusal is not None
    assert refusal.field == field, refusal


@pytest.mark.parametrize("m", [1, 64, 65, 5000])
def test_every_problem_has_a_configuration(m: int) -> None:
    for n, k in ((1, 32), (16, 96), (2112, 7168), (57344, 8192)):
        for derived in ("", "bf16"):
            made = problem(m, n, k, derived=derived)
            found = candidates(made)
            assert found, (m, n, k)
            assert all(wgmma_refusal(made, config) is None for config in found)


def test_what_is_drawn_for_a_gpu_is_legal() -> None:
    for case in w4_wgmma.drawn(40, 1):
        config: Any = case.config
        assert wgmma_refusal(described(case), config) is None
