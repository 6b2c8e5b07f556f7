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


def test_int4_is_offset_by_eight_with_the_even_k_in_the_high_nibble() -> None:
    values = np.array([[-8.0, 7.0, 0.0, 1.0]])
    packed = codecs.encode(values, "int4", "gfx942")
    assert packed.tolist() == [[0x0F, 0x89]]
    assert np.array_equal(codecs.decode(packed, "int4", "gfx942"), values)
    with pytest.raises(ValueError, match="values: got 0.5, 8"):
        codecs.encode(np.array([[0.5, 8.0]]), "int4", "gfx950")


def test_bf16_is_the_upper_half_of_fp32() -> None:
    values = np.array([[1.0, -2.5, 2.0**-133, 3.0 * 2.0**120]])
    stored = codecs.encode(values, "bf16", "gfx950")
    assert stored.dtype == np.uint16
    assert stored[0, :2].tolist() == [0x3F80, 0xC020]
    assert np.array_equal(codecs.decode(stored, "bf16", "gfx950"), values)
    with pytest.raises(ValueError, match="values: got 1.0019"):
        codecs.encode(np.array([[1 + 2**-9]]), "bf16", "gfx950")


def test_results_are_rounded_once_to_nearest_even() -> None:
    sums = np.array([[1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -np.inf]], dtype=np.float32)
    assert codecs.round_result(sums, "bf16").tolist() == [[0x3F80, 0x3F82, 0x7F80, 0xFF80]]
    assert codecs.decode_result(codecs.round_result(sums, "bf16"), "bf16")[0, :2].tolist() == [1.0, 1 + 2**-6]
    halves = codecs.round_result(np.array([[1 + 2**-11, 1e6]], dtype=np.float32), "fp16")
    assert halves.tolist() == [[1.0, np.inf]]


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
        codecs.storage_name("int5", "gfx950")


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
