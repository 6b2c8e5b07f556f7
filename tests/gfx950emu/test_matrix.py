"""Matrix instructions against a product of matrices that are filled one element at a time."""

import re

import numpy as np
import pytest

from tests.gfx950emu.conftest import HIP, Run
from tests.gfx950emu.small_floats import bf16, from_bf16, unpack

FORMATS = re.findall(r"^SCALED\((\d), (\d), (\d), (\d)\)", (HIP / "matrix.hip").read_text(), re.MULTILINE)
SCALED = [f"scaled{rows}_{'_'.join(fields)}" for rows in (16, 32) for fields in FORMATS]


def random_operand(fmt: int, rng: np.random.Generator) -> np.ndarray:
    if fmt > 1:
        return rng.integers(-(2**31), 2**31, (64, 8), dtype=np.int64).astype(np.int32)
    codes = rng.integers(0, 256, (64, 32), dtype=np.uint8)
    codes[(codes & 0x7F) > (0x77 if fmt == 0 else 0x5F)] = 0x31  # no NaN, no Inf, nothing near the largest
    return codes.view(np.int32)


def column(fmt: int, group: int, index: int, rows: int) -> int:
    """Where along K an element of a lane lies: fp8 registers hold two runs of 16, half of K apart."""
    if fmt <= 1:
        return (index // 16) * 16 * (64 // rows) + 16 * group + index % 16
    return 32 * group + index


def result_row(lane: int, register: int, rows: int) -> int:
    if rows == 16:
        return 4 * (lane // 16) + register
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4


def expected(a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: int) -> np.ndarray:
    d = a @ b.T
    return np.array(
        [[c[t, r] + d[result_row(t, r, rows), t % rows] for r in range(c.shape[1])] for t in range(64)], float
    )


@pytest.mark.parametrize("kernel", [*SCALED, "unscaled16_4_4"])
def test_mx_formats(kernel: str, run: Run, rng: np.random.Generator) -> None:
    rows, *fields = map(int, re.findall(r"\d+", kernel))
    formats = fields[:2]
    operands = [random_operand(fmt, rng) for fmt in formats]
    c = rng.standard_normal((64, rows * rows // 64)).astype(np.float32)
    scales = rng.integers(120, 132, (128, 4), dtype=np.uint8)
    k = 128 if rows == 16 else 64
    matrices = np.zeros((2, rows, k))
    for which, (registers, fmt) in enumerate(zip(operands, formats, strict=True)):
        for lane in range(64):
            for index, value in enumerate(unpack(registers[lane], fmt)):
                matrices[which, lane % rows, column(fmt, lane // rows, index, rows)] = value
    arrays = [*operands, c]
    if kernel.startswith("scaled"):
        arrays.append(scales.view(np.uint32))
        for which, byte in enumerate(fields[2:]):
            for lane in range(64):
                block = slice(32 * (lane // rows), 32 * (lane // rows) + 32)
                matrices[which, lane % rows, block] *= 2.0 ** (int(scales[64 * which + lane, byte]) - 127)
    out = run("matrix", kernel, *arrays)[2]
    reference = expected(matrices[0], matrices[1], c, rows)
    np.testing.assert_allclose(out, reference, rtol=0, atol=1e-6 * np.abs(reference).max())


@pytest.mark.parametrize(
    "kernel, rows, depth",
    [("bf16_16", 16, 8), ("bf16_32", 32, 8), ("f16_16", 16, 8), ("f16_32", 32, 8), ("i8_16", 16, 16)],
)
def test_plain_formats(kernel: str, rows: int, depth: int, run: Run, rng: np.random.Generator) -> None:
    registers = rows * rows // 64
    if kernel.startswith("i8"):
        raw = [rng.integers(-128, 128, (64, depth)).astype(np.int8) for _ in "ab"]
        values = [x.astype(float) for x in raw]
        c = rng.integers(-9, 9, (64, registers)).astype(np.int32)
    else:
        x = [rng.standard_normal((64, depth)).astype(np.float32) for _ in "ab"]
        c = rng.standard_normal((64, registers)).astype(np.float32)
        is_bf16 = kernel.startswith("bf16")
        raw = [bf16(v) if is_bf16 else v.astype(np.float16) for v in x]
        values = [from_bf16(v).astype(float) if is_bf16 else v.astype(float) for v in raw]
    groups = range(64 // rows)
    a, b = (np.concatenate([v[g * rows : (g + 1) * rows] for g in groups], axis=1) for v in values)
    out = run("matrix", kernel, *raw, c)[2]
    np.testing.assert_allclose(out, expected(a, b, c, rows), rtol=0, atol=1e-5)
