"""Folding to fp8: exact where it is taken, recomputed where it is not, the weight's choice made in prepare()."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.mx import fold, layouts, oracle
from mxgemm.mx.accuracy import compare
from mxgemm.mx.formats import SCALE_ROUNDINGS
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.fp8_fold import FoldConfig
from tests.cases import DEVICES, OUT_DTYPES, bytes_of, make, skip_without_kernels, spread, stored_scales

ROUTE = ROUTES["fp8_fold"]


def kind_of(weight: mxgemm.MXTensor) -> str:
    return weight.operand()[3]


def with_exponents(rows: list[list[int]], seed: int = 0) -> mxgemm.MXTensor:
    """A weight whose blocks have these scale bytes; -1 makes a block of zeros with byte 0."""
    scales = torch.tensor(rows)
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (len(rows), 16 * len(rows[0])), generator=generator).to(torch.uint8)
    data = torch.where(scales.repeat_interleave(16, dim=1) < 0, 0, data)
    return mxgemm.MXTensor.wrap(data, scales.clamp(min=0).to(torch.uint8))


def check(out: Tensor, a64: np.ndarray, weight: mxgemm.MXTensor, bias: Tensor | None = None) -> None:
    b64 = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
    ref = oracle.matmul(a64, b64, None if bias is None else bias.double().cpu().numpy())
    judged = compare(out, ref, a64, b64, ROUTE.accumulate_bits if out.is_cuda else 24)
    assert judged.passed, judged


def quantised(a: Tensor, rounding: str = "even") -> np.ndarray:
    return oracle.decode(*oracle.encode(a.cpu().float().numpy(), "e2m1", rounding), "e2m1")


@pytest.mark.parametrize("span", [0, 1, 8, 13, 14, 15, 30, 60])
def test_a_weight_folds_exactly_up_to_a_span_of_14(span: int) -> None:
    weight = with_exponents([[127, 127 + span, 130 if span > 3 else 127, -1], [100, 100, 100, 255]])
    base, folds = fold.row_bases(weight)
    assert folds.tolist() == [span <= fold.FOLD_SPAN, True]
    if span <= fold.FOLD_SPAN:
        data, scale = fold.fold(weight, base)
        assert data.shape == (16, 128)
        values = data.view(torch.float8_e4m3fn).double() * scale.double()[:, None]
        exact = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
        assert np.array_equal(values[:2].numpy(), exact, equal_nan=True)
        assert not values[2:].any()


@pytest.mark.parametrize("byte", [0, 1, 5, 6, 7, 127, 247, 253, 254])
def test_extreme_scale_bytes_fold(byte: int) -> None:
    weight = with_exponents([[byte, max(byte - 8, 0)]])
    base, folds = fold.row_bases(weight)
    assert folds.all()
    data, scale = fold.fold(weight, base)
    values = data.view(torch.float8_e4m3fn).double() * scale.double()[:, None]
    exact = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
    assert np.array_equal(values[:1].numpy(), exact)
    assert scale[0] >= 2.0**-126  # a normal float: nothing flushes it


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("m, n, k", [(1, 16, 32), (33, 50, 96), (5, 48, 2880), (70, 272, 288)])
@pytest.mark.slow
def test_numbers(m: int, n: int, k: int, memory: str, rounding: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(m, n, k, device=device, octaves=3)
    weight = case.weight.prepare(arch="sm_90", memory=memory)  # type: ignore[arg-type]
    assert kind_of(weight) == ("fp8_fold" if memory == "fast" else "fp8_fold_compact")
    out = mxgemm.gemm(case.a, weight, route="fp8_fold", scale_rounding=rounding)  # type: ignore[arg-type]
    check(out, quantised(case.a, rounding), case.weight)


@pytest.mark.parametrize("device", DEVICES)
def test_a_long_sum(device: str) -> None:
    skip_without_kernels(device)
    case = make(2, 16, 28672, device=device, octaves=3)
    weight = case.weight.prepare(arch="sm_90")
    assert kind_of(weight) == "fp8_fold"
    check(mxgemm.gemm(case.a, weight, route="fp8_fold"), quantised(case.a), case.weight)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("bias_dtype", [None, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [64, 50])
@pytest.mark.slow
def test_bias_output_dtype_and_odd_n(
    n: int, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, device: str
) -> None:
    skip_without_kernels(device)
    bias = None if bias_dtype is None else torch.randn(n).to(bias_dtype).to(device)
    case = make(9, n, 128, device=device, octaves=2)
    for memory in ("fast", "compact"):
        weight = case.weight.prepare(arch="sm_90", memory=memory)  # type: ignore[arg-type]
        for route in ("fp8_fold", "dequant_mm"):
            out = mxgemm.gemm(case.a, weight, bias=bias, out_dtype=out_dtype, route=route)
            assert out.dtype == out_dtype
            check(out, case.a64, case.weight, bias)
    strided = torch.full((9, 2 * n), torch.nan, dtype=out_dtype, device=device)[:, ::2]
    mxgemm.gemm(case.a, weight, bias=bias, out_dtype=out_dtype, out=strided, route="fp8_fold")
    check(strided, case.a64, case.weight, bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_dtype", OUT_DTYPES)
def test_rows_that_do_not_fold_are_exact(a_dtype: torch.dtype, device: str) -> None:
    skip_without_kernels(device)
    a = spread(40, 256, torch.float32, octaves=2)
    a[3, :32] *= 2.0**12  # one huge block among ordinary ones
    a[7, 64:] *= 2.0**-14
    a[9] = 0
    a[11, 32:] = 0  # the only block: nothing to be wide against
    a[13, :32] *= 2.0**15 if a_dtype != torch.float16 else 2.0**10
    a[21, 40] = torch.nan
    a[22, :32], a[22, 40] = a[22, :32] * 2.0**13, torch.inf
    a = a.to(a_dtype).to(device)
    case = make(40, 48, 256, device=device, octaves=2)
    weight = case.weight.prepare(arch="sm_90")
    out = mxgemm.gemm(a, weight, route="fp8_fold")
    assert out[[21, 22]].isnan().all()
    keep = [row for row in range(40) if row not in (21, 22)]
    a64 = quantised(a)
    check(out[keep], a64[keep], case.weight)
    wide = [3, 7, 13] if a_dtype != torch.float16 else [3, 7]
    b64 = oracle.decode(bytes_of(case.weight.data), bytes_of(case.weight.scales), "e2m1")
    judged = compare(out[wide], a64[wide] @ b64.T, a64[wide], b64)  # fp32 sums, unlike those of the fp8 units
    assert judged.passed, judged


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize(("m", "n", "wide"), [(300, 300, [0, 1, 63, 130, 299]), (2100, 144, [64, 2047, 2048, 2099])])
def test_rows_that_do_not_fold_in_some_tiles(m: int, n: int, wide: list[int], memory: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(m, n, 64, device=device, octaves=2)
    a = case.a.clone()
    a[wide, :32] *= 2.0**20
    weight = case.weight.prepare(arch="sm_90", memory=memory)  # type: ignore[arg-type]
    check(mxgemm.gemm(a, weight, route="fp8_fold"), quantised(a), case.weight)


@pytest.mark.parametrize("route", ["fp8_fold", "dequant_mm"])
@pytest.mark.parametrize("form", ["raw", "fast", "compact", "fast for bf16"])
@pytest.mark.parametrize("n", [128, 72])
@pytest.mark.parametrize("device", DEVICES)
def test_outputs_and_biases_at_any_address(n: int, form: str, route: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(37, n, 128, device=device, octaves=2)
    weight = case.weight
    if form != "raw":
        memory = "compact" if form == "compact" else "fast"
        weight = weight.prepare("sm_90", memory=memory, a_format="bf16" if "for" in form else "e2m1")  # type: ignore[arg-type]
    if route == "fp8_fold" and not kind_of(weight).startswith(route):
        pytest.skip("no form for it")
    memory_of, biases = torch.empty(37 * n + 8, dtype=torch.bfloat16, device=device), torch.randn(n + 8, device=device)
    for first, bias_dtype in ((1, None), (4, torch.bfloat16), (8, torch.bfloat16), (0, torch.float32)):
        out = memory_of[first : first + 37 * n].view(37, n).fill_(torch.nan)
        bias = None if bias_dtype is None else biases.to(bias_dtype)[first : first + n]
        mxgemm.gemm(case.a, weight, bias=bias, out=out, route=route)
        check(out, case.a64, case.weight, bias)


@pytest.mark.parametrize("device", DEVICES)
def test_huge_outlier_where_the_other_operand_is_zero(device: str) -> None:
    skip_without_kernels(device)
    case = make(4, 32, 128, device=device, octaves=1)
    a = case.a.clone()
    a[0, :32] = 0
    a[1, :32] *= 2.0**30
    weight = mxgemm.quantize(case.weight.dequantize() * torch.where(torch.arange(128) < 32, 0, 1).to(device))
    out = mxgemm.gemm(a, weight.prepare(arch="sm_90"), route="fp8_fold")
    check(out, quantised(a), weight)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "layout",
    [
        *(("row_major", "shuffled"), ("preshuffled", "row_major"), ("preshuffled", "shuffled")),
        ("row_major", "swizzled_32_4_4"),
    ],
)
@pytest.mark.slow
def test_layouts(layout: tuple[str, str], device: str) -> None:
    skip_without_kernels(device)
    case = make(9, 96, 320, device=device, octaves=3)
    case.a[2, :32] *= 2.0**14
    w = case.weight
    data = layouts.preshuffle_weight(w.data) if layout[0] == "preshuffled" else w.data
    scales = stored_scales(w, layout[1])
    wrapped = mxgemm.MXTensor.wrap(data, scales, weight_layout=layout[0], scale_layout=layout[1])  # type: ignore[arg-type]
    for memory in ("fast", "compact"):
        weight = wrapped.prepare(arch="sm_90", memory=memory)  # type: ignore[arg-type]
        for route in ("fp8_fold", "dequant_mm"):
            check(mxgemm.gemm(case.a, weight, route=route), quantised(case.a), case.weight)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("memory", [None, "fast", "compact"])
def test_dequant_mm(memory: str | None, a_format: str, device: str) -> None:
    skip_without_kernels(device)
    for octaves in (3, 12):  # 12: rows that do not fold
        case = make(17, 80, 288, device=device, a_format=a_format, octaves=octaves)
        weight = case.weight
        if memory is not None:
            weight = weight.prepare(arch="sm_90", memory=memory)  # type: ignore[arg-type]
        if octaves == 12:
            assert kind_of(weight) == ("bf16" if memory == "fast" else "")
        out = mxgemm.gemm(case.a, weight, a_format=a_format, route="dequant_mm")  # type: ignore[arg-type]
        case.check(out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("route", ["fp8_fold", "dequant_mm"])
@pytest.mark.slow
def test_slices_of_a_weight_meet(route: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels(device)
    from mxgemm.plan import clear_plans
    from mxgemm.routes import decode

    monkeypatch.setattr(decode, "SLICE_BYTES", 256 * 96)
    clear_plans()
    case = make(5, 600, 96, device=device, octaves=3)
    weight = case.weight.prepare(arch="sm_90", memory="compact")
    bias = torch.randn(600, device=device)
    check(mxgemm.gemm(case.a, weight, bias=bias, route=route), case.a64, case.weight, bias)
    for layout in ("shuffled", "swizzled_32_4_4"):
        stored = stored_scales(case.weight, layout)
        weight = mxgemm.MXTensor.wrap(case.weight.data, stored, scale_layout=layout)  # type: ignore[arg-type]
        weight = weight.prepare(arch="sm_90", memory="compact")
        check(mxgemm.gemm(case.a, weight, bias=bias, route=route), case.a64, case.weight, bias)
    clear_plans()


def test_prepare_and_refusals() -> None:
    weight = mxgemm.quantize(spread(48, 96, octaves=3))
    assert kind_of(weight.prepare(arch="sm_90")) == "fp8_fold"
    assert kind_of(weight.prepare(arch="sm_90").to("cpu")) == "fp8_fold"
    assert kind_of(weight.prepare()) == ""
    with pytest.raises(ValueError, match="memory: got 'huge', want one of fast, compact"):
        weight.prepare(memory="huge")  # type: ignore[arg-type]
    hopper = Machine("sm_90", 132, "H200")
    assert "not prepared" in str(ROUTE.refusal(Problem(64, 64, 64, hopper)))
    assert "prepared as bf16" in str(ROUTE.refusal(Problem.of(64, 64, 64, hopper, derived="bf16")))
    assert ROUTE.refusal(Problem.of(64, 64, 64, hopper, derived="fp8_fold")) is None
    for options, field in (
        ({"a_format": "bf16"}, "a"),
        ({"a_quantized": True}, "a"),
        ({"machine": Machine("gfx950", 256, "MI355X")}, "arch"),
        ({"k": 65536}, "k"),
    ):
        asked = {"m": 64, "n": 64, "k": 64, "machine": hopper, "derived": "fp8_fold", **options}
        assert ROUTE.refusal(Problem.of(**asked)).field == field  # type: ignore[union-attr]


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_multiply(device: str) -> None:
    skip_without_kernels(device)
    weight = mxgemm.quantize(spread(48, 96, octaves=3)).to(device).prepare(arch="sm_90")
    for route in ("fp8_fold", "dequant_mm"):
        assert mxgemm.gemm(torch.ones(0, 96, device=device), weight, route=route).shape == (0, 48)


@pytest.mark.parametrize("k", [512, 4096, 28672])
def test_sums_leave_the_tensor_core(k: int) -> None:
    problem = Problem.of(64, 64, k, Machine("sm_90", 132, "H200"), derived="fp8_fold")
    assert not any(config.fast_accumulation for config in ROUTE.candidates(problem))
    assert ROUTE.check_config(problem, FoldConfig()) is None
    refusal = ROUTE.check_config(problem, FoldConfig(fast_accumulation=True))
    assert refusal is not None
    assert refusal.field == "fast_accumulation"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("octaves", [0, 3])
def test_terms_of_one_sign(octaves: int, device: str) -> None:
    """Where sums keep few bits each step loses some, and always towards zero: per cents of the whole at this K."""
    skip_without_kernels(device)
    a, b = (spread(rows, 4096, torch.bfloat16, octaves=octaves, seed=rows).abs().to(device) for rows in (40, 64))
    weight = mxgemm.quantize(b).prepare(arch="sm_90")
    check(mxgemm.gemm(a, weight, route="fp8_fold"), quantised(a), weight)


FNUZ_BYTES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fnuz).double()


@pytest.mark.parametrize("span", [0, 1, 8, 13, 14, 15, 30])
def test_an_fnuz_weight_folds_exactly_up_to_a_span_of_14(span: int) -> None:
    """With every code of e2m1, the negative zero among them: its byte would be a NaN."""
    weight = with_exponents([[127, 127 + span, 130 if span > 3 else 127, -1], [100, 100, 100, 255]])
    codes = torch.arange(16, dtype=torch.uint8)
    weight.data[0, :16] = codes | (15 - codes) << 4
    base, folds = fold.row_bases(weight)
    assert folds.tolist() == [span <= fold.FOLD_SPAN, True]
    if span <= fold.FOLD_SPAN:
        data, scale = fold.fold(weight, base, fnuz=True)
        values = FNUZ_BYTES[data.int()] * scale.double()[:, None]
        exact = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
        assert np.array_equal(values[:2].numpy(), exact, equal_nan=True)
        assert not values[2:].any()
        assert values[0].isfinite().all()


@pytest.mark.parametrize("byte", [0, 1, 6, 7, 127, 247, 254])
def test_extreme_scale_bytes_fold_to_fnuz(byte: int) -> None:
    weight = with_exponents([[byte, max(byte - 8, 0)]])
    base, folds = fold.row_bases(weight)
    assert folds.all()
    data, scale = fold.fold(weight, base, fnuz=True)
    exact = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
    assert np.array_equal((FNUZ_BYTES[data[0].int()] * scale[0].double()).numpy(), exact[0])
    assert scale[0].isfinite()


@pytest.mark.parametrize("m, n, k", [(1, 16, 32), (33, 50, 96), (5, 48, 320)])
def test_fnuz_numbers(m: int, n: int, k: int) -> None:
    """The kernels in Triton's interpreter, the product by torch on FNUZ bytes, rows that do not fold among them."""
    skip_without_kernels("cpu")
    case = make(m, n, k, octaves=3)
    case.a[0, :32] *= 2.0**20  # spans more than 14 octaves wherever there is another block
    weight = case.weight.prepare(arch="gfx942")
    assert kind_of(weight) == "fp8_fold_fnuz"
    for bias in (None, torch.randn(n)):
        check(mxgemm.gemm(case.a, weight, bias=bias, route="fp8_fold"), quantised(case.a), case.weight, bias)
    case.a[m // 2, 5] = torch.nan
    out = mxgemm.gemm(case.a, weight, route="fp8_fold")
    assert out[m // 2].isnan().all()
    assert out.isnan().sum() == n


def test_each_machine_takes_its_own_kind_of_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: (3, 6))
    mi300, hopper = KNOWN_MACHINES["gfx942"], KNOWN_MACHINES["sm_90"]

    def refusal(machine: Machine, derived: str) -> str:
        return str(ROUTE.refusal(Problem.of(64, 64, 64, machine, derived=derived)))

    monkeypatch.setattr(torch.version, "hip", None)
    assert "2.7 or newer, built for ROCm" in refusal(mi300, "fp8_fold_fnuz")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert refusal(mi300, "fp8_fold_fnuz") == "None"
    assert "prepared as fp8_fold;" in refusal(mi300, "fp8_fold")
    assert "prepared as fp8_fold_fnuz;" in refusal(hopper, "fp8_fold_fnuz")
    monkeypatch.setattr(torch, "__version__", "2.6.0+rocm6.4")
    assert "2.7 or newer" in refusal(mi300, "fp8_fold_fnuz")
    monkeypatch.undo()
    problem = Problem.of(64, 64, 64, mi300, derived="fp8_fold_fnuz")
    assert str(ROUTE.check_config(problem, FoldConfig(fast_accumulation=True))).endswith("False: sums in fp32")
    assert ROUTE.check_config(problem, ROUTE.configs(problem)[0]) is None
