"""``quant_gemm``'s kernels as gfx950 machine code, executed in the emulator, waits and hazards checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from evidence.scaled_compile import GROUPS
from evidence.tritons import ROOT, compiler_environment
from gfx950emu import MissingTool, run_code_object
from mxgemm.scaled import oracle
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.schemes import described
from mxgemm.scaled.validation import scale_name
from tests.scaled.cases import PAIRS, grouped, ids, make

pytestmark = pytest.mark.slow

PICKED = [PAIRS[i] for i in (2, 5, 7, 12, 14)]
"""Not int4 and fp4 beside fp8: their conversion to e4m3 in registers sets a mode of the hardware that the emulator does
not have. In memory it is integer arithmetic: ``UNPACKED``."""
UNPACKED = [(fmt, n, k) for fmt in ("int4", "e2m1") for n, k in ((5, 272), (4, 2048))]
SHAPES = {1: (1, 1, 32), 33: (33, 40, 288)}
ROWS = (0, 1, 20, 0, 5, 0, 0, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kernel, compiled by one process that does not interpret."""
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("scaled")
    jobs = []
    for pair in PICKED:
        name, sizes = described(pair[0])
        shared = {"scheme": name, "sizes": sizes, "a": pair[1], "b": pair[2]}
        for m, n, k in SHAPES.values():
            jobs.append({"name": f"{ids(pair)}-{m}", "scaled": "dense", "m": m, "n": n, "k": k, **shared})
        rows = {"m": sum(ROWS) + 2, "n": 40, "k": 160}
        jobs.append({"name": f"{ids(pair)}-groups", "scaled": "offsets", **rows, **shared})
    for fmt, n, k in UNPACKED:
        jobs.append({"name": f"unpack-{fmt}-{n}", "scaled": "unpack", "b": fmt, "n": n, "k": k})
    command = [sys.executable, "-m", "evidence.gfx950_compile", str(path)]
    environment, given = compiler_environment(None), json.dumps(jobs)
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return path


def raw(tensor: Tensor) -> np.ndarray:
    """A tensor's bytes as its strides lie in memory."""
    dense = tensor.t() if tensor.dim() == 2 and tensor.stride(0) == 1 and tensor.shape[0] > 1 else tensor
    return dense.contiguous().view(torch.uint8).numpy().reshape(-1).copy()


def laid(scales: Tensor, pair: tuple, side: str) -> Tensor:
    """Scales in the order of evidence/scaled_compile.py: groups of one row column-major."""
    scheme = pair[0]
    kind = scheme.a_kind if side == "a" else scheme.b_kind
    single = side == "a" or (scheme.b_group[0] == 1 and scale_name(scales) == "fp32")
    return scales.t().contiguous() if kind == "group" and single else scales


def execute(folder: Path, name: str, arrays: dict[str, np.ndarray], names: list[str], strict: bool) -> np.ndarray:
    described = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert "error" not in described, described
    (launch,) = described["launches"]
    try:
        after, _ = run_code_object(
            folder / launch["code"], launch["kernel"], launch["grid"], launch["block"],
            [*names, *launch["scalars"]], arrays, dynamic_lds=launch["dynamic_lds"], strict=strict,
            read_only=arrays.keys() - {"out"},
        )  # fmt: skip
    except MissingTool as error:
        pytest.skip(str(error))
    return after["out"]


def result(found: np.ndarray, m: int, n: int) -> Tensor:
    return torch.from_numpy(found).view(torch.bfloat16).view(m, n)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("fmt, n, k", UNPACKED)
def test_packed_elements_as_e4m3(fmt: str, n: int, k: int, strict: bool, folder: Path) -> None:
    packed = np.random.default_rng(k).integers(0, 256, (n, k // 2), dtype=np.uint8)
    arrays = {"packed": packed.reshape(-1).copy(), "out": np.full(n * k, 0x7F, np.uint8)}
    found = execute(folder, f"unpack-{fmt}-{n}", arrays, ["packed", "out"], strict)
    values = oracle.element_values(found.reshape(n, k), "e4m3")
    np.testing.assert_array_equal(values, oracle.element_values(packed, fmt))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("pair", PICKED, ids=ids)
def test_one_problem(pair: tuple, strict: bool, folder: Path) -> None:
    for m, n, k in SHAPES.values():
        case = make(pair, m, n, k)
        (a, a_scales, _), (b, b_scales, _) = parts("a", case.a), parts("b", case.b)
        arrays = {"a": raw(a), "b": raw(b), "out": np.full(2 * m * n, 0xFF, np.uint8)}
        for side, scales in (("a", a_scales), ("b", b_scales)):
            if scales is not None:
                arrays[f"{side}_scales"] = raw(laid(scales, pair, side))
        left, right = (name if name in arrays else "out" for name in ("a_scales", "b_scales"))
        names = ["a", "b", left, right, "out", "out", "out", "out"]
        case.check(result(execute(folder, f"{ids(pair)}-{m}", arrays, names, strict), m, n))


@pytest.mark.parametrize("pair", PICKED, ids=ids)
def test_groups(pair: tuple, folder: Path) -> None:
    assert len(ROWS) == GROUPS
    m, n, k = sum(ROWS) + 2, 40, 160
    whole, stack, offsets, cases = grouped(pair, ROWS, n, k, tail=2)
    (a, a_scales, _), (b, b_scales, _) = parts("a", whole), parts("b", stack)
    arrays = {"a": raw(a), "b": raw(b), "out": np.full(2 * m * n, 0xFF, np.uint8), "offsets": raw(offsets)}
    if a_scales is not None:
        arrays["a_scales"] = raw(laid(a_scales, pair, "a"))
    if b_scales is not None:
        each = [laid(scales, pair, "b") for scales in b_scales]
        arrays["b_scales"] = np.concatenate([raw(scales.reshape(-1)) for scales in each])
    left, right = (name if name in arrays else "out" for name in ("a_scales", "b_scales"))
    out = result(execute(folder, f"{ids(pair)}-groups", arrays, ["a", "b", left, right, "offsets", "out"], True), m, n)
    start = 0
    for case, count in zip(cases, ROWS, strict=True):
        if count:
            case.check(out[start : start + count])
        start += count
    assert out[start:].eq(0).all()
