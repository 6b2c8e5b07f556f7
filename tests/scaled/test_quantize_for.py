"""``mxgemm.quantize_for``: scales and codes by the formula, in numpy; errors; what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import ABBlock, ABlock, BBlock, QuantTensor, RowCol, TensorWise
from mxgemm.mx import oracle as mx_oracle
from mxgemm.scaled import oracle
from mxgemm.scaled.formats import FORMATS
from tests.scaled.cases import PAIRS, ids, raw, worth

VALUES = {
    name: np.unique(oracle.element_values(np.arange(256, dtype=np.uint8), name)) for name in FORMATS if name != "bf16"
}


def spread(rows: int, k: int) -> torch.Tensor:
    x = torch.randn(rows, k)
    return x * torch.exp2(torch.randint(-12, 12, (rows, k // 32)).float()).repeat_interleave(32, 1)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_round_trip(pair: tuple) -> None:
    """Every element is the nearest that its scale allows, and each block's largest is hit."""
    scheme, a_format, b_format = pair
    for side, fmt in (("a", a_format), ("b", b_format)):
        x = spread(40, 288)
        q = mxgemm.quantize_for(x, scheme, side, format=fmt)  # type: ignore[arg-type]
        if not isinstance(q, QuantTensor):
            assert torch.equal(
                q, x.clamp(-FORMATS[fmt].max, FORMATS[fmt].max).to(q.dtype) if fmt != "bf16" else x.bfloat16()
            )
            continue
        shape = scheme.a_scale_shape((40,), 288) if side == "a" else scheme.b_scale_shape(40, 288)
        assert tuple(q.scales.shape) == shape
        values = worth(q, fmt, scheme, side)
        factor = worth(QuantTensor(torch.ones(40, 288).bfloat16(), q.scales, "bf16"), "bf16", scheme, side)
        exact = x.double().numpy() / factor
        if fmt == "bf16":
            np.testing.assert_allclose(values / factor, exact, rtol=2**-8)
            continue
        finite = VALUES[fmt][np.isfinite(VALUES[fmt]) & (np.abs(VALUES[fmt]) <= FORMATS[fmt].max)]
        nearest = np.abs(exact[..., None] - finite).min(-1)
        # fp32's division may round across a tie: a roundoff of what is divided.
        assert (np.abs(values / factor - exact) <= nearest + 2.0**-22 * np.abs(exact)).all()
        assert np.abs(exact).max() <= FORMATS[fmt].max * (1 + 2.0**-22)


def test_the_scale_is_amax_over_max() -> None:
    x = spread(6, 256)
    amax = x.view(6, 2, 128).abs().amax(-1)
    assert torch.equal(mxgemm.quantize_for(x, ABlock(), "a").scales, amax / 448)
    assert torch.equal(mxgemm.quantize_for(x, RowCol(), "b", format="e5m2").scales, x.abs().amax(1) / 57344)
    assert torch.equal(mxgemm.quantize_for(x, TensorWise(), "a").scales, x.abs().max().view(1) / 448)
    scales = mxgemm.quantize_for(x, BBlock(1, 32, "e8m0"), "b", format="e2m1").scales
    power = np.ceil(np.log2(x.double().view(6, 8, 32).abs().amax(-1).numpy() / 6))
    np.testing.assert_array_equal(mx_oracle.scale_values(scales.numpy()), 2.0**power)


def test_where_the_scales_lie() -> None:
    x = torch.randn(48, 640)
    assert mxgemm.quantize_for(x, ABBlock(), "a").scales.stride() == (1, 48)
    assert mxgemm.quantize_for(x, ABBlock(128, 1, 128), "b").scales.stride() == (1, 48)
    assert mxgemm.quantize_for(x, ABBlock(128, 16, 128), "b").scales.is_contiguous()
    assert mxgemm.quantize_for(x, BBlock(1, 32, "e8m0"), "b", format="e2m1").scales.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_scales_of_int4(dtype: torch.dtype) -> None:
    x = torch.randn(16, 256)
    q = mxgemm.quantize_for(x, BBlock(), "b", format="int4", scale_dtype=dtype)
    assert q.scales.dtype == dtype
    worst = np.abs(worth(q, "int4", BBlock(), "b") - x.double().numpy()).max()
    assert worst < 0.5 * float(x.abs().max()) / 4  # half a step of a scale that was rounded by up to an eighth


