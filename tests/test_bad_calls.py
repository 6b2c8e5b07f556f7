"""Wrong calls: the exact exception, naming argument, got and wanted, and nothing written."""

import pytest
import torch

import mxgemm


def _good() -> dict[str, object]:
    w = mxgemm.quantize(torch.ones(32, 64))
    return {"a": torch.ones(4, 64, dtype=torch.bfloat16), "b": w.data, "b_scales": w.scales}


_U8 = torch.uint8
BAD_CALLS = {
    "a is a list": ({"a": [1.0]}, TypeError, "a: got list, want a bf16, fp16 or fp32 tensor"),
    "a is an array": ({"a": torch.ones(4, 64).numpy()}, TypeError, "a: got ndarray"),
    "a is fp64": ({"a": torch.ones(4, 64, dtype=torch.float64)}, TypeError, "a: got a torch.float64 tensor"),
    "a is integer": ({"a": torch.ones(4, 64, dtype=_U8)}, TypeError, "a: got a torch.uint8 tensor"),
    "a is an MXTensor": ({"a": mxgemm.quantize(torch.ones(4, 64))}, TypeError, "a: got an MXTensor, .* gemm_mx"),
    "a is a scalar": ({"a": torch.tensor(1.0)}, ValueError, "a: got a scalar"),
    "K % 32": ({"a": torch.ones(4, 48)}, ValueError, r"a: got K = 48 .*, want a multiple of 32"),
    "K differs": ({"a": torch.ones(4, 96)}, ValueError, r"b: got shape \(32, 32\), which holds K = 64 .* want K = 96"),
    "b is missing": ({"b": None}, TypeError, "b: got NoneType, want a tensor of uint8 or float4_e2m1fn_x2"),
    "b is float": ({"b": torch.ones(32, 32)}, TypeError, "b: got a torch.float32 tensor"),
    "b is fp8": ({"b": torch.ones(32, 32).to(torch.float8_e4m3fn)}, TypeError, "b: got a torch.float8_e4m3fn tensor"),
    "scales are fp8": (
        {"b_scales": torch.ones(32, 2).to(torch.float8_e4m3fn)}, TypeError, "b_scales: got a torch.float8_e4m3fn tensor"
    ),
    "b is 1-D": ({"b": torch.ones(32, dtype=_U8)}, ValueError, r"b: got shape \(32,\), want two dimensions"),
    "b is unpacked": ({"b": torch.ones(32, 64, dtype=_U8)}, ValueError, "b: .* which holds K = 128"),
    "N is 0": ({"b": torch.ones(0, 32, dtype=_U8)}, ValueError, "b: .* want N of at least 1"),
    "scales missing": ({"b_scales": None}, TypeError, "b_scales: got None, want the E8M0 scales"),
    "scales are float": ({"b_scales": torch.ones(32, 2)}, TypeError, "b_scales: got a torch.float32 tensor"),
    "scales transposed": ({"b_scales": torch.ones(2, 32, dtype=_U8)}, ValueError, r"b_scales: got shape \(2, 32\)"),
    "scales too many": ({"b_scales": torch.ones(32, 4, dtype=_U8)}, ValueError, r"want \(32, 2\) for N = 32, K = 64"),
    "scales not padded": ({"scale_layout": "shuffled"}, ValueError, r"b_scales: .* want \(256, 8\)"),
    "b cannot be shuffled": (
        {"b": torch.ones(33, 32, dtype=_U8), "weight_layout": "preshuffled"}, ValueError, "N = 33 is not a multiple"
    ),
    "a_format": ({"a_format": "fp8"}, ValueError, "a_format: got 'fp8', want one of 'e2m1', 'e4m3', 'bf16'"),
    "a_format unhashable": ({"a_format": []}, ValueError, r"a_format: got \[\]"),
    "scale_rounding": ({"scale_rounding": "up"}, ValueError, "scale_rounding: got 'up'"),
    "weight_layout": ({"weight_layout": "col"}, ValueError, "weight_layout: got 'col'"),
    "scale_layout": ({"scale_layout": None}, ValueError, "scale_layout: got None"),
    "route": ({"route": "cublas"}, ValueError, "route: got 'cublas', want one of None, "),
    "out_dtype": ({"out_dtype": torch.int8}, TypeError, "out_dtype: got torch.int8"),
    "bias dtype": ({"bias": torch.ones(32, dtype=torch.int32)}, TypeError, "bias: got a torch.int32 tensor"),
    "bias shape": ({"bias": torch.ones(31)}, ValueError, r"bias: got shape \(31,\), want \(32,\)"),
    "out shape": ({"out": torch.ones(32, 4, dtype=torch.bfloat16)}, ValueError, r"out: got shape .* want \(4, 32\)"),
    "out dtype": ({"out": torch.ones(4, 32)}, TypeError, "out: got a torch.float32 tensor .* want a torch.bfloat16"),
    "out overlaps itself": (
        {"out": torch.ones(1, 32, dtype=torch.bfloat16).expand(4, 32)}, ValueError, "out: got strides"
    ),
    "a on meta": ({"a": torch.ones(4, 64, device="meta")}, ValueError, "b: got device cpu, want meta like a"),
    "b on meta": ({"b": torch.ones(32, 32, dtype=_U8, device="meta")}, ValueError, "b: got device meta, want cpu"),
    "bias on meta": ({"bias": torch.ones(32, device="meta")}, ValueError, "bias: got device meta, want cpu"),
    "grad": ({"a": torch.ones(4, 64, requires_grad=True)}, RuntimeError, r"a: requires grad, .* torch.no_grad\(\)"),
}  # fmt: skip


@pytest.mark.parametrize("change, error, message", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_calls(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mxgemm.gemm(**{**_good(), **change})  # type: ignore[arg-type]


def test_bad_calls_with_an_mx_weight() -> None:
    a, w = torch.ones(4, 64), mxgemm.quantize(torch.ones(32, 64))
    with pytest.raises(TypeError, match="b_scales: got a value although b is an MXTensor"):
        mxgemm.gemm(a, w, w.scales)
    with pytest.raises(ValueError, match="weight_layout: got 'preshuffled', but b is an MXTensor whose layout"):
        mxgemm.gemm(a, w, weight_layout="preshuffled")
    with pytest.raises(ValueError, match="b: got shape .* want two dimensions"):
        mxgemm.gemm(a, mxgemm.quantize(torch.ones(2, 2, 64)))
    with pytest.raises(TypeError, match="a: got a torch.float32 tensor .* want an MXTensor"):
        mxgemm.gemm_mx(a, w)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="b: got a torch.float32 tensor .* want an MXTensor"):
        mxgemm.gemm_mx(w, a)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="b: .* which holds K = 64 .* want K = 96"):
        mxgemm.gemm_mx(mxgemm.quantize(torch.ones(4, 96)), w)
    with pytest.raises(TypeError, match="positional"):
        mxgemm.gemm(a, w, None, "bf16")  # type: ignore[misc]


def test_nothing_is_written_when_a_call_is_refused() -> None:
    out = torch.full((4, 32), 3.0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="scale_rounding"):
        mxgemm.gemm(**_good(), out=out, scale_rounding="up")  # type: ignore[arg-type]
    assert out.eq(3).all()
