"""The shuffle kernels as machine code for gfx950, executed in the emulator, against the formulas in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from gfx950emu import run_code_object
from gfx950emu.api import load
from mxgemm.hip import build, code_object
from mxgemm.hip.shuffle import _SCALES, _WEIGHT, _width
from mxgemm.mx import layouts
from tests.emulator import require_objdump

Pack = Callable[[Mapping[str, int]], bytes]

GUARD = 64
SIZES = [(1, 1), (3, 7), (15, 8), (16, 9), (17, 16), (31, 90), (33, 4), (40, 224), (70, 17), (256, 12), (260, 66)]
"""Rows and columns of scales: tails of every kind in tiles of 32 x 8, and whole tiles."""


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    require_objdump()
    reason = build.compiler_refusal("gfx950")
    if reason:
        pytest.skip(str(reason))
    return {name: build.build(f"{name}.hip", arch="gfx950") for name in ("shuffle_scales", "preshuffle_weight")}


def strided(rows: int, columns: int, stride: int, lead: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory of 0xFF with random rows ``stride`` apart after ``lead`` bytes, and a view of those rows."""
    rng = np.random.default_rng(rows * 1000 + columns)
    memory = np.full(lead + (rows - 1) * stride + columns, 255, np.uint8)
    view = np.lib.stride_tricks.as_strided(memory[lead:], (rows, columns), (stride, 1))
    view[:] = rng.integers(0, 255, (rows, columns), np.uint8)
    return memory, view