def test_zeros_and_what_is_not_finite() -> None:
    x = torch.randn(4, 256)
    x[0] = 0
    x[1, 3] = torch.nan
    x[2, 200] = -torch.inf
    for scheme, fmt in ((ABlock(), "e4m3"), (ABlock(), "int4"), (ABBlock(), "e2m1")):
        q = mxgemm.quantize_for(x, scheme, "a", format=fmt)
        assert q.scales[0].eq(1).all()
        values = worth(q, fmt, scheme, "a")
        assert (values[0] == 0).all()
        nan = np.isnan(values)
        assert nan[1, :128].all()
        assert nan[2, 128:].all()
        assert nan.sum() == 256
    tiny = mxgemm.quantize_for(torch.full((1, 128), 1e-42), ABlock(), "a")
    assert tiny.scales.item() == 2.0**-126
    powers = mxgemm.quantize_for(x, BBlock(1, 32, "e8m0"), "b", format="e2m1").scales
    assert powers[1, 0] == 255
    assert powers[0].eq(127).all()


def test_a_stack_of_matrices_is_each_of_them() -> None:
    x = torch.randn(3, 24, 160)
    for scheme in (TensorWise(), RowCol(), ABBlock(), BBlock(1, 128)):
        whole = mxgemm.quantize_for(x, scheme, "b")
        for g in range(3):
            one = mxgemm.quantize_for(x[g], scheme, "b")
            assert np.array_equal(raw(whole.data[g]), raw(one.data))
            assert torch.equal(whole.scales[g].view(-1) if scheme == TensorWise() else whole.scales[g], one.scales)


def test_empty() -> None:
    for shape in ((0, 256), (4, 0)):
        for scheme in (TensorWise(), RowCol(), ABBlock()):
            q = mxgemm.quantize_for(torch.empty(shape), scheme, "a")
            assert q.shape == shape


def test_wrong_arguments() -> None:
    x = torch.randn(4, 256)
    for error, match, arguments, options in (
        (TypeError, "x: got a torch.float64 tensor", (x.double(), RowCol(), "a"), {}),
        (TypeError, "x: got list", ([1.0], RowCol(), "a"), {}),
        (TypeError, "scheme: got None", (x, None, "a"), {}),
        (ValueError, "side: got 'c', want one of a, b", (x, RowCol(), "c"), {}),
        (ValueError, "format: got 'fp8'", (x, RowCol(), "a"), {"format": "fp8"}),
        (ValueError, "format: got 'int4', want one that RowCol.. takes for a", (x, RowCol(), "a"), {"format": "int4"}),
        (ValueError, "format: got 'e2m1', want one that ABlock", (x, ABlock(), "b"), {"format": "e2m1"}),
        (ValueError, r"x: got shape \(256,\), want \[N, K\]", (x[0], RowCol(), "b"), {}),
        (ValueError, "x: got K = 255, want an even one", (x[:, :255], ABlock(), "a"), {"format": "int4"}),
        (TypeError, "scale_dtype: got torch.float16", (x, RowCol(), "a"), {"scale_dtype": torch.float16}),
    ):
        with pytest.raises(error, match=match):
            mxgemm.quantize_for(*arguments, **options)
    with pytest.raises(RuntimeError, match="x: a derivative is taken"):
        torch.func.grad(lambda y: mxgemm.quantize_for(y, RowCol(), "a").scales.sum())(x)
