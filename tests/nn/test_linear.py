"""MXLinear: what it computes, how it is made, what it refuses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mxgemm
from mxgemm.nn import MXLinear
from tests.cases import make, spread

SHAPES = [(1, 33, 96), (33, 1, 32), (4, 2112, 64), (3, 48, 2880)]


def linear(n: int, k: int, dtype: torch.dtype = torch.float32, bias: bool = True, seed: int = 0) -> nn.Linear:
    """A layer whose block scales differ."""
    layer = nn.Linear(k, n, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(spread(n, k, seed=seed))
    return layer


@pytest.mark.parametrize("a_format", ["bf16", "e4m3", "e2m1"])
@pytest.mark.parametrize("m, n, k", SHAPES, ids=str)
def test_a_layer_is_the_product_of_its_bytes(m: int, n: int, k: int, a_format: str) -> None:
    bias = torch.randn(n)
    case = make(m, n, k, a_format=a_format, a_dtype=torch.float32, bias=bias)
    layer = MXLinear.from_mx(case.weight, bias, a_format=a_format)
    case.check(layer(case.a))


@pytest.mark.parametrize("rounding", ["even", "floor", "ceil", "rceil"])
def test_from_linear_quantises_both_operands_by_one_rule(rounding: str) -> None:
    layer = MXLinear.from_linear(linear(33, 96), a_format="e2m1", scale_rounding=rounding)
    want = mxgemm.quantize(spread(33, 96), scale_rounding=rounding)
    assert torch.equal(layer.weight, want.data)
    assert torch.equal(layer.weight_scale, want.scales)
    x = spread(5, 96)
    got = mxgemm.gemm(x, want, bias=layer.bias.detach(), scale_rounding=rounding, out_dtype=torch.float32)
    assert torch.equal(layer(x), got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (2, 1, 3), (0,), (2, 0)], ids=str)
def test_the_result_has_the_dtype_and_the_leading_dimensions_of_the_input(
    leading: tuple[int, ...], dtype: torch.dtype
) -> None:
    layer = MXLinear.from_linear(linear(33, 64, dtype))
    x = torch.randn(*leading, 64).to(dtype)
    out = layer(x)
    assert (out.shape, out.dtype) == ((*leading, 33), dtype)
    if out.numel():
        rows = torch.stack([layer(row) for row in x.reshape(-1, 64)]).view(out.shape)
        assert torch.allclose(out, rows, rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu"):
        assert torch.equal(layer(x), out)


def test_strided_inputs() -> None:
    layer = MXLinear.from_linear(linear(17, 64))
    whole = torch.randn(6, 4, 128)
    for x in (whole[::2, :, ::2], whole.transpose(0, 1)[..., 64:], whole[..., :64].expand(2, 6, 4, 64)):
        assert torch.equal(layer(x), layer(x.contiguous()))


def test_no_block_that_is_not_a_number_becomes_one() -> None:
    layer = MXLinear.from_linear(linear(8, 64))
    x = torch.randn(3, 64)
    x[1, 40] = torch.nan
    out = MXLinear.from_mx(layer.mx_tensor(), a_format="e2m1")(x)
    assert out.isnan().all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("bias", [True, False])
def test_nothing_is_a_number_before_something_is_loaded(bias: bool) -> None:
    layer = MXLinear(64, 33, bias=bias, dtype=torch.bfloat16)
    assert layer(torch.randn(2, 64)).isnan().all()
    assert (layer.weight.shape, layer.weight_scale.shape) == ((33, 32), (33, 2))
    assert {name for name, _ in layer.named_parameters()} == {"weight", "weight_scale"} | ({"bias"} if bias else set())


def test_layers_share_what_they_are_made_of() -> None:
    weight = mxgemm.quantize(spread(16, 64))
    bias = nn.Parameter(torch.zeros(16))
    layer = MXLinear.from_parts(weight.data, weight.scales, bias)
    assert layer.weight.data_ptr() == weight.data.data_ptr()
    assert layer.bias is bias
    x = torch.randn(2, 64)
    before = layer(x)
    weight.data.copy_(weight.data.flip(0))
    assert not torch.equal(layer(x), before)
    assert torch.equal(layer(x), mxgemm.gemm(x, weight, bias=bias.detach(), a_format="bf16", out_dtype=torch.float32))


def test_torchs_own_dtypes_for_the_bytes() -> None:
    weight = mxgemm.quantize(spread(16, 64))
    scales = weight.scales.view(torch.float8_e8m0fnu)
    layer = MXLinear.from_parts(weight.data.view(torch.float4_e2m1fn_x2), scales)
    assert layer.weight.dtype == layer.weight_scale.dtype == torch.uint8
    assert torch.equal(layer(torch.ones(1, 64)), MXLinear.from_mx(weight)(torch.ones(1, 64)))


def test_a_layer_made_under_inference_mode_is_like_any_other() -> None:
    with torch.inference_mode():
        layer = MXLinear.from_linear(linear(16, 64))
        new = MXLinear(64, 16)
    for one in (layer, new):
        assert not any(parameter.is_inference() for parameter in (one.weight, one.weight_scale))
    layer.prepare("sm_90")
    x = torch.randn(2, 64, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None


def test_mode_and_repr() -> None:
    assert not MXLinear.from_linear(linear(16, 64).eval()).training
    layer = MXLinear.from_linear(linear(16, 64), a_format="e4m3", scale_rounding="floor")
    sizes = "in_features=64, out_features=16, bias=True, a_format=e4m3, scale_rounding=floor"
    assert repr(layer) == f"MXLinear({sizes})"
    layer.prepare("sm_90")
    assert repr(layer) == f"MXLinear({sizes}, prepared as bf16)"
    layer.prepare("gfx950")
    assert "prepared as preshuffled" in repr(layer)


W = mxgemm.quantize(torch.ones(16, 64))
BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "K": (lambda: MXLinear(50, 16), ValueError, "in_features: got 50, want a multiple of 32"),
    "N": (lambda: MXLinear(64, 0), ValueError, "out_features: got 0, want at least 1"),
    "no integer": (lambda: MXLinear(64.0, 16), TypeError, "in_features: got 64.0, want an int"),
    "no flag": (lambda: MXLinear(64, 16, "yes"), TypeError, "bias: got 'yes', want True or False"),
    "dtype": (lambda: MXLinear(64, 16, dtype=torch.float64), TypeError, "dtype: got torch.float64"),
    "a_format": (lambda: MXLinear(64, 16, a_format="fp4"), ValueError, "a_format: got 'fp4', want one of"),
    "rounding": (lambda: MXLinear(64, 16, scale_rounding="up"), ValueError, "scale_rounding: got 'up'"),
    "no linear": (lambda: MXLinear.from_linear(nn.ReLU()), TypeError, "linear: got ReLU, want a torch.nn.Linear"),
    "float64": (lambda: MXLinear.from_linear(nn.Linear(64, 16).double()), TypeError, "x: got a torch.float64"),
    "no tensor": (lambda: MXLinear.from_mx(torch.ones(16, 64)), TypeError, "want an MXTensor"),
    "format": (lambda: MXLinear.from_mx(mxgemm.quantize(torch.ones(16, 64), format="e4m3")), ValueError, "want e2m1"),
    "3-D": (lambda: MXLinear.from_mx(mxgemm.quantize(torch.ones(2, 16, 64))), ValueError, r"want \(N, K\)"),
    "bias": (lambda: MXLinear.from_mx(W, torch.ones(15)), ValueError, r"bias: got shape \(15,\), want \(16,\)"),
    "bias dtype": (lambda: MXLinear.from_mx(W, torch.ones(16).int()), TypeError, "bias: got a torch.int32"),
    "bias device": (lambda: MXLinear.from_mx(W, torch.ones(16, device="meta")), ValueError, "bias: got device meta"),
    "parts": (lambda: MXLinear.from_parts(W.data, W.scales[:3]), ValueError, "scales: got shape"),
    "float parts": (lambda: MXLinear.from_parts(W.data.float(), W.scales), TypeError, "data: got a torch.float32"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_makes_no_layer_is_named(what: str) -> None:
    make_layer, error, message = BAD[what]
    with pytest.raises(error, match=message):
        make_layer()


@pytest.mark.parametrize(
    "x, error, message",
    [
        (torch.ones(2, 64).double(), TypeError, "x: got a torch.float64 tensor"),
        (torch.ones(2, 64).int(), TypeError, "x: got a torch.int32 tensor"),
        ([1.0], TypeError, "x: got list"),
        (torch.ones(2, 96), ValueError, r"x: got shape \(2, 96\), want \[\.\.\., 64\]"),
        (torch.tensor(1.0), ValueError, r"x: got shape \(\)"),
        (torch.ones(2, 64, device="meta"), ValueError, "device"),
    ],
    ids=["float64", "int", "list", "K", "scalar", "device"],
)
def test_wrong_inputs_are_named(x: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MXLinear.from_mx(W)(x)
