"""AITER's f4gemm kernels for gfx950: where their code objects are, and how one is called.

Every argument has a 16-byte slot of the argument segment. D = alpha * A @ B.T in bf16; A and B are packed e2m1, the
weight preshuffled for the kernels that say so, scales in shuffled order.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mxgemm import layouts, reference
from tools.gfx950emu import Stats, run_code_object

INSIDE = Path("hsa/gfx950/f4gemm")
TABLE = "f4gemm_bf16_per1x32Fp4.csv"
WHOLE_TILES_ONLY = {(192, 256), (224, 256), (256, 256), (128, 512)}


@dataclass(frozen=True)
class Tile:
    """One kernel of the folder's table."""

    name: str
    path: Path
    kernel: str
    rows: int
    columns: int
    preshuffled: bool


def folder() -> Path | None:
    """Return the folder with the code objects, or None."""
    named = os.environ.get("MXGEMM_AITER_CO")
    if named:
        candidates = [Path(named), Path(named) / INSIDE]
    else:
        candidates = []
        for package in ("aiter_meta", "aiter"):
            spec = importlib.util.find_spec(package)
            for location in (spec.submodule_search_locations or []) if spec else []:
                candidates += [Path(location) / INSIDE, Path(location).parent / INSIDE]
    return next((path for path in candidates if (path / TABLE).is_file()), None)


def tiles() -> list[Tile]:
    found = folder()
    if found is None:
        return []
    with (found / TABLE).open(newline="", encoding="utf-8") as handle:
        return [
            Tile(
                row["co_name"].removesuffix(".co"), found / row["co_name"], row["knl_name"],
                int(row["tile_M"]), int(row["tile_N"]), row["bpreshuffle"] == "1",
            )
            for row in csv.DictReader(handle)
        ]  # fmt: skip


def arguments(m: int, n: int, k: int, scale_strides: tuple[int, int]) -> Callable[[Mapping[str, int]], bytes]:
    def pack(address: Mapping[str, int]) -> bytes:
        segment = bytearray(384)
        pointers = {0x00: "d", 0x20: "a", 0x30: "b", 0x110: "a_scales", 0x120: "b_scales"}
        for offset, name in pointers.items():
            struct.pack_into("<Q", segment, offset, address[name])
        struct.pack_into("<f", segment, 0x40, 1.0)
        words = {
            0x80: n,
            0xA0: k,
            0xC0: k,
            0xE0: m,
            0xF0: n,
            0x100: k,
            0x130: scale_strides[0],
            0x150: scale_strides[1],
        }
        for offset, value in words.items():
            struct.pack_into("<I", segment, offset, value)
        return bytes(segment)

    return pack


def run(tile: Tile, m: int, n: int, k: int, *, strict: bool, code: bytes | None = None) -> tuple[float, Stats]:
    """Multiply random operands; return the largest error relative to its element (or to 1e-3 of the largest one)."""
    rng = np.random.default_rng(0)

    def operand(rows: int) -> tuple[np.ndarray, np.ndarray]:
        data = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
        return data, rng.integers(118, 134, (rows, k // 32), dtype=np.uint8)

    (a, a_scales), (b, b_scales) = operand(m), operand(n)
    shuffled = [layouts.shuffle_scales(torch.from_numpy(scales)).numpy() for scales in (a_scales, b_scales)]
    weight = layouts.preshuffle_weight(torch.from_numpy(b)).numpy() if tile.preshuffled else b
    rows = m if tile.preshuffled else -(-m // tile.rows) * tile.rows
    arrays = {
        "a": a, "b": weight, "a_scales": shuffled[0], "b_scales": shuffled[1],
        "d": np.full((rows, n), 0xC3C3, np.uint16),
    }  # fmt: skip
    grid = (-(-n // tile.columns), -(-m // tile.rows), 1)
    kernarg = arguments(m, n, k, (shuffled[0].shape[1], shuffled[1].shape[1]))
    after, stats = run_code_object(
        tile.path if code is None else code, tile.kernel, grid, (256,), kernarg, arrays,
        strict=strict, read_only=arrays.keys() - {"d"},
    )  # fmt: skip
    exact = reference.matmul(reference.decode(a, a_scales, "e2m1"), reference.decode(b, b_scales, "e2m1"))
    got = (after["d"][:m].astype(np.uint32) << 16).view(np.float32)
    error = np.abs(got - exact) / np.maximum(np.abs(exact), 1e-3 * np.abs(exact).max())
    return float(error.max()), stats
