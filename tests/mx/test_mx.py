"""Quantisation to the byte: known bytes as tables, the oracle on random data, the same on every device."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mxgemm
from mxgemm.mx import layouts, oracle
from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS
from mxgemm.mx.tensor import MXTensor
from tests.cases import DEVICES, bytes_of, spread

MAX_FLOAT = float(np.finfo(np.float32).max)
INF, NAN = float("inf"), float("nan")


def block(*values: float) -> torch.Tensor:
    x = torch.zeros(32)
    x[: len(values)] = torch.tensor(values)
    return x


def scale_byte(x: torch.Tensor, rounding: str, fmt: str = "e2m1") -> int:
    return int(mxgemm.quantize(x, format=fmt, scale_rounding=rounding).scales)


def codes(x: torch.Tensor, rounding: str = "even") -> list[int]:
    data = bytes_of(mxgemm.quantize(x, scale_rounding=rounding).data)
    return [int(code) for byte in data for code in (byte & 15, byte >> 4)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "amax, floor, even, rceil, ceil",
    [
        (6.0, 127, 127, 127, 128),
        (6.5, 127, 127, 128, 128),
        (7.0, 127, 128, 128, 128),
        (7.5, 127, 128, 128, 128),
        (8.0, 128, 128, 128, 128),
        (4.0, 127, 127, 127, 127),
        (0.3, 123, 123, 123, 124),
        (0.75, 124, 124, 124, 125),
        (np.nextafter(np.float32(7), np.float32(0)), 127, 127, 128, 128),
        (np.nextafter(np.float32(6), np.float32(8)), 127, 127, 128, 128),
        (np.nextafter(np.float32(4), np.float32(0)), 126, 127, 127, 127),
        (np.nextafter(np.float32(4), np.float32(8)), 127, 127, 127, 128),
        (0.0, 0, 0, 0, 0),
        (2.0**-149, 0, 0, 0, 0),
        (2.0**-127, 0, 0, 0, 0),
        (2.0**-126, 0, 0, 0, 0),
        (2.0**-125, 0, 0, 0, 0),
        (2.0**-124, 1, 1, 1, 1),
        (1.75 * 2.0**-125, 0, 1, 1, 1),
        (MAX_FLOAT, 252, 253, 253, 253),
        (INF, 255, 255, 255, 255),
        (-INF, 255, 255, 255, 255),
        (NAN, 255, 255, 255, 255),
    ],
)
def test_known_scale_bytes_e2m1(amax: float, floor: int, even: int, rceil: int, ceil: int, device: str) -> None:
    want = {"floor": floor, "even": even, "rceil": rceil, "ceil": ceil}
    for position in (0, 31):
        x = torch.zeros(32)
        x[position] = float(amax)
        assert {rule: scale_byte(x.to(device), rule) for rule in want} == want


@pytest.mark.parametrize(
    "fmt, amax, floor, even, rceil, ceil",
    [
        ("e4m3", 448.0, 127, 127, 127, 128),
        ("e4m3", 450.0, 127, 127, 128, 128),
        ("e4m3", 496.0, 127, 128, 128, 128),
        ("e4m3", 495.9, 127, 127, 128, 128),
        ("e5m2", 57344.0, 127, 127, 127, 128),
        ("e5m2", 61440.0, 127, 128, 128, 128),
        ("e5m2", 61439.0, 127, 127, 128, 128),
        ("e5m2", 0.0, 0, 0, 0, 0),
        ("e4m3", NAN, 255, 255, 255, 255),
    ],
)
def test_known_scale_bytes_fp8(fmt: str, amax: float, floor: int, even: int, rceil: int, ceil: int) -> None:
    want = {"floor": floor, "even": even, "rceil": rceil, "ceil": ceil}
    assert {rule: scale_byte(block(amax), rule, fmt) for rule in want} == want


@pytest.mark.parametrize(
    "value, code",
    [
        (0.0, 0),
        (0.25, 0),  # tie of 0 and 0.5
        (0.2500001, 1),
        (0.5, 1),
        (0.75, 2),  # tie of 0.5 and 1
        (0.7499999, 1),
        (1.25, 2),
        (1.2500001, 3),
        (1.75, 4),
        (1.7499999, 3),
        (2.5, 4),
        (2.5000002, 5),
        (3.5, 6),
        (3.4999998, 5),
        (5.0, 6),
        (5.0000005, 7),
        (6.0, 7),
        (6.9999995, 7),  # saturates: the largest value of a block that `even` gives scale 1
    ],
)
def test_elements_round_to_nearest_even(value: float, code: int) -> None:
    got = codes(block(4.0, value, -value))
    assert got[1:3] == [code, code | 8]
    assert got[3:] == [0] * 29


def test_sign_of_zero_is_kept_unless_the_block_is_zero() -> None:
    assert codes(block(1.0, -0.0, -1e-6))[1:3] == [8, 8]
    assert codes(torch.full((32,), -0.0)) == [0] * 32


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("fmt", FORMATS)
def test_block_with_nan_or_inf_decodes_to_nan_and_spares_its_neighbours(bad: float, fmt: str) -> None:
    x = torch.ones(2, 96)
    x[1, 40] = bad
    q = mxgemm.quantize(x, format=fmt)
    assert q.scales[1, 1] == 255
    assert not q.data[1, 32 // q.format.pack : 64 // q.format.pack].any()
    values = q.dequantize()
    assert values[1, 32:64].isnan().all()
    assert values[0].eq(1).all()
    assert values[1, :32].eq(1).all()
    assert values[1, 64:].eq(1).all()


def test_saturating_fp8_never_overflows() -> None:
    for fmt in ("e4m3", "e5m2"):
        q = mxgemm.quantize(block(MAX_FLOAT, -MAX_FLOAT), format=fmt, scale_rounding="floor")
        assert q.dequantize().isfinite().all()


def test_least_scale_byte_is_a_subnormal_not_zero() -> None:
    q = MXTensor.wrap(torch.full((16,), 0x77, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8))
    assert q.dequantize().eq(6 * 2.0**-127).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_bytes_equal_the_oracle(fmt: str, rounding: str, device: str) -> None:
    x = spread(67, 2880, octaves=70)
    x[3, 5], x[4, 40], x[5, :64], x[6, :32] = NAN, INF, 0, -0.0
    x[7] = torch.linspace(-8, 8, 2880)  # holds every tie
    x[8] = torch.linspace(-600, 600, 2880)
    x[9] = spread(1, 2880)[0] * 2.0**-135
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given_x = x.to(dtype)
        q = mxgemm.quantize(given_x.to(device), format=fmt, scale_rounding=rounding)  # type: ignore[arg-type]
        data, scales = oracle.encode(given_x.float().numpy(), fmt, rounding)
        assert np.array_equal(bytes_of(q.scales), scales)
        assert np.array_equal(bytes_of(q.data), data)
        decoded = bytes_of(mxgemm.dequantize(q)).astype(np.float64)
        assert np.array_equal(decoded, oracle.decode(data, scales, fmt).astype(np.float32), equal_nan=True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=32, max_size=32),
    st.sampled_from(SCALE_ROUNDINGS),
    st.sampled_from(sorted(FORMATS)),
)
def test_any_block_equals_the_oracle(values: list[float], rounding: str, fmt: str) -> None:
    x = torch.tensor([values])
    q = mxgemm.quantize(x, format=fmt, scale_rounding=rounding)  # type: ignore[arg-type]
    data, scales = oracle.encode(x.numpy(), fmt, rounding)
    assert np.array_equal(bytes_of(q.scales), scales)
    assert np.array_equal(bytes_of(q.data), data)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SCALE_ROUNDINGS))
def test_quantising_again_changes_nothing(seed: int, rounding: str) -> None:
    # Not true of every rule: `ceil` moves the scale of a block whose amax is no power of two at each pass.
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)) * 10
    once = mxgemm.quantize(x, scale_rounding="floor").dequantize()
    assert torch.equal(once, mxgemm.quantize(once, scale_rounding="floor").dequantize())
    error = (mxgemm.quantize(x, scale_rounding=rounding).dequantize() - x).abs()  # type: ignore[arg-type]
    amax = x.view(4, 2, 32).abs().amax(-1, keepdim=True).expand(4, 2, 32).reshape(4, 64)
    assert (error <= amax / 4 + 1e-30).all()  # the widest gap of e2m1, 2 of 6, halved, and clipping 8 to 6


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[:, 32:96],
        lambda x: x[:, ::2],
        lambda x: x.t().contiguous().t(),
        lambda x: x[1:],
        lambda x: x[:1].expand(5, -1),
    ],
    ids=["every other row", "columns", "strided columns", "transposed", "offset", "expanded"],
)
def test_views_give_the_same_bytes(view: object) -> None:
    x = view(spread(8, 128))  # type: ignore[operator]
    q, want = mxgemm.quantize(x), mxgemm.quantize(x.contiguous())
    assert torch.equal(q.data, want.data)
    assert torch.equal(q.scales, want.scales)


@pytest.mark.parametrize("shape", [(32,), (0, 64), (3, 0), (2, 3, 64), (1, 1, 1, 32)])
def test_shapes(shape: tuple[int, ...]) -> None:
    q = mxgemm.quantize(torch.ones(shape))
    assert q.shape == shape
    assert q.data.shape == (*shape[:-1], shape[-1] // 2)
    assert q.scales.shape == (*shape[:-1], shape[-1] // 32)
    assert mxgemm.dequantize(q).eq(1).all()


@pytest.mark.parametrize(
    "x, options, error, message",
    [
        ([1.0], {}, TypeError, "x: got list, want a bf16, fp16 or fp32 tensor"),
        (torch.ones(32, dtype=torch.float64), {}, TypeError, "x: got a torch.float64 tensor"),
        (torch.ones(32, dtype=torch.int32), {}, TypeError, "x: got a torch.int32 tensor"),
        (torch.ones(33), {}, ValueError, "x: got shape .33,., want a last dimension that is a multiple of 32"),
        (torch.tensor(1.0), {}, ValueError, "x: got shape"),
        (torch.ones(32), {"format": "fp4"}, ValueError, "format: got 'fp4'"),
        (torch.ones(32), {"scale_rounding": "nearest"}, ValueError, "scale_rounding: got 'nearest'"),
    ],
)
def test_bad_input_of_quantize(x: object, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mxgemm.quantize(x, **options)  # type: ignore[arg-type]


def test_wrap_views_torchs_own_dtypes() -> None:
    q = mxgemm.quantize(spread(32, 64))
    fp4, e8m0 = q.data.view(torch.float4_e2m1fn_x2), q.scales.view(torch.float8_e8m0fnu)
    wrapped = MXTensor.wrap(fp4, e8m0)
    assert torch.equal(wrapped.dequantize(), q.dequantize())
    assert wrapped.data.data_ptr() == q.data.data_ptr()
    q8 = mxgemm.quantize(spread(32, 64), format="e4m3")
    wrapped8 = MXTensor.wrap(q8.data.view(torch.float8_e4m3fn), q8.scales, format="e4m3")
    assert torch.equal(wrapped8.dequantize(), q8.dequantize())


@pytest.mark.parametrize(
    "data, scales, options, error, message",
    [
        (torch.zeros(4, 16), torch.zeros(4, 1, dtype=torch.uint8), {}, TypeError, "data: got a torch.float32 tensor"),
        (torch.zeros(4, 16, dtype=torch.uint8), None, {}, TypeError, "scales: got NoneType"),
        (
            torch.zeros(4, 16, dtype=torch.uint8),
            torch.zeros(4, 2, dtype=torch.uint8),
            {},
            ValueError,
            r"scales: got shape \(4, 2\), want \(4, 1\)",
        ),
        (
            torch.zeros(4, 12, dtype=torch.uint8),
            torch.zeros(4, 1, dtype=torch.uint8),
            {},
            ValueError,
            r"shape: got \(4, 24\), want a last dimension",
        ),
        (
            torch.zeros(4, 32, dtype=torch.uint8),
            torch.zeros(4, 2, dtype=torch.uint8),
            {"weight_layout": "preshuffled"},
            ValueError,
            "N = 4 is not a multiple of 16",
        ),
        (
            torch.zeros(16, 32, dtype=torch.uint8),
            torch.zeros(16, 2, dtype=torch.uint8),
            {"scale_layout": "shuffled"},
            ValueError,
            r"want \(256, 8\) \(shuffled\)",
        ),
    ],
)
def test_bad_input_of_wrap(data: object, scales: object, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MXTensor.wrap(data, scales, **options)  # type: ignore[arg-type]


def test_prepare_keeps_the_values_and_to_rebuilds_it() -> None:
    q = mxgemm.quantize(spread(48, 128))
    assert q.prepare().operand() == (q.data, q.scales, q.layout, "", ())  # the CPU reads row-major bytes
    ready = q.prepare(arch="gfx950")
    assert ready.prepared is not None
    assert ready.prepared.layout == layouts.Layout("preshuffled", "shuffled")
    assert ready.prepared.kind == "preshuffled"
    data, scales, layout, _, _ = ready.operand()
    read = MXTensor.wrap(data, scales, weight_layout=layout.data, scale_layout=layout.scales)
    assert torch.equal(read.dequantize(), q.dequantize())
    assert torch.equal(ready.data, q.data)
    again = ready.clone().prepared  # made again, for the architecture that was named
    assert again is not None
    assert (again.kind, again.arguments) == ("preshuffled", ("gfx950", "fast", True, "e2m1"))
    odd = mxgemm.quantize(spread(50, 128)).prepare(arch="gfx950")
    assert odd.prepared is not None
    assert odd.prepared.kind == ""
    with pytest.raises(ValueError, match="prepare: got shape"):
        mxgemm.quantize(torch.ones(2, 2, 2, 32)).prepare()


def test_dequantize_dtypes() -> None:
    q = mxgemm.quantize(spread(4, 64))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert mxgemm.dequantize(q, dtype=dtype).dtype == dtype
    with pytest.raises(TypeError, match="dtype: got torch.float64"):
        mxgemm.dequantize(q, dtype=torch.float64)


def test_parts_of_leading_dimensions_are_views() -> None:
    w = mxgemm.quantize(torch.randn(3, 6, 64))
    for index in (1, slice(1, 3), (0, slice(None, None, 2)), (slice(None), 5), -1, (2, 3), np.int64(1)):
        part = w[index]  # type: ignore[index]
        whole = w.dequantize()
        assert torch.equal(part.dequantize(), whole[index])  # type: ignore[index]
        assert part.shape == tuple(whole[index].shape)  # type: ignore[index]
        assert part.data.untyped_storage().data_ptr() == w.data.untyped_storage().data_ptr()
    assert [torch.equal(one.dequantize(), two) for one, two in zip(w, w.dequantize(), strict=True)] == [True] * 3
    assert w[0].prepare("gfx950")[0:2].prepared is None
    for wrong in (None, ..., True, 1.5, "1", torch.tensor(1), [0]):
        with pytest.raises(TypeError, match="index: got .*, want integers and slices"):
            w[wrong]  # type: ignore[index]
    with pytest.raises(ValueError, match=r"index: got 3 for shape \(3, 6, 64\), want at most 2: K stays whole"):
        w[0, 0, 0]
    with pytest.raises(IndexError):
        w[3]
    swizzled = MXTensor.wrap(w[0].data, layouts.swizzle_scales(w.scales[0]), scale_layout="swizzled_32_4_4")
    with pytest.raises(ValueError, match="index: got a row-major, scales swizzled-32-4-4 tensor, want row-major"):
        swizzled[0]
