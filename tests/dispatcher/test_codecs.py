import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mxgemm.dispatcher import codecs

TYPES = [("fp8", "gfx950"), ("bf8", "gfx950"), ("fp8", "gfx942"), ("bf8", "gfx942"), ("fp4", "gfx950")]


@pytest.mark.parametrize("dtype, arch", TYPES)
def test_every_finite_value_survives(dtype: str, arch: str) -> None:
    values = codecs.code_values(dtype, arch)
    row = np.resize(values[np.isfinite(values)], (1, 256))
    assert np.array_equal(codecs.decode(codecs.encode(row, dtype, arch), dtype, arch), row)


@given(arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 8).map(lambda n: 2 * n))), st.sampled_from(TYPES))
def test_bytes_survive_but_for_the_sign_of_zero(data: np.ndarray, kind: tuple[str, str]) -> None:
    values = codecs.decode(data, *kind)
    if not np.isfinite(values).all():
        with pytest.raises(ValueError, match="want values that"):
            codecs.encode(values, *kind)
        return
    again = codecs.encode(values, *kind)
    assert np.array_equal(codecs.decode(again, *kind), values)
    if not (values == 0).any():
        assert np.array_equal(again, data)


def test_bytes_are_the_documented_ones() -> None:
    values = np.array([[0.5, 1.0, 1.5, 2.5, -6.0, -0.0]])
    assert codecs.encode(values, "fp8", "gfx950").tolist() == [[0x30, 0x38, 0x3C, 0x42, 0xCC, 0x00]]
    assert codecs.encode(values, "fp8", "gfx942").tolist() == [[0x38, 0x40, 0x44, 0x4A, 0xD4, 0x00]]
    assert codecs.encode(values, "bf8", "gfx950").tolist() == [[0x38, 0x3C, 0x3E, 0x41, 0xC6, 0x00]]
    packed = codecs.encode(np.array([[0.5, 1.0, -6.0, 3.0]]), "fp4", "gfx950")
    assert packed.tolist() == [[0x21, 0x5F]]  # the even k in the low nibble


@pytest.mark.parametrize("dtype, arch", TYPES)
def test_ml_dtypes_agrees(dtype: str, arch: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if dtype == "fp4":
        theirs = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    else:
        theirs = np.arange(256, dtype=np.uint8).view(codecs.storage_name(dtype, arch)).astype(np.float32)
    assert np.array_equal(codecs.code_values(dtype, arch), theirs, equal_nan=True)


@pytest.mark.parametrize("wrong", [0.3, 0.5004, np.nan, np.inf, -1e9, 0.5 + 2**-30])
def test_what_the_format_does_not_hold_is_refused(wrong: float) -> None:
    for dtype, arch in TYPES:
        with pytest.raises(ValueError, match="values: got"):
            codecs.encode(np.array([[1.0, wrong]]), dtype, arch)


def test_odd_k_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="got 3 along k, want an even number"):
        codecs.encode(np.ones((2, 3)), "fp4", "gfx950")
    with pytest.raises(ValueError, match="dtype: got 'int5'"):
        codecs.storage_name("int4", "gfx950")


def test_e8m0_bytes() -> None:
    every = np.arange(255, dtype=np.uint8)
    values = codecs.decode_e8m0(every)
    assert values[127] == 1.0
    assert values[0] == 2.0**-127
    assert np.array_equal(codecs.encode_e8m0(values), every)
    assert np.isnan(codecs.decode_e8m0(np.array([255], dtype=np.uint8)))[0]


@pytest.mark.parametrize("wrong", [0.0, -1.0, 3.0, np.nan, np.inf, 2.0**128, 2.0**-128])
def test_scales_that_e8m0_does_not_hold_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="want powers of two"):
        codecs.encode_e8m0(np.array([1.0, wrong]))
