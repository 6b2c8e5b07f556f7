"""A whole layer as gfx950 machine code, executed in the emulator: sort, tile list, both products, sums in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from evidence.tritons import ROOT, compiler_environment
from gfx950emu import MissingTool, run_code_object
from mxgemm.experts.problem import tile_list_rows
from mxgemm.mx import oracle
from tests.experts.cases import DEEPSEEK, GPT_OSS, Layer, layer
from tests.experts.test_moe import LIMITS, distance

pytestmark = pytest.mark.slow

TOKENS, TOP, COUNT, HIDDEN, INNER = 13, 3, 4, 288, 96
CASES = {"e2m1": ("gpt-oss", GPT_OSS), "e4m3": ("plain", DEEPSEEK), "bf16": ("gpt-oss", GPT_OSS)}
KINDS = ("sort", "gate", "down", "sum")


SIZE = {"tokens": TOKENS, "top_k": TOP, "count": COUNT, "hidden": HIDDEN, "inner": INNER, "bias": True}


def compiled(path: Path, a_format: str, size: dict[str, Any] = SIZE, kinds: tuple[str, ...] = KINDS) -> Path:
    """Every kernel of a format, compiled by one process that does not interpret."""
    pytest.importorskip("triton")
    gated = CASES[a_format][0]
    jobs = [{"name": f"{a_format}-{kind}", "experts": kind, "a": a_format, "gated": gated, **size} for kind in kinds]
    command = [sys.executable, "-m", "evidence.gfx950_compile", str(path)]
    environment, given = compiler_environment(None), json.dumps(jobs)
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return path


def execute(
    folder: Path, name: str, names: list[str], arrays: dict[str, np.ndarray], written: set[str], strict: bool = True
) -> None:
    """Run a launch on arrays, waits and barriers checked if ``strict``, and keep what it wrote."""
    described = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert "error" not in described, described
    (launch,) = described["launches"]
    used = {key: arrays[key] for key in dict.fromkeys(names)}
    try:
        after, _ = run_code_object(
            folder / launch["code"], launch["kernel"], launch["grid"], launch["block"], [*names, *launch["scalars"]],
            used, dynamic_lds=launch["dynamic_lds"], strict=strict, read_only=used.keys() - written,
        )  # fmt: skip
    except MissingTool as error:
        pytest.skip(str(error))
    arrays.update({key: after[key] for key in written})


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1).copy()


def poison(nbytes: int) -> np.ndarray:
    return np.full(nbytes, 0xFF, np.uint8)


def made(a_format: str) -> Layer:
    one = layer(TOKENS, TOP, COUNT, HIDDEN, INNER, activation=CASES[a_format][1])
    assert one.b13 is not None
    one.b13 = one.b13.bfloat16()
    one.ids[3, 1], one.ids[5, 0], one.ids[7] = -1, COUNT, 1  # dropped, another rank's, three times the same
    return one


@pytest.mark.parametrize(
    "a_format", [name if name == "e2m1" else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES]
)
def test_a_layer(a_format: str, tmp_path: Path) -> None:
    folder, one, pairs = compiled(tmp_path, a_format), made(a_format), TOKENS * TOP
    quantised = None if a_format == "bf16" else mxgemm.quantize(one.x, format=a_format)
    pack = {"e2m1": 2, "e4m3": 1, "bf16": 1}[a_format]
    arrays = {
        "ids": raw(one.ids), "index": poison(4 * pairs), "offsets": poison(4 * (COUNT + 1)),
        "tiles": poison(12 * tile_list_rows(pairs, COUNT, 16)), "counters": np.zeros(4, np.uint8),
        "x": raw(one.x if quantised is None else quantised.data), "w13": raw(one.w13.data),
        "w13_scales": raw(one.w13.scales), "w2": raw(one.w2.data), "w2_scales": raw(one.w2.scales),
        "b13": raw(one.b13), "b2": raw(one.b2), "weights": raw(one.weights),
        "h": poison(pairs * INNER * (2 if quantised is None else 1) // pack), "y": poison(4 * pairs * HIDDEN),
        "out": poison(2 * TOKENS * HIDDEN),
    }  # fmt: skip
    if quantised is not None:
        arrays |= {"x_scales": raw(quantised.scales), "h_scales": poison(pairs * INNER // 32)}
    x_scales, h_scales = ("h", "h") if quantised is None else ("x_scales", "h_scales")

    names = ["ids", "index", "index", "offsets", "tiles", "counters"]
    execute(folder, f"{a_format}-sort", names, arrays, {"index", "offsets", "tiles", "counters"})
    ids = one.ids.reshape(-1)
    expected = [torch.nonzero(ids == expert).reshape(-1).tolist() for expert in range(COUNT)]
    offsets = arrays["offsets"].view(np.int32)
    assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert arrays["index"].view(np.int32)[: offsets[-1]].tolist() == [
        pair for pairs_of in expected for pair in pairs_of
    ]
    assert not arrays["counters"].any()
    want = [
        (expert, first, min(first + 16, offsets[expert + 1]))
        for expert in range(COUNT)
        for first in range(offsets[expert], offsets[expert + 1], 16)
    ]
    tiles = arrays["tiles"].view(np.int32).reshape(-1, 3)
    assert tiles[0, 0] == len(want)
    assert tiles[1 : len(want) + 1].tolist() == [list(map(int, entry)) for entry in want]

    names = ["x", x_scales, "w13", "w13_scales", "b13", "tiles", "index", "h", h_scales]
    execute(folder, f"{a_format}-gate", names, arrays, {"h", h_scales})
    names = ["h", "y" if quantised is None else h_scales, "w2", "w2_scales", "b2", "tiles", "index", "y", "y"]
    execute(folder, f"{a_format}-down", names, arrays, {"y"})
    execute(folder, f"{a_format}-sum", ["y", "ids", "weights", "ids", "out"], arrays, {"out"})
    out = torch.from_numpy(arrays["out"]).view(torch.bfloat16).view(TOKENS, HIDDEN)
    assert distance(out, one.exact(a_format)) < LIMITS[a_format] + 2e-3
    if quantised is not None:  # what was kept for the second product, against the CPU's
        rows = offsets[-1]
        h = oracle.decode(
            arrays["h"].reshape(pairs, -1)[:rows], arrays["h_scales"].reshape(pairs, -1)[:rows], a_format
        )  # fmt: skip
        assert np.isfinite(h).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("a_format", CASES)
def test_a_row_has_the_same_bits_in_tiles_of_another_height(a_format: str, tmp_path: Path) -> None:
    """The first product of the same tokens, sixteen rows a tile, and so many that tiles are higher: K in one order.

    Higher tiles that quantise are not run strictly: their waves all write the maxima of blocks, the same ones, to one
    place in LDS, which Triton takes for no race.
    """
    found = []
    for tokens in (5, 80):
        one = layer(80, TOP, COUNT, HIDDEN, INNER, activation=CASES[a_format][1])
        assert one.b13 is not None
        x, b13 = one.x[:tokens], one.b13.bfloat16()
        ids = one.ids[:tokens]
        folder = compiled(tmp_path / str(tokens), a_format, SIZE | {"tokens": tokens}, ("sort", "gate"))
        quantised = None if a_format == "bf16" else mxgemm.quantize(x, format=a_format)
        pairs, pack = tokens * TOP, {"e2m1": 2, "e4m3": 1, "bf16": 1}[a_format]
        arrays = {
            "ids": raw(ids), "index": poison(4 * pairs), "offsets": poison(4 * (COUNT + 1)),
            "tiles": poison(12 * tile_list_rows(pairs, COUNT, 16)), "counters": np.zeros(4, np.uint8),
            "x": raw(x if quantised is None else quantised.data), "w13": raw(one.w13.data),
            "w13_scales": raw(one.w13.scales), "b13": raw(b13),
            "h": poison(pairs * INNER * (2 if quantised is None else 1) // pack),
        }  # fmt: skip
        if quantised is not None:
            arrays |= {"x_scales": raw(quantised.scales), "h_scales": poison(pairs * INNER // 32)}
        x_scales, h_scales = ("h", "h") if quantised is None else ("x_scales", "h_scales")
        names = ["ids", "index", "index", "offsets", "tiles", "counters"]
        execute(folder, f"{a_format}-sort", names, arrays, {"index", "offsets", "tiles", "counters"})
        tiles = arrays["tiles"].view(np.int32).reshape(-1, 3)
        high = (tiles[1 : tiles[0, 0] + 1, 2] - tiles[1 : tiles[0, 0] + 1, 1]).max()
        assert (high > 16) == (tokens == 80)
        names = ["x", x_scales, "w13", "w13_scales", "b13", "tiles", "index", "h", h_scales]
        execute(folder, f"{a_format}-gate", names, arrays, {"h", h_scales}, strict=tokens == 5 or quantised is None)
        order = np.argsort(arrays["index"].view(np.int32), kind="stable")[: 5 * TOP]
        found.append([arrays[name].reshape(pairs, -1)[order] for name in dict.fromkeys(("h", h_scales))])
    for few, many in zip(*found, strict=True):
        assert np.array_equal(few, many)
