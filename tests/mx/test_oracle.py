"""The oracle against numbers worked out by hand."""

import numpy as np
import pytest

from mxgemm.mx import oracle


def test_code_values() -> None:
    e4m3, e5m2 = oracle.code_values("e4m3"), oracle.code_values("e5m2")
    assert e4m3[[0, 1, 8, 0x38, 0x7E]].tolist() == [0, 2.0**-9, 2.0**-6, 1, 448]
    assert np.isnan(e4m3[[0x7F, 0xFF]]).all()
    assert e5m2[[0, 1, 4, 0x3C, 0x7B, 0x7C]].tolist() == [0, 2.0**-16, 2.0**-14, 1, 57344, np.inf]
    assert np.isnan(e5m2[[0x7D, 0x7E, 0x7F]]).all()


def test_scale_values() -> None:
    values = oracle.scale_values(np.array([0, 1, 127, 254, 255], dtype=np.uint8))
    assert values[:4].tolist() == [2.0**-127, 2.0**-126, 1, 2.0**127]
    assert np.isnan(values[4])


def test_decode_and_multiply_by_hand() -> None:
    data = np.zeros((1, 16), dtype=np.uint8)
    data[0, 0] = 0x1 | 0xA << 4  # 0.5, -1
    values = oracle.decode(data, np.array([[128]], dtype=np.uint8), "e2m1")
    assert values[0, :3].tolist() == [1, -2, 0]
    out = oracle.matmul(values, np.ones((2, 32)), np.array([10.0, 20.0]))
    assert out.tolist() == [[9, 19]]


@pytest.mark.parametrize("fmt", ["e2m1", "e4m3", "e5m2"])
@pytest.mark.parametrize("rule", ["floor", "even", "rceil", "ceil"])
def test_encode_takes_the_nearest_representable_value(fmt: str, rule: str) -> None:
    x = np.random.default_rng(1).normal(size=(16, 64)) * 3
    data, scales = oracle.encode(x, fmt, rule)
    got = oracle.decode(data, scales, fmt)
    values = oracle.code_values(fmt)
    values = values[np.isfinite(values)]
    scale = np.repeat(oracle.scale_values(scales), 32, axis=1)
    best = np.abs(values[None, None, :] * scale[..., None] - x[..., None]).min(axis=2)
    assert np.array_equal(np.abs(got - x), best)


def test_gates() -> None:
    ref = np.array([[1.0, 2.0]])
    a, b = np.ones((1, 1)), np.array([[1.0], [2.0]])
    assert oracle.gate_norm(ref, ref) == 0
    assert oracle.gate_norm(ref + 1, ref) == pytest.approx((2 / 5) ** 0.5)
    assert oracle.gate_elementwise(ref * (1 + 2.0**-8), ref, a, b) == 0
    assert oracle.gate_elementwise(ref * (1 + 2.0**-7), ref, a, b) == pytest.approx(2.0**16)
    tiny = ref * 1e-9
    assert oracle.gate_elementwise(tiny + 1e-8, tiny, a, b) > 0
    assert oracle.gate_elementwise(tiny + 1e-8, tiny, a, b, least_error=1.01e-8) == 0
    assert oracle.gate_elementwise(ref * np.nan, ref, a, b) == np.inf
    assert oracle.gate_elementwise(ref, ref * np.nan, a, b) == np.inf


@pytest.mark.parametrize("share", [0.0, 0.004, 0.3])
@pytest.mark.parametrize("odd", [None, np.nan, np.inf])
def test_the_elementwise_gate_is_what_the_worst_element_needs(share: float, odd: float | None) -> None:
    """However few elements are not rounded at once, and where the exact result is none."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(24, 64)), rng.normal(size=(40, 64))
    a[2] = np.nan if odd is not None else a[2]
    ref = a @ b.T
    out = np.where(rng.random(ref.shape) < share, ref * 1.5, ref)
    if odd is not None:
        out[5, 7] = odd
    summands = np.abs(a) @ np.abs(b).T
    needed = [
        max(0.0, (abs(out[at] - ref[at]) - 2.0**-8 * abs(ref[at])) * 2.0**24 / summands[at])
        for at in np.ndindex(ref.shape)
        if not np.isnan(ref[at])
    ]
    want = max(needed) if odd is None else np.inf
    assert oracle.gate_elementwise(out, ref, a, b) == pytest.approx(want, rel=1e-12)