def run(image: bytes, kernel: str, groups: int, pack: Pack, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Run in strict mode; the source may not be written, the target's guards must survive."""
    guards = np.full(GUARD, 0xC3, np.uint8)
    guarded = np.concatenate([guards, target.reshape(-1), guards])
    after, _ = run_code_object(
        image, kernel, (groups,), (256,), pack, {"source": source, "target": guarded},
        strict=True, read_only=("source",),
    )  # fmt: skip
    out = after["target"]
    assert (out[:GUARD] == 0xC3).all()
    assert (out[-GUARD:] == 0xC3).all()
    return out[GUARD:-GUARD].reshape(target.shape)


@pytest.mark.parametrize("rows, columns", SIZES)
@pytest.mark.parametrize("all_padding", [True, False])
def test_shuffle(images: dict[str, bytes], rows: int, columns: int, all_padding: bool) -> None:
    stride, lead = (columns, 0) if all_padding else (columns + 3, 1)
    memory, scales = strided(rows, columns, stride, lead)
    expected = layouts.shuffle_scales(torch.from_numpy(scales.copy())).numpy()
    if not all_padding:
        expected = expected[: layouts.round_up(rows, 32)]
    tile_columns = expected.shape[1] // 8
    tiles = expected.shape[0] // 32 * tile_columns

    def pack(at: Mapping[str, int]) -> bytes:
        sizes = (stride, rows, columns, tile_columns, tiles)
        return _SCALES.pack(at["source"] + lead, at["target"] + GUARD, *sizes)

    kernel = f"shuffle_scales_{_width(stride, lead, 8)}"
    out = run(images["shuffle_scales"], kernel, -(-tiles // 64), pack, memory, np.full_like(expected, 0xEE))
    assert (out == expected).all()


@pytest.mark.parametrize("rows, columns", SIZES)
def test_unshuffle_ignores_padding(images: dict[str, bytes], rows: int, columns: int) -> None:
    scales = np.random.default_rng(columns).integers(0, 255, (rows, columns), np.uint8)
    shuffled = layouts.shuffle_scales(torch.from_numpy(scales)).numpy()
    real = layouts.shuffle_scales(torch.ones(rows, columns, dtype=torch.uint8)).numpy() == 1
    shuffled = np.where(real, shuffled, 0xEE)
    tile_columns = shuffled.shape[1] // 8
    tiles = -(-rows // 32) * tile_columns

    def pack(at: Mapping[str, int]) -> bytes:
        return _SCALES.pack(at["source"], at["target"] + GUARD, columns, rows, columns, tile_columns, tiles)

    kernel = f"unshuffle_scales_{_width(columns, 0, 8)}"
    out = run(images["shuffle_scales"], kernel, -(-tiles // 64), pack, shuffled, np.full_like(scales, 0xEE))
    assert (out == scales).all()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_width_shuffles_and_unshuffles(images: dict[str, bytes], width: int) -> None:
    rows, columns = 35, 26
    stride, lead = 40, width % 8
    memory, scales = strided(rows, columns, stride, lead)
    expected = layouts.shuffle_scales(torch.from_numpy(scales.copy())).numpy()
    tiles = expected.size // 256
    out = run(
        images["shuffle_scales"], f"shuffle_scales_{width}", 1,
        lambda at: _SCALES.pack(at["source"] + lead, at["target"] + GUARD, stride, rows, columns, 4, tiles),
        memory, np.full_like(expected, 0xEE),
    )  # fmt: skip
    assert (out == expected).all()
    back = np.full((rows, stride), 0xEE, np.uint8)
    out = run(
        images["shuffle_scales"], f"unshuffle_scales_{width}", 1,
        lambda at: _SCALES.pack(at["source"], at["target"] + GUARD, stride, rows, columns, 4, tiles),
        expected, back,
    )  # fmt: skip
    assert (out[:, :columns] == scales).all()
    assert (out[:, columns:] == 0xEE).all()


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n, columns", [(16, 32), (48, 96), (32, 288)])
def test_preshuffle(images: dict[str, bytes], n: int, columns: int, width: int) -> None:
    stride, lead = columns + 16, width % 16
    memory, weight = strided(n, columns, stride, lead)
    expected = layouts.preshuffle_weight(torch.from_numpy(weight.copy())).numpy()
    units = columns // 16
    along = -(-units // 16)
    out = run(
        images["preshuffle_weight"], f"preshuffle_weight_{width}", n // 16 * along,
        lambda at: _WEIGHT.pack(at["source"] + lead, at["target"] + GUARD, stride, units, along),
        memory, np.full_like(expected, 0xEE),
    )  # fmt: skip
    assert (out == expected).all()
    out = run(
        images["preshuffle_weight"], "unpreshuffle_weight", n // 16 * along,
        lambda at: _WEIGHT.pack(at["source"], at["target"] + GUARD, columns, units, along),
        expected, np.full_like(expected, 0xEE),
    )  # fmt: skip
    assert (out == weight).all()


def test_offsets_beyond_32_bits(images: dict[str, bytes]) -> None:
    """The emulator's buffers lie 2**36 bytes apart: one row in each makes that the row stride."""
    rows, columns, stride = 34, 8, 1 << 36
    scales = np.random.default_rng(0).integers(0, 255, (rows, columns), np.uint8)
    expected = layouts.shuffle_scales(torch.from_numpy(scales)).numpy()[:64]
    buffers = {f"row{row}": scales[row] for row in range(rows)} | {"target": np.full_like(expected, 0xEE)}

    def pack(at: Mapping[str, int]) -> bytes:
        return _SCALES.pack(at["row0"], at["target"], stride, rows, columns, 1, 2)

    after, _ = run_code_object(images["shuffle_scales"], "shuffle_scales_8", (1,), (256,), pack, buffers, strict=True)
    assert (after["target"] == expected).all()
    blank = {f"row{row}": np.zeros(columns, np.uint8) for row in range(rows)} | {"source": expected}

    def pack_back(at: Mapping[str, int]) -> bytes:
        return _SCALES.pack(at["source"], at["row0"], stride, rows, columns, 1, 2)

    after, _ = run_code_object(
        images["shuffle_scales"], "unshuffle_scales_8", (1,), (256,), pack_back, blank, strict=True
    )
    assert (np.stack([after[f"row{row}"] for row in range(rows)]) == scales).all()


def test_machine_code(images: dict[str, bytes]) -> None:
    """No scratch, few enough registers for eight waves a SIMD, and whole lines in wide accesses."""
    for image in images.values():
        for info in code_object.inspect(image).kernels.values():
            assert info.scratch_bytes == 0, info
            assert info.registers <= 64, info
            assert info.max_threads == 256
    text = disassembly(images["shuffle_scales"])
    forward, back = text["shuffle_scales_8"], text["unshuffle_scales_8"]
    assert forward.count("global_load_dwordx2") == 8
    assert forward.count("global_store_dwordx4") == 4
    assert back.count("global_load_dwordx4") == 4
    assert back.count("global_store_dwordx2") == 8
    text = disassembly(images["preshuffle_weight"])
    for kernel in ("preshuffle_weight_16", "unpreshuffle_weight"):
        accesses = [op for op in text[kernel] if op.startswith(("global_", "flat_", "scratch_", "buffer_"))]
        assert accesses == ["global_load_dwordx4", "global_store_dwordx4"]


def disassembly(image: bytes) -> dict[str, list[str]]:
    """Return each kernel's mnemonics."""
    program = load(image)
    entries = sorted(kernel.entry for kernel in program.kernels.values())
    ends = dict(zip(entries, [*entries[1:], 1 << 62], strict=True))
    return {
        name: [i.mnemonic for i in program.instructions if kernel.entry <= i.pc < ends[kernel.entry]]
        for name, kernel in program.kernels.items()
    }
