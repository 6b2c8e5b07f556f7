"""The kernel of w4_mma without a GPU: its text run lane by lane against the oracle, and what it compiles to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from bench import mma_cases
from bench.mma_cases import DATA, Case, judged, make
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.device import KNOWN_MACHINES
from mxgemm.mx.formats import SCALE_ROUNDINGS
from mxgemm.mx.fragments import fragment_order
from mxgemm.problem import Problem, Strides
from mxgemm.routes import Operands
from tests.cuda import lanes
from tests.marks import EXHAUSTIVE, first_of

HOPPER = KNOWN_MACHINES["sm_90"]
CPU = torch.device("cpu")
ONE = MmaConfig(1, 1, 2, 1, True)
TWO = MmaConfig(2, 1, 2, 2, True, warps_m=2)
SLOW = pytest.mark.slow
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def run(case: Case, seed: int = 0) -> None:
    made = make(case, seed, CPU)
    lanes.run(made.problem, case.config, made.operands)
    found = judged(case, made)
    assert not found, f"{case}: {found}"


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3"])
@pytest.mark.parametrize("rule", ["even", *(pytest.param(r, marks=SLOW) for r in SCALE_ROUNDINGS if r != "even")])
def test_every_rounding_of_bf16_in_pairs(a_format: str, rule: str) -> None:
    for data in DATA:
        run(Case(5, 16, 256, ONE, a_format, rule, data=data))


@pytest.mark.parametrize(
    ("a_format", "a_dtype", "rule"),
    [
        ("e2m1", BF16, "even"),
        *(
            pytest.param(a_format, a_dtype, rule, marks=SLOW)
            for a_format, a_dtype, rule in (("e4m3", FP32, "floor"), ("bf16", FP16, "even"), ("e2m1", FP16, "rceil"))
        ),
    ],
)
def test_fragment_order_and_activations_rounded_before(a_format: str, a_dtype: torch.dtype, rule: str) -> None:
    """The two forms of each, in all four pairs."""
    for data in DATA:
        case = Case(11, 48, 288, replace(TWO, a_before=True), a_format, rule, a_dtype, derived="fp8_fold", data=data)
        run(case)
        if rule != "even":
            run(replace(case, config=TWO))
            run(replace(case, derived=""))
        if a_format == "e2m1":
            run(replace(case, config=replace(case.config, a_codes=True)))


SLOTS = MmaConfig(3, 1, 2, 2, a_slots=2, prefetch=True)


def test_activations_through_shared_memory() -> None:
    """With as many slots as a warp has chunks, and an odd number of tiles."""
    run(Case(3, 33, 288, replace(SLOTS, depth=1), derived="bf16", data="nan"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a_format", "config"),
    [
        ("e2m1", SLOTS),
        ("e4m3", SLOTS),
        ("bf16", replace(SLOTS, tiles=1, a_slots=1, depth=1)),
        ("e4m3", replace(SLOTS, tiles=5, warps_n=2, warps_m=2, depth=1)),
        ("bf16", replace(SLOTS, tiles=6, depth=1, a_slots=3)),
        ("e2m1", replace(SLOTS, warps_k=1, a_slots=4)),
    ],
    ids=str,
)
def test_slots_of_shared_memory(a_format: str, config: MmaConfig) -> None:
    """All of a warp's chunks at once, and fewer slots than chunks; odd numbers of tiles; rows past the last one."""
    for data in DATA:
        run(Case(11, 112, 416, config, a_format, derived="bf16", data=data))
    run(Case(3, 33, 288, replace(config, prefetch=False, warps_m=1), a_format, a_layout="padded"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a_format", "config"),
    [
        ("e2m1", MmaConfig(3, 2, 2, 1, a_slots=1)),
        ("e2m1", MmaConfig(1, 2, 2, 1, a_slots=4, warps_m=2)),
        ("e4m3", MmaConfig(1, 4, 2, 2, a_slots=2)),
        ("bf16", MmaConfig(2, 2, 1, 1, a_slots=1, splits=2)),
    ],
    ids=str,
)
def test_warps_along_n_share_slots(a_format: str, config: MmaConfig) -> None:
    """Each copies and rounds a part; one has no row of the weight, and what bf16 does not hold is left out by all."""
    for data in DATA:
        run(Case(11, 80, 544, config, a_format, derived="bf16", data=data))
    run(Case(3, 33, 544, config if config.warps_m == 1 else replace(config, warps_m=1), a_format))


AT_ONCE = MmaConfig(3, 1, 9, 1, overlap=True, a_slots=1, in_turn=True)


def test_all_chunks_at_once() -> None:
    """And one warp has none."""
    run(Case(16, 64, 1056, replace(AT_ONCE, warps_k=10), "bf16", derived="bf16", data="nan"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a_format", "config"),
    [
        ("e2m1", AT_ONCE),
        ("bf16", replace(AT_ONCE, warps_k=5, depth=2)),
        pytest.param("e2m1", replace(AT_ONCE, warps_k=5, depth=2, a_slots=2), marks=EXHAUSTIVE),
        ("e4m3", replace(AT_ONCE, warps_k=5, depth=2, a_slots=2, in_turn=False)),
        pytest.param("bf16", replace(AT_ONCE, warps_k=4), marks=EXHAUSTIVE),
        ("e2m1", MmaConfig(1, 3, 3, 1, a_slots=1)),
        pytest.param("bf16", MmaConfig(2, 3, 2, 1, a_slots=2, splits=2), marks=EXHAUSTIVE),
        ("e2m1", MmaConfig(1, 6, 2, 1, a_slots=1, splits=2)),
        pytest.param("e2m1", MmaConfig(2, 2, 3, 2, a_slots=2, splits=2), marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_at_once_in_turn_and_by_three(a_format: str, config: MmaConfig) -> None:
    """One round or several, four warps at a time or all; three and six warps that share A's slots."""
    for data in DATA:
        run(Case(11, 112, 1056, config, a_format, derived="bf16", bias=FP16, data=data))
    run(Case(32, 112, 1056, config, a_format, derived="bf16"))
    run(Case(3, 33, 1056, config, a_format, a_layout="padded"))


SPLIT = MmaConfig(2, 1, 2, 1, splits=2)


def test_workgroups_share_k() -> None:
    run(Case(3, 33, 544, replace(SPLIT, a_slots=2), derived="bf16", data="nan"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "a_format", "config"),
    [
        (1, "e2m1", SPLIT),
        (11, "bf16", replace(SPLIT, tiles=6, warps_n=2, a_slots=1, prefetch=True)),
        (9, "e2m1", replace(SPLIT, a_before=True, a_codes=True, splits=4, warps_k=1, prefetch=True)),
        (32, "e4m3", replace(SPLIT, splits=3, warps_k=1, warps_m=2)),
        (7, "bf16", replace(SPLIT, tiles=1, splits=5, warps_k=1, a_ahead=False, prefetch=True)),
    ],
    ids=str,
)
def test_clusters(m: int, a_format: str, config: MmaConfig) -> None:
    """Results that divide among the workgroups and those that do not, and workgroups with a chunk less."""
    for data in DATA:
        run(Case(m, 80, 672, config, a_format, bias=BF16, out_dtype=FP32, derived="bf16", data=data))
    run(Case(m, 16, 544, replace(config, prefetch=False), a_format, out_layout="transposed"))


@pytest.mark.slow
def test_a_chunk_that_is_left_calls_for_the_next_one() -> None:
    """Several rounds, of which some are for the second loop."""
    run(Case(5, 80, 1184, MmaConfig(5, 1, 2, 1), derived="bf16", data="spread"), 1)
    run(Case(5, 80, 1184, MmaConfig(1, 1, 2, 2), data="spread"), 1)


@pytest.mark.slow
def test_rounding_before_gives_the_same_bits() -> None:
    """And so do the rounding in registers, in pairs of bf16; a weight in fragment order adds in an order of its own."""
    for data, derived in (
        ("even", ""),
        ("spread", ""),
        ("nan", ""),
        ("even", "bf16"),
        ("spread", "bf16"),
        ("nan", "bf16"),
    ):
        case = Case(9, 32, 256, replace(ONE, a_before=True), out_dtype=FP32, data=data, derived=derived)
        found = []
        codes = replace(case, config=replace(case.config, a_codes=True))
        slots = replace(case, config=replace(ONE, a_slots=1))
        for one in (case, replace(case, config=ONE), slots, codes):
            made = make(one, 3, CPU)
            lanes.run(made.problem, one.config, made.operands)
            found.append(made.operands.out.view(torch.int32))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        assert torch.equal(found[0], found[3]) or data == "spread"  # there other chunks are for the second loop


@pytest.mark.slow
@pytest.mark.parametrize("a_dtype", [FP16, FP32])
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_every_rounding_in_fp32(a_format: str, a_dtype: torch.dtype) -> None:
    for data in DATA:
        run(Case(3, 16, 256, ONE, a_format, "floor", a_dtype, data=data))


def test_activations_in_bf16() -> None:
    for data in DATA:
        run(Case(8, 32, 256, ONE, "bf16", data=data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "n", "k", "config"),
    [
        (1, 1, 32, MmaConfig(1, 1, 1, 1, False)),
        (1, 2112, 96, MmaConfig(4, 2, 1, 1, True)),
        (32, 48, 2880, MmaConfig(2, 1, 7, 1, False)),
        (16, 130, 1152, MmaConfig(2, 2, 2, 2, True)),
        (9, 33, 2880, MmaConfig(1, 1, 8, 4, False)),
        (32, 100, 288, MmaConfig(4, 4, 1, 2, False)),
        (32, 100, 288, MmaConfig(4, 2, 1, 2, True, warps_m=4)),
        (17, 65, 416, MmaConfig(1, 1, 4, 1, True, warps_m=4, a_before=True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("derived", ["", "bf16"])
def test_sizes_and_configurations(m: int, n: int, k: int, config: MmaConfig, derived: str) -> None:
    for i, data in enumerate(("even", "nan")):
        run(Case(m, n, k, config, bias=BF16, out_dtype=FP32, derived=derived, data=data), i)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layouts",
    [
        {"layout": ("preshuffled", "shuffled")},
        {"layout": ("preshuffled", "row_major"), "out_layout": "transposed", "out_dtype": FP16, "bias": FP16},
        {"layout": ("row_major", "shuffled"), "w_layout": "padded", "a_layout": "padded", "out_layout": "padded"},
        {"w_layout": "transposed", "a_layout": "transposed", "bias": FP32},
        {"a_layout": "unaligned", "a_dtype": FP32},
        {"a_layout": "transposed", "a_dtype": FP16, "a_format": "bf16"},
    ],
    ids=str,
)
def test_layouts_and_strides(layouts: dict[str, Any]) -> None:
    for m, n, data in ((7, 48, "spread"), (7, 272, "even")):
        run(Case(m, n, 320, ONE, data=data, **layouts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(6)))
def test_drawn_cases(seed: int) -> None:
    """What bench/w4_mma.py draws for a GPU, as far as it is small."""
    cases = [case for case in mma_cases.drawn(300, seed) if case.n * case.k * -(-case.m // 8) < 100_000]
    for i, case in enumerate(cases[9 * seed : 9 * seed + 9]):
        for data in DATA:
            run(replace(case, data=data), i)


def one_block(a: Tensor, data: Tensor, scales: Tensor, a_format: str = "e2m1", derived: str = "") -> Tensor:
    """Multiply rows of one block each, A in bf16, and return fp32."""
    out = torch.full((a.shape[0], data.shape[0]), torch.nan)
    problem = Problem.of(
        a.shape[0], data.shape[0], a.shape[1], HOPPER, a_format=a_format, out_dtype=FP32, derived=derived,
        strides=Strides(a=a.stride(), b=data.stride(), b_scales=scales.stride(), out=out.stride()),  # type: ignore[arg-type]
    )  # fmt: skip
    order = (torch.empty(0), fragment_order(data, scales)) if derived else ()
    lanes.run(problem, MmaConfig(1, 1, 1, 1, False), Operands(a, None, data, scales, None, out, order))
    return out


@pytest.mark.parametrize("derived", [pytest.param("", marks=SLOW), "bf16"])
def test_every_code_and_scale_byte_is_exact(derived: str) -> None:
    """A has a single 1 or -2 a row, so results are decoded weights, and those whose scale is 255 are NaN."""
    codes = torch.arange(16, dtype=torch.uint8)
    data = (codes | codes.flip(0) << 4).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1)
    weight = replace(mxgemm.quantize(torch.zeros(256, 32)), data=data, scales=scales)
    exact = mma_cases.decoded(weight, CPU)
    for start in range(0, 32, 8):
        a = torch.zeros(8, 32, dtype=BF16)
        for i in range(8):
            a[i, start + i] = -2.0 if i % 2 else 1.0
        got = one_block(a, data, scales, derived=derived).double()
        want = (a.double() @ exact.T).float().double()  # infinite from 2^128 on
        want[:, 255] = torch.nan
        assert torch.equal(got.nan_to_num(7.0, 8.0, 9.0), want.nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.slow
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3"])
def test_every_bf16_is_rounded_as_quantize_does(a_format: str) -> None:
    """The weight is 1 in a place of its own for each value of the block that is looked at."""
    values = torch.arange(0, 1 << 16, 7, dtype=torch.int32).to(torch.int16).view(BF16)
    a = torch.zeros(values.numel(), 32, dtype=BF16)
    a[:, 3] = values
    a[:, 17] = values.abs().clamp(max=2.0**126) * 1.5 * (values.abs() < 1e30)
    want = mxgemm.dequantize(mxgemm.quantize(a, format=a_format))[:, 3]  # type: ignore[arg-type]
    data = torch.zeros(1, 16, dtype=torch.uint8)
    data[0, 1] = 2 << 4  # code 2 is 1, at k = 3
    scales = torch.full((1, 1), 127, dtype=torch.uint8)
    got = torch.cat([one_block(rows, data, scales, a_format)[:, 0] for rows in a.split(32)])
    assert torch.equal(got.nan_to_num(3.0), want.nan_to_num(3.0))
