"""``mxgemm.quant_gemm``: every scheme and format against float64, in the reference and in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from mxgemm import ABBlock, ABlock, BBlock, QuantTensor, RowCol, TensorWise
from mxgemm.scaled.formats import FORMATS
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.plan import planned, stored
from mxgemm.scaled.problem import Operands, Options
from mxgemm.scaled.tile import Tile, tile_refusal
from mxgemm.scaled.triton_gemm import bind
from tests.cases import OUT_DTYPES, skip_without_kernels
from tests.scaled.cases import PAIRS, Case, column_major, ids, make

SMALL = ((1, 1, 32), (33, 40, 96))
ODD = ((5, 17, 288), (33, 72, 160))
LARGE = ((1, 2112, 2880), (33, 2880, 96), (33, 40, 2880))


def skip_unless(route: str) -> None:
    if route == "triton":
        skip_without_kernels("cpu")


def run(case: Case, **options: object) -> torch.Tensor:
    return mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_every_scheme_and_format(pair: tuple) -> None:
    for shape in (*SMALL, *ODD):
        case = make(pair, *shape, seed=sum(shape), bias=shape[0] == 5)
        case.check(run(case, bias=case.bias))
        case.check(run(case, bias=case.bias, route="reference"))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_every_scheme_and_format_by_triton(pair: tuple) -> None:
    skip_unless("triton")
    for shape in (*SMALL, ODD[0]):
        case = make(pair, *shape, seed=sum(shape), bias=shape[0] == 5)
        case.check(run(case, bias=case.bias, route="triton"))


@pytest.mark.parametrize("pair", [PAIRS[7]], ids=ids)
def test_one_scheme_by_triton(pair: tuple) -> None:
    skip_unless("triton")
    case = make(pair, 3, 17, 160)
    case.check(run(case, route="triton"))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_larger_odd_sizes(pair: tuple) -> None:
    for shape in LARGE:
        case = make(pair, *shape, seed=1)
        case.check(run(case))


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("pair", [PAIRS[2], PAIRS[7], PAIRS[8], PAIRS[11], PAIRS[12]], ids=ids)
def test_every_form_of_the_kernel(pair: tuple, swapped: bool) -> None:
    """Tiles of their own, transposed sums, split K, into poisoned memory between guards."""
    skip_unless("triton")
    m, n, k = 20, 72, 416
    case = make(pair, m, n, k)
    a, b = parts("a", case.a), parts("b", case.b)
    problem, _ = planned(a[0], a[1], b[0], b[1], Options(case.scheme, a[2], b[2], route="triton"))
    tensors = [stored(tensor) for tensor in (a[0], a[1], b[0], b[1])]
    for tile in (Tile(16, 32, 32, 1, swapped), Tile(32, 64, 32, 3, swapped), Tile(16, 64, 32, 13, swapped, run=1)):
        assert tile_refusal(problem, tile) is None
        memory = torch.full((m * n + 128,), torch.nan, dtype=torch.bfloat16)
        out = memory[64:-64].view(m, n)
        bind(problem, tile)(Operands(*tensors, None, out))  # type: ignore[arg-type]
        case.check(out)
        assert memory[:64].isnan().all()
        assert memory[-64:].isnan().all()


@pytest.mark.parametrize("scale", ["e4m3", "e5m2"])
def test_int4_with_fp8_scales(scale: str) -> None:
    for pair in ((ABlock(128), "int4", "e4m3"), (BBlock(1, 128), "e5m2", "int4")):
        case = make(pair, 9, 24, 288, scale=scale)
        case.check(run(case))


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["e4m3", "e5m2"])
def test_int4_with_fp8_scales_by_triton(scale: str) -> None:
    skip_unless("triton")
    for pair in ((ABlock(128), "int4", "e4m3"), (BBlock(1, 128), "e5m2", "int4")):
        case = make(pair, 9, 24, 288, scale=scale)
        case.check(run(case, route="triton"))


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_layouts_of_both_operands(pair: tuple) -> None:
    case = make(pair, 6, 24, 96)
    expected = run(case)
    for a, b in ((column_major(case.a), case.b), (case.a, column_major(case.b))):
        assert torch.equal(mxgemm.quant_gemm(a, b, scheme=case.scheme), expected)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [PAIRS[5], PAIRS[9], PAIRS[12]], ids=ids)
def test_layouts_of_both_operands_by_triton(pair: tuple) -> None:
    skip_unless("triton")
    case = make(pair, 6, 24, 96)
    for a, b in ((column_major(case.a), case.b), (case.a, column_major(case.b))):
        case.check(mxgemm.quant_gemm(a, b, scheme=case.scheme, route="triton"))


@pytest.mark.parametrize("route", ["reference", "triton"])
@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
def test_outputs(out_dtype: torch.dtype, route: str) -> None:
    """Fresh memory, a strided view, one that has no view of two dimensions: the same bits, nothing beside them."""
    skip_unless(route)
    case = make(PAIRS[7], 6, 17, 64)
    fresh = run(case, out_dtype=out_dtype, route=route)
    case.check(fresh)
    wide = torch.full((6, 40), torch.nan, dtype=out_dtype)
    assert run(case, out=wide[:, 2:36:2], out_dtype=out_dtype, route=route).data_ptr() == wide[:, 2:].data_ptr()
    assert torch.equal(wide[:, 2:36:2], fresh)
    assert wide[:, 3::2].isnan().all()
    a = QuantTensor(case.a.data.view(2, 3, 64), case.a.scales.reshape(2, 3, 1))
    turned = torch.full((3, 2, 17), torch.nan, dtype=out_dtype).transpose(0, 1)
    mxgemm.quant_gemm(a, case.b, scheme=case.scheme, out=turned, out_dtype=out_dtype, route=route)
    assert torch.equal(turned.reshape(6, 17), fresh)


def test_leading_dimensions() -> None:
    for pair in PAIRS:
        case = make(pair, 6, 17, 64)
        flat = run(case)
        if isinstance(case.a, QuantTensor):
            data = case.a.data.view(2, 3, -1)
            scales = (
                case.a.scales if pair[0].a_kind == "tensor" else case.a.scales.reshape(2, 3, *case.a.scales.shape[1:])
            )
            a = QuantTensor(data, scales, case.a.format)
        else:
            a = case.a.view(2, 3, -1)
        assert torch.equal(mxgemm.quant_gemm(a, case.b, scheme=case.scheme), flat.view(2, 3, 17))


def test_nothing_to_multiply() -> None:
    for pair in PAIRS:
        assert run(make(pair, 0, 17, 64)).shape == (0, 17)
        bias = torch.randn(17)
        case = make(pair, 3, 17, 0)
        assert run(case).eq(0).all()
        assert torch.equal(
            mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, bias=bias, out_dtype=torch.float32)[1], bias
        )


@pytest.mark.parametrize("route", ["reference", "triton"])
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_every_code_of_fp8(fmt: str, route: str) -> None:
    """NaN stays NaN and infinity infinite."""
    skip_unless(route)
    dtype = FORMATS[fmt].dtype
    a = torch.zeros(256, 32, dtype=torch.uint8)
    a[:, 0] = torch.arange(256)
    b = torch.ones(16, 32).to(dtype)
    left = QuantTensor(a, torch.ones(256, 1), fmt)
    out = mxgemm.quant_gemm(left, b, scheme=ABlock(32), out_dtype=torch.float32, route=route)
    value = a.view(dtype).float()[:, :1].expand(256, 16)
    torch.testing.assert_close(out, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("route", ["reference", "triton"])
def test_scales_that_are_not_finite_and_zeros(route: str) -> None:
    skip_unless(route)
    for pair in (PAIRS[2], PAIRS[7], PAIRS[12]):
        scheme = pair[0]
        case = make(pair, 4, 16, 64)
        nan = torch.tensor(255, dtype=torch.uint8) if scheme.b_powers else torch.tensor(torch.nan)
        scales = case.b.scales.clone()
        scales.view(-1)[0] = nan
        b = QuantTensor(case.b.data, scales, case.b.format)
        out = mxgemm.quant_gemm(case.a, b, scheme=scheme, route=route)
        hit = torch.zeros(16, dtype=torch.bool)
        hit[: scheme.b_group[0] if scheme.b_kind == "group" else 1] = True
        assert out[:, hit].isnan().all()
        assert out[:, ~hit].isfinite().all()
        zeros = QuantTensor(torch.zeros_like(case.b.data), case.b.scales, case.b.format)
        assert mxgemm.quant_gemm(case.a, zeros, scheme=scheme, route=route).eq(0).all()


def test_scales_of_one_number() -> None:
    case = make((TensorWise(), "e4m3", "e4m3"), 5, 16, 64)
    a = QuantTensor(case.a.data, case.a.scales.reshape(()))
    assert torch.equal(mxgemm.quant_gemm(a, case.b, scheme=TensorWise()), run(case))


def test_scales_changed_in_place_are_read_anew() -> None:
    case = make((RowCol(), "e4m3", "e4m3"), 5, 16, 64)
    before = run(case, out_dtype=torch.float32)
    case.b.scales.mul_(2)
    assert torch.equal(run(case, out_dtype=torch.float32), 2 * before)


def test_a_lazily_negated_bias_and_output() -> None:
    case = make(PAIRS[2], 5, 16, 64)
    bias = torch.randn(16, dtype=torch.complex64).conj().imag
    assert bias.is_neg()
    assert torch.equal(run(case, bias=bias), run(case, bias=bias.resolve_neg()))
    out = torch.randn(5, 16, dtype=torch.complex64).conj().imag
    run(case, out=out, out_dtype=torch.float32)
    assert torch.equal(out.resolve_neg(), run(case, out_dtype=torch.float32))


def test_autocast_and_defaults_change_nothing() -> None:
    case = make(PAIRS[7], 5, 16, 256)
    plain = run(case, out_dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run(case, out_dtype=torch.float32), plain)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(run(case, out_dtype=torch.float32), plain)
        assert (
            mxgemm.quantize_for(torch.ones(2, 128, dtype=torch.float32), ABBlock(), "a").scales.dtype == torch.float32
        )
    finally:
        torch.set_default_dtype(before)
