"""Memory of every kind: LDS, loads that skip registers, buffers with a range check, transposed reads, atomics."""

import numpy as np
import pytest

from tests.gfx950emu.conftest import Run

T = np.arange(256)


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**32, shape, dtype=np.uint32)


def test_loads_to_lds(run: Run, rng: np.random.Generator) -> None:
    x = words(rng, 256, 4)
    out = run("memory", "load_lds_16", x, np.zeros_like(x), block=256)[1]
    assert (out == x[((T + 77) & 255) ^ 3]).all()
    y = words(rng, 512)
    out = run("memory", "load_lds_4", y, np.zeros(256, np.uint32), block=256)[1]
    assert (out == y[((T + 77) & 255) ^ 5] * np.uint32(3) + y[256 + ((T + 5) & 255)]).all()


def test_lds_widths(run: Run, rng: np.random.Generator) -> None:
    x = words(rng, 256, 4)
    out = run("memory", "lds_widths", x, np.zeros(256, np.uint32), block=256)[1]
    raw, p = x.reshape(-1), (T + 100) & 255
    r = x[p, 1] ^ x.view(np.uint8).reshape(-1)[p * 16 + 3] ^ x.view(np.uint16).reshape(-1)[p * 8 + 7]
    four = x[(p + 3) & 255]
    expected = r ^ raw[4 * p + 2] ^ raw[4 * p + 3] ^ four[:, 0] ^ four[:, 3] ^ (r & 255)[255 - T]
    assert (out == expected).all()


def dwords(x: np.ndarray, offset: int, count: int, limit: int) -> list[int]:
    """What a buffer load of ``count`` dwords gives: 0 for those past the range."""
    return [int(x[offset // 4 + j]) if offset + 4 * j + 4 <= limit else 0 for j in range(count)]


@pytest.mark.parametrize("limit", [8192, 1000, 1004])
def test_buffer_range(limit: int, run: Run, rng: np.random.Generator) -> None:
    x = words(rng, 2048)
    out = run("memory", "buffer_load_lds", x, np.zeros((256, 4), np.uint32), scalars=(limit,), block=256)[1]
    # The instruction's offset (16) moves the LDS address too.
    assert out.tolist() == [[1, 2, 3, 4], *(dwords(x, int(t) * 16 + 48, 4, limit) for t in T[:-1])]
    empty = np.zeros((256, 4), np.uint32)
    _, four, three, small = run(
        "memory", "buffer_load", x, empty, empty, np.zeros(256, np.uint32), scalars=(limit, 8), block=256
    )
    assert four.tolist() == [dwords(x, int(t) * 20 + 8, 4, limit) for t in T]
    assert three[:, :3].tolist() == [dwords(x, int(t) * 12 + 12, 3, limit) for t in T]
    raw = x.view(np.uint8).astype(int)
    for t in T:
        low = raw[t + 8] if t + 9 <= limit else 0
        pair = raw[2 * t + 8] | raw[2 * t + 9] << 8 if 2 * t + 10 <= limit else 0
        assert small[t] == low + (pair << 8)


@pytest.mark.parametrize("limit", [8192, 1000, 1004])
def test_buffer_store(limit: int, run: Run, rng: np.random.Generator) -> None:
    v = words(rng, 256, 4)
    out = run("memory", "buffer_store", np.zeros(2048, np.uint32), v, scalars=(limit,), block=256)[0]
    expected = np.zeros(2048, np.uint32)
    for t in T:
        for j in range(4):
            if t * 16 + 8 + 4 * j + 4 <= limit:
                expected[(t * 16 + 8) // 4 + j] = v[t, j]
    for t in T[1::2]:
        if t * 2 + 4096 + 2 <= limit:
            expected.view(np.uint16)[t + 2048] = v[t, 0] & 0xFFFF
    assert (out == expected).all()


def transposed(raw: np.ndarray, stride: int, size: int, width: int) -> np.ndarray:
    """Sixteen lanes hold a matrix of elements; each gets a column of it."""
    per_lane = size * 8 // width
    row_lanes = 16 // per_lane
    big = [int.from_bytes(raw[t * stride : t * stride + size].tobytes(), "little") for t in range(64)]
    out = []
    for lane in range(64):
        first, j = lane // 16 * 16, lane % 16
        packed = 0
        for e in range(per_lane):
            element = big[first + e * row_lanes + j // per_lane] >> (width * (j % per_lane)) & ((1 << width) - 1)
            packed |= element << (width * e)
        out.append(np.frombuffer(packed.to_bytes(size, "little"), np.uint32))
    return np.array(out)


def test_transposed_reads(run: Run, rng: np.random.Generator) -> None:
    x = words(rng, 256, 4)
    pair, triple = np.zeros((64, 2), np.uint32), np.zeros((64, 4), np.uint32)
    _, four, six, eight, sixteen = run("memory", "transposed", x, pair, triple, pair, pair)
    raw = x.view(np.uint8).reshape(-1)
    assert (four == transposed(raw, 8, 8, 4)).all()
    assert (eight == transposed(raw, 8, 8, 8)).all()
    assert (sixteen == transposed(raw, 8, 8, 16)).all()
    assert (six[:, :3] == transposed(raw, 16, 12, 6)).all()


def test_atomics(run: Run, rng: np.random.Generator) -> None:
    x = words(rng, 1000)
    _, out, total = run(
        "memory", "atomics", x, np.zeros(128, np.uint32), np.zeros(1, np.float32), scalars=(1000,), grid=4, block=256
    )
    assert (out[:8] == np.bincount(x & 7, minlength=8)).all()
    assert out[8] == x.max()
    assert total[0] == (x & 3).sum()
    assert ((out[16:80] - 1) % 64 == np.arange(64)).all()


@pytest.mark.parametrize("rows, columns", [(32, 8), (33, 16), (16, 224), (2112, 224), (100, 20)])
def test_scale_shuffle(rows: int, columns: int, run: Run, rng: np.random.Generator) -> None:
    scales = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    padded = np.zeros((-(-rows // 32) * 32, -(-columns // 8) * 8), np.uint8)
    padded[:rows, :columns] = scales
    size, width = padded.size // 4, padded.shape[1]
    out = run(
        "reduce", "shuffle_scales", scales, np.full(padded.size, 0xEE, np.uint8),
        scalars=(rows, columns, width, size), grid=-(-size // 256), block=256,
    )[1]  # fmt: skip
    r, c = np.indices(padded.shape)
    index = r // 32 * width * 32 + c // 8 * 256 + c % 4 * 64 + r % 16 * 4 + c % 8 // 4 * 2 + r % 32 // 16
    assert (out[index] == padded).all()


def test_sum(run: Run, rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, 100_003, dtype=np.uint8)
    out = run("reduce", "sum_bytes", x, np.zeros(1, np.uint32), scalars=(x.size,), grid=4, block=256)[1]
    assert out[0] == x.sum(dtype=np.int64)
