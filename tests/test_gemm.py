"""The call: numbers on every option, views, edges, bad input, no caching of what a caller may change."""

import threading

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import layouts
from mxgemm.formats import ACTIVATION_FORMATS, FORMATS, SCALE_ROUNDINGS
from mxgemm.plan import clear_plans
from tests.cases import DEVICES, OUT_DTYPES, make, shuffled_with_poison, spread

ODD_SHAPES = [(1, 1, 32), (1, 2112, 96), (33, 16, 2880), (33, 2880, 64), (8, 48, 512), (257, 50, 128)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", ACTIVATION_FORMATS)
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
def test_numbers(m: int, n: int, k: int, a_format: str, device: str) -> None:
    case = make(m, n, k, device=device, a_format=a_format)
    out = mxgemm.gemm(case.a, case.weight, a_format=a_format)  # type: ignore[arg-type]
    assert out.dtype == torch.bfloat16
    case.check(out)
    loose = mxgemm.gemm(case.a, case.weight.data, case.weight.scales, a_format=a_format)  # type: ignore[arg-type]
    assert torch.equal(out, loose)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("a_dtype", OUT_DTYPES)
def test_every_scale_rule_and_activation_dtype(a_dtype: torch.dtype, rounding: str, device: str) -> None:
    for a_format in ACTIVATION_FORMATS:
        case = make(5, 48, 192, device=device, a_format=a_format, scale_rounding=rounding, a_dtype=a_dtype)
        case.check(mxgemm.gemm(case.a, case.weight, a_format=a_format, scale_rounding=rounding))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("bias_dtype", [None, *OUT_DTYPES])
def test_bias_and_output_dtype(bias_dtype: torch.dtype | None, out_dtype: torch.dtype, device: str) -> None:
    bias = None if bias_dtype is None else torch.randn(48).to(bias_dtype).to(device)
    case = make(3, 48, 128, device=device, bias=bias)
    out = mxgemm.gemm(case.a, case.weight, bias=bias, out_dtype=out_dtype)
    assert out.dtype == out_dtype
    case.check(out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("b_format", FORMATS)
@pytest.mark.parametrize("weight_layout", layouts.WEIGHT_LAYOUTS)
@pytest.mark.parametrize("scale_layout", layouts.SCALE_LAYOUTS)
def test_every_layout_and_weight_format(scale_layout: str, weight_layout: str, b_format: str, device: str) -> None:
    case = make(17, 96, 320, device=device, b_format=b_format)
    w = case.weight
    data = layouts.preshuffle_weight(w.data) if weight_layout == "preshuffled" else w.data
    scales = shuffled_with_poison(w) if scale_layout == "shuffled" else w.scales
    wrapped = mxgemm.MXTensor.wrap(
        data, scales, format=b_format, weight_layout=weight_layout, scale_layout=scale_layout  # type: ignore[arg-type]
    )  # fmt: skip
    case.check(mxgemm.gemm(case.a, wrapped))
    if b_format == "e2m1":
        loose = mxgemm.gemm(case.a, data, scales, weight_layout=weight_layout, scale_layout=scale_layout)  # type: ignore[arg-type]
        case.check(loose)


@pytest.mark.parametrize("device", DEVICES)
def test_prepared_weight_gives_the_same(device: str) -> None:
    case = make(7, 64, 256, device=device)
    ready = case.weight.prepare(arch="gfx950")
    case.check(mxgemm.gemm(case.a, ready))
    assert torch.equal(
        mxgemm.gemm(case.a, ready, route="reference"), mxgemm.gemm(case.a, case.weight, route="reference")
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", FORMATS)
@pytest.mark.parametrize("b_format", FORMATS)
def test_gemm_mx_mixes_formats(b_format: str, a_format: str, device: str) -> None:
    case = make(9, 33, 160, device=device, a_format=a_format, b_format=b_format)
    a = mxgemm.quantize(case.a, format=a_format)  # type: ignore[arg-type]
    bias = torch.randn(33, device=device)
    case.check(mxgemm.gemm_mx(a, case.weight))
    with_bias = make(9, 33, 160, device=device, a_format=a_format, b_format=b_format, bias=bias)
    with_bias.check(mxgemm.gemm_mx(a, case.weight, bias=bias, out_dtype=torch.float32))


def test_gemm_mx_leading_dimensions_and_shuffled_scales() -> None:
    case = make(6, 32, 64)
    a = mxgemm.quantize(case.a.view(2, 3, 64))
    out = mxgemm.gemm_mx(a, case.weight)
    assert out.shape == (2, 3, 32)
    case.check(out)
    flat = mxgemm.quantize(case.a)
    shuffled = mxgemm.MXTensor.wrap(flat.data, layouts.shuffle_scales(flat.scales), scale_layout="shuffled")
    case.check(mxgemm.gemm_mx(shuffled, case.weight))


def test_quantised_activations_equal_activations_quantised_inside() -> None:
    case = make(12, 48, 96)
    for fmt in ("e2m1", "e4m3"):
        a = mxgemm.quantize(case.a, format=fmt, scale_rounding="rceil")  # type: ignore[arg-type]
        inside = mxgemm.gemm(case.a, case.weight, a_format=fmt, scale_rounding="rceil", route="reference")  # type: ignore[arg-type]
        assert torch.equal(mxgemm.gemm_mx(a, case.weight, route="reference"), inside)


@pytest.mark.parametrize("device", DEVICES)
def test_torchs_own_dtypes(device: str) -> None:
    case = make(4, 32, 64, device=device)
    w = case.weight
    out = mxgemm.gemm(case.a, w.data.view(torch.float4_e2m1fn_x2), w.scales.view(torch.float8_e8m0fnu))
    assert torch.equal(out, mxgemm.gemm(case.a, w))


VIEWS = {
    "every other row": lambda x: x[::2],
    "rows from the middle": lambda x: x[3:9],
    "columns from the middle": lambda x: x[:, 64:192],
    "strided columns": lambda x: x[:, ::2],
    "transposed storage": lambda x: x.t().contiguous().t(),
    "expanded row": lambda x: x[:1].expand(4, -1),
    "odd storage offset": lambda x: (
        torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_of_activations(view: object, device: str) -> None:
    a = view(spread(16, 256, torch.bfloat16).to(device))  # type: ignore[operator]
    w = mxgemm.quantize(spread(32, a.shape[1], seed=5)).to(device)
    assert torch.equal(mxgemm.gemm(a, w), mxgemm.gemm(a.contiguous().clone(), w))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "view", ["every other row", "rows from the middle", "transposed storage", "odd storage offset"]
)
def test_views_of_weight_and_scales(view: str, device: str) -> None:
    big = mxgemm.quantize(spread(16, 256, seed=5)).to(device)
    data, scales = VIEWS[view](big.data), VIEWS[view](big.scales)
    a = spread(3, 256, torch.bfloat16).to(device)
    out = mxgemm.gemm(a, data, scales)
    assert torch.equal(out, mxgemm.gemm(a, data.contiguous().clone(), scales.contiguous().clone()))


@pytest.mark.parametrize("device", DEVICES)
def test_leading_dimensions(device: str) -> None:
    case = make(12, 48, 64, device=device)
    want = mxgemm.gemm(case.a, case.weight)
    for shape in [(3, 4), (2, 1, 6), (12,)]:
        out = mxgemm.gemm(case.a.view(*shape, 64), case.weight)
        assert out.shape == (*shape, 48)
        assert torch.equal(out.view(12, 48), want)
    permuted = case.a.view(3, 4, 64).transpose(0, 1)
    assert torch.equal(mxgemm.gemm(permuted, case.weight), want.view(3, 4, 48).transpose(0, 1))
    vector = mxgemm.gemm(case.a[0], case.weight)
    assert vector.shape == (48,)
    assert torch.equal(vector, want[0])


@pytest.mark.parametrize("device", DEVICES)
def test_out(device: str) -> None:
    case = make(6, 48, 64, device=device)
    want = mxgemm.gemm(case.a, case.weight)
    for out in (
        torch.full((6, 48), torch.nan, dtype=torch.bfloat16, device=device),
        torch.full((6, 96), torch.nan, dtype=torch.bfloat16, device=device)[:, ::2],
        torch.full((48, 6), torch.nan, dtype=torch.bfloat16, device=device).t(),
    ):
        assert mxgemm.gemm(case.a, case.weight, out=out) is out
        assert torch.equal(out, want)
    batched = torch.full((3, 48, 2), torch.nan, dtype=torch.bfloat16, device=device).permute(2, 0, 1)
    mxgemm.gemm(case.a.view(2, 3, 64), case.weight, out=batched)  # no two-dimensional view exists
    assert torch.equal(batched.reshape(6, 48), want)
    guarded = torch.full((8, 50), 7.0, dtype=torch.bfloat16, device=device)
    mxgemm.gemm(case.a, case.weight, out=guarded[1:7, 1:49])
    assert torch.equal(guarded[1:7, 1:49], want)
    guarded[1:7, 1:49] = 7
    assert guarded.eq(7).all()


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_multiply(device: str) -> None:
    w = mxgemm.quantize(spread(16, 64)).to(device)
    assert mxgemm.gemm(torch.ones(0, 64, dtype=torch.bfloat16, device=device), w).shape == (0, 16)
    assert mxgemm.gemm(torch.ones(2, 0, 64, device=device), w).shape == (2, 0, 16)
    empty = mxgemm.MXTensor.wrap(torch.empty(16, 0, dtype=torch.uint8), torch.empty(16, 0, dtype=torch.uint8)).to(
        device
    )
    a = torch.ones(3, 0, dtype=torch.bfloat16, device=device)
    assert mxgemm.gemm(a, empty).eq(0).all()
    bias = torch.arange(16.0, device=device)
    assert torch.equal(mxgemm.gemm(a, empty, bias=bias), bias.bfloat16().expand(3, 16))
    out = torch.full((3, 16), torch.nan, dtype=torch.bfloat16, device=device)
    assert mxgemm.gemm(a, empty, out=out).eq(0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", ACTIVATION_FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_activation_spoils_its_row_only(bad: float, a_format: str, device: str) -> None:
    case = make(4, 32, 96, device=device, a_format=a_format)
    clean = mxgemm.gemm(case.a, case.weight, a_format=a_format)  # type: ignore[arg-type]
    case.a[2, 40] = bad
    out = mxgemm.gemm(case.a, case.weight, a_format=a_format)  # type: ignore[arg-type]
    keep = torch.tensor([0, 1, 3], device=device)
    assert torch.equal(out[keep], clean[keep])
    if a_format == "bf16":  # Inf is a bf16 value: times a zero weight it is NaN, else Inf
        assert not out[2].isfinite().any() or case.weight.dequantize()[:, 40].eq(0).any()
    else:
        assert out[2].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_nan_scale_spoils_its_column_only(device: str) -> None:
    case = make(4, 32, 96, device=device)
    clean = mxgemm.gemm(case.a, case.weight)
    case.weight.scales[5, 1] = 255
    out = mxgemm.gemm(case.a, case.weight)
    assert out[:, 5].isnan().all()
    out[:, 5] = clean[:, 5]
    assert torch.equal(out, clean)


@pytest.mark.parametrize("device", DEVICES)
def test_zeros(device: str) -> None:
    w = mxgemm.quantize(torch.zeros(16, 64)).to(device)
    assert mxgemm.gemm(torch.ones(2, 64, device=device), w).eq(0).all()
    full = mxgemm.quantize(spread(16, 64)).to(device)
    assert mxgemm.gemm(torch.full((2, 64), -0.0, device=device), full).eq(0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_one_hot_activations_give_the_decoded_weight_bit_for_bit(device: str) -> None:
    w = mxgemm.quantize(spread(48, 96, seed=3)).to(device)
    eye = torch.eye(96, dtype=torch.bfloat16, device=device)
    assert torch.equal(mxgemm.gemm(eye, w, out_dtype=torch.float32), w.dequantize().t())


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_fresh_and_inputs_are_read_anew(device: str) -> None:
    case = make(4, 32, 64, device=device)
    first = mxgemm.gemm(case.a, case.weight)
    kept = first.clone()
    second = mxgemm.gemm(case.a, case.weight)
    assert first.data_ptr() != second.data_ptr()
    case.a.mul_(2)
    assert torch.equal(mxgemm.gemm(case.a, case.weight), kept * 2)
    case.weight.scales.add_(1)
    assert torch.equal(mxgemm.gemm(case.a, case.weight), kept * 4)
    assert torch.equal(first, kept)


def test_threads_agree() -> None:
    case = make(8, 64, 128)
    want = mxgemm.gemm(case.a, case.weight)
    clear_plans()
    results: list[Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(mxgemm.gemm(case.a, case.weight))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(result, want) for result in results)


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
    "everything on meta": (
        {
            "a": torch.ones(4, 64, device="meta"),
            "b": torch.ones(32, 32, dtype=_U8, device="meta"),
            "b_scales": torch.ones(32, 2, dtype=_U8, device="meta"),
        },
        ValueError,
        "device: got meta",
    ),
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


def test_output_must_not_share_memory_with_an_input() -> None:
    memory = torch.zeros(64, 64, dtype=torch.bfloat16)
    w = mxgemm.quantize(torch.ones(64, 64))
    for _ in range(2):  # the second call finds its plan made
        with pytest.raises(ValueError, match="out: shares memory with a, want memory of its own"):
            mxgemm.gemm(memory, w, out=memory)
    mxgemm.gemm(memory[:32], w, out=memory[32:])


def test_gradients() -> None:
    w = mxgemm.quantize(torch.ones(32, 64))
    a = torch.ones(4, 64, requires_grad=True)
    with torch.no_grad():
        assert not mxgemm.gemm(a, w).requires_grad
    for _ in range(2):  # a plan made without grad must not let the call through
        with pytest.raises(RuntimeError, match="a: requires grad"):
            mxgemm.gemm(a, w)
    assert mxgemm.gemm(torch.nn.Parameter(torch.ones(4, 64), requires_grad=False), w).shape == (4, 32)


def test_nothing_is_written_when_a_call_is_refused() -> None:
    out = torch.full((4, 32), 3.0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="scale_rounding"):
        mxgemm.gemm(**_good(), out=out, scale_rounding="up")  # type: ignore[arg-type]
    assert out.eq(3).all()


def test_chunks_of_the_reference_route_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    from mxgemm.routes import reference

    monkeypatch.setattr(reference, "TILE_BYTES", 4 * 96 * 20)  # twenty rows a tile: 16 and 32 do not divide it
    clear_plans()
    bias = torch.randn(112)
    case = make(45, 112, 96, bias=bias)
    w = case.weight
    case.check(mxgemm.gemm(case.a, w, bias=bias, route="reference"))
    prepared = mxgemm.MXTensor.wrap(
        layouts.preshuffle_weight(mxgemm.quantize(spread(112, 128)).data),
        layouts.shuffle_scales(mxgemm.quantize(spread(112, 128)).scales),
        weight_layout="preshuffled",
        scale_layout="shuffled",
    )
    a = spread(45, 128, torch.bfloat16)
    small = mxgemm.gemm(a, prepared, route="reference")
    monkeypatch.undo()
    clear_plans()
    torch.testing.assert_close(small, mxgemm.gemm(a, prepared, route="reference"), rtol=1e-2, atol=1e-5)
