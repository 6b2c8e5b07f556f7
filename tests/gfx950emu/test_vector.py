"""Vector and scalar arithmetic, moves across lanes, divergent branches and scratch."""

import numpy as np

from tests.gfx950emu.conftest import Run

LANE = np.arange(64)
MASK = 0xFFFFFFFF


def words(rng: np.random.Generator, count: int = 128) -> np.ndarray:
    return rng.integers(0, 2**32, count, dtype=np.uint32)


def test_swaps(run: Run, rng: np.random.Generator) -> None:
    x = words(rng)
    _, swap16, swap32 = run("vector", "swaps", x, np.zeros((64, 2), np.uint32), np.zeros((64, 2), np.uint32))
    a, b = x[:64].reshape(4, 16), x[64:].reshape(4, 16)
    first, second = a.copy(), b.copy()
    for row in (0, 2):
        first[row + 1], second[row] = b[row], a[row + 1]
    assert (swap16 == np.stack([first.ravel(), second.ravel()], 1)).all()
    first, second = a.copy(), b.copy()
    first[2:], second[:2] = b[:2], a[2:]
    assert (swap32 == np.stack([first.ravel(), second.ravel()], 1)).all()


def test_across_lanes(run: Run, rng: np.random.Generator) -> None:
    x = words(rng)
    a, b = x[:64], x[64:]
    out = run("vector", "across", x, np.zeros(448, np.uint32))[1].reshape(7, 64)
    assert (out[0] == np.where(LANE % 16 == 0, 0, np.roll(a, 1))).all(), "row_shr:1"
    broadcast = a[np.maximum(LANE // 16 * 16 - 1, 0)]
    assert (out[1] == np.where((LANE // 16) % 2 == 1, broadcast, b)).all(), "row_bcast:15"
    assert (out[2] == a[LANE ^ 1]).all(), "quad_perm"
    assert (out[3] == LANE).all(), "mbcnt"
    assert (out[4] == a[LANE ^ 1]).all(), "ds_swizzle"
    assert (out[5] == a[17]).all(), "readlane"
    assert (out[6] == a[(LANE * 5 + 3) % 64]).all(), "ds_bpermute"


def test_integers(run: Run, rng: np.random.Generator) -> None:
    x = words(rng)
    a, b = [int(v) for v in x[:64]], [int(v) for v in x[64:]]
    signed = [v - (v >> 31 << 32) for v in a], [v - (v >> 31 << 32) for v in b]
    out = run("vector", "integers", x, np.zeros(512, np.uint32))[1].reshape(8, 64).tolist()
    for i in LANE:
        p, q, sp, sq = a[i], b[i], signed[0][i], signed[1][i]
        both = p << 32 | q
        divisor = q >> 24 | 1
        remainder = abs(sp) % divisor * (1 if sp >= 0 else -1)
        trailing = ((q | 0x10000) & -(q | 0x10000)).bit_length() - 1
        assert [row[i] for row in out] == [
            p.bit_count() + 32 - (q | 1).bit_length(),
            sum(((both >> (8 * byte)) & 255) << (8 * at) for at, byte in enumerate((3, 5, 6, 1))),
            p // (q >> 20 | 1),
            remainder & MASK,
            (p * q) >> 13 & MASK,
            sp >> (q & 31) & MASK,
            int(f"{p:032b}"[::-1], 2) ^ trailing,
            2 * (p > q) + (sp < sq),
        ]


def test_floats(run: Run, rng: np.random.Generator) -> None:
    x = words(rng)
    a, b = x[:64], x[64:]
    out = run("vector", "floats", x, np.zeros(384, np.float32))[1].reshape(6, 64)
    f32 = np.float32
    np.testing.assert_allclose(out[0], a.astype(f32) / (b | 1).astype(f32), rtol=1e-7)
    np.testing.assert_allclose(out[1], np.sqrt(a.astype(f32)), rtol=2e-7)
    np.testing.assert_allclose(out[2], np.exp2((a >> 28).astype(f32)), rtol=2e-7)
    np.testing.assert_allclose(out[3], a * 1.5 / (b | 3), rtol=2e-7)
    fused = (a >> 8).astype(float) * 3 - (b >> 9).astype(f32).astype(float)
    assert (out[4] == fused.astype(f32)).all()
    assert (out[5] == np.rint((a >> 20) * 0.5)).all()


def test_scratch(run: Run, rng: np.random.Generator) -> None:
    x = words(rng)
    out = run("vector", "scratch", x, np.zeros(64, np.uint32), scalars=(20,))[1]
    for t in LANE:
        buffer = [int(x[t]) * i & MASK for i in range(33)]
        for i in range(20):
            k = (int(x[t + 64]) >> i) % 33
            buffer[k] = buffer[k] + i & MASK
            buffer[(k * 7) % 33] ^= buffer[k]
        result = 0
        for item in buffer:
            result = (result * 31 + item) & MASK
        assert int(out[t]) == result


def test_divergent_loop(run: Run) -> None:
    x = np.arange(512, dtype=np.uint32)
    out = run("vector", "collatz", x, np.zeros(512, np.uint32), grid=2, block=256)[1]
    for t in range(512):
        v, n = t | 1, 0
        while v != 1 and n < 200:
            v, n = (v * 3 + 1 if v & 1 else v // 2), n + 1
        assert out[t] == n
