"""Converts between float and packed small floats: ties, saturation, the bytes that are written and those that stay."""

import numpy as np
import pytest

from tests.gfx950emu.conftest import Run
from tests.gfx950emu.small_floats import bf16, from_bf16, to_e2m1, value


@pytest.fixture
def scales(rng: np.random.Generator) -> np.ndarray:
    """Only the exponent of a scale counts, so some have a mantissa."""
    s = np.ones(64, np.float32)
    s[8:] = 2.0 ** rng.integers(-3, 4, 56)
    s[20:30] *= 1.7
    return s


@pytest.fixture
def pairs(rng: np.random.Generator) -> np.ndarray:
    x = (rng.standard_normal((64, 2)) * 4).astype(np.float32)
    x[:8] = [[0.25, 0.75], [1.25, 1.75], [2.5, 3.5], [5, -5], [7, -9], [-0.25, 0.0], [0.24, 0.26], [-0.0, 100]]
    return x


def byte(low: float, high: float) -> int:
    return to_e2m1(low) | to_e2m1(high) << 4


def test_fp4_from_f32(run: Run, pairs: np.ndarray, scales: np.ndarray) -> None:
    scaled = pairs / 2.0 ** np.floor(np.log2(scales))[:, None]
    out = run("convert", "fp4_from_f32", pairs, scales, np.zeros(64, np.uint32))[2]
    assert out.tolist() == [byte(a, b) | 0x5600 | byte(b, a) << 16 | 0x12000000 for a, b in scaled]


def test_fp4_from_bf16(run: Run, pairs: np.ndarray, scales: np.ndarray) -> None:
    rounded = bf16(pairs)
    scaled = from_bf16(rounded) / 2.0 ** np.floor(np.log2(scales))[:, None]
    out = run("convert", "fp4_from_bf16", rounded, scales, np.zeros(64, np.uint32))[2]
    assert out.tolist() == [0x340078 | byte(a, b) << 8 | byte(a, b) << 24 for a, b in scaled]


def test_floats_from_fp4(run: Run, scales: np.ndarray, rng: np.random.Generator) -> None:
    words = rng.integers(0, 2**32, 64, dtype=np.uint32)
    exponents = 2.0 ** np.floor(np.log2(scales))

    def nibbles(byte_index: int) -> np.ndarray:
        taken = (words >> (8 * byte_index)) & 255
        return np.array([[value(int(b) & 15, 4), value(int(b) >> 4, 4)] for b in taken]) * exponents[:, None]

    f32 = run("convert", "f32_from_fp4", words, scales, np.zeros((64, 2), np.float32))[2]
    assert (f32 == nibbles(2)).all()
    narrow = run("convert", "bf16_from_fp4", words, scales, np.zeros((64, 2), np.uint16))[2]
    assert (from_bf16(narrow) == nibbles(1)).all()


def test_fp8_from_f32(run: Run, pairs: np.ndarray) -> None:
    out = run("convert", "fp8_from_f32", pairs, np.zeros(128, np.uint32))[1].reshape(2, 64)
    for fmt, half, rest in ((0, 0, 0x12340000), (1, 16, 0x5678)):
        codes = (out[fmt] >> half) & 0xFFFF
        assert ((out[fmt] & ~np.uint32(0xFFFF << half)) == rest).all()
        finite = [value(c, fmt) for c in range(0x77 if fmt == 0 else 0x7C)]
        for lane in range(64):
            for side in range(2):
                x, got = float(pairs[lane, side]), value(int(codes[lane]) >> (8 * side) & 255, fmt)
                assert np.signbit(got) == np.signbit(x)
                assert abs(abs(got) - abs(x)) == min(abs(v - abs(x)) for v in finite)
