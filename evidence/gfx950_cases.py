"""Which of our kernels run in the gfx950 emulator, on which data, and how a result is judged.

    compile_cases(CASES, folder, triton=None)             # in a subprocess; triton names an installation of another one
    outcome = execute(CASES[0], folder, strict=True)      # runs every launch of the case and judges the result

Used by the tests and by evidence/gfx950_evidence.py, which commits the executed-instruction counts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import mxgemm
from evidence.tritons import ROOT, compiler_environment
from gfx950emu import Stats, run_code_object
from gfx950emu.idle import LdsTrace
from gfx950emu.mutation import Mutants, mutate
from gfx950emu.profile import by_class
from gfx950emu.waves import Observer
from mxgemm.measure import LEADERBOARD
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import compare

COUNTERS: Final = 4096
PREPARED: Final = ("preshuffled", "shuffled")
ROW_MAJOR: Final = ("row_major", "row_major")
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """One multiplication, or one quantisation where ``route`` is "quantize".

    Attributes:
        name: of the case, and of its files.
        route: the route, or "quantize". "quant_gemm_mx" quantises first, the others' A is as they take it.
        m: rows of A.
        n: rows of B; of no meaning to "quantize".
        k: elements along K.
        layout: of the weight and of its scales; for "quantize" the second says how scales are stored.
        a_format: what A is rounded to.
        b_format: of the weight.
        a_dtype: of A.
        out_dtype: of the result.
        rounding: scale rule of A.
        bias: add one.
        awkward: put NaN, Inf and zero blocks into A.
        config: tile, or None for the router's choice.
    """

    name: str
    route: str
    m: int
    n: int
    k: int
    layout: tuple[str, str] = PREPARED
    a_format: str = "e2m1"
    b_format: str = "e2m1"
    a_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    rounding: str = "even"
    bias: bool = False
    awkward: bool = False
    config: Mapping[str, Any] | None = None

    def job(self) -> dict[str, Any]:
        """Describe the case to evidence/gfx950_compile.py."""
        if self.route == "quantize":
            shuffled = self.layout[1] == "shuffled"
            rows, columns = layouts.padded_scale_shape(self.m, self.k) if shuffled else (self.m, self.k // 32)
            options = {
                "m": self.m, "k": self.k, "dtype": self.a_dtype, "format": self.a_format, "rounding": self.rounding,
                "scale_columns": columns, "shuffled_rows": rows if shuffled else None,
            }  # fmt: skip
            return {"name": self.name, "quantize": options}
        problem: dict[str, Any] = {
            "weight_layout": self.layout[0], "scale_layout": self.layout[1], "a_format": self.a_format,
            "b_format": self.b_format, "scale_rounding": self.rounding, "out_dtype": self.out_dtype,
            "has_bias": self.bias,
        }  # fmt: skip
        if self.route == "gemm_mx":
            problem["a_quantized"] = True
        else:
            problem["a_dtype"] = self.a_dtype
        return {
            "name": self.name, "route": self.route, "m": self.m, "n": self.n, "k": self.k, "problem": problem,
            "config": self.config,
        }  # fmt: skip


@dataclass
class Outcome:
    """What came of a case.

    Attributes:
        passed: the result meets the gates (GEMM) or equals the definition to the byte (quantise).
        detail: the accuracy, or what differs.
        counts: executed instructions by class, summed over waves and launches.
        launches: the emulator's statistics of each launch.
        config: the tile.
        triton: the version that compiled it.
        observers: of each launch, where that was asked for.
    """

    passed: bool
    detail: str
    counts: dict[str, int]
    launches: list[Stats]
    config: dict[str, Any] = field(default_factory=dict)
    triton: str = ""
    observers: list[Observer] = field(default_factory=list)


_EIGHT_WAVES: Final = {"block_m": 256, "block_n": 256, "block_k": 256, "num_warps": 8}
_WIDE: Final = {"block_m": 16, "block_n": 128, "block_k": 256, "waves_per_eu": 4}
_SPLIT: Final = {"block_n": 128, "split_k": 4}

CASES: Final = (
    Case("a16wfp4", "a16wfp4", 16, 128, 512, config=_WIDE),
    Case("a16wfp4-all-of-k", "a16wfp4", 16, 128, 512),
    Case("a16wfp4-nan", "a16wfp4", 4, 272, 512, awkward=True),
    Case("a16wfp4-row-major", "a16wfp4", 33, 96, 768, ROW_MAJOR),
    Case("a16wfp4-leaderboard-layout", "a16wfp4", 5, 80, 512, ("row_major", "shuffled")),
    Case("a16wfp4-ceil", "a16wfp4", 31, 48, 2880, rounding="ceil"),
    Case("a16wfp4-floor", "a16wfp4", 17, 48, 96, ROW_MAJOR, rounding="floor"),
    Case("a16wfp4-fp16", "a16wfp4", 16, 64, 512, a_dtype="float16", rounding="rceil"),
    Case("a16wfp4-fp32", "a16wfp4", 16, 64, 512, a_dtype="float32", out_dtype="float32"),
    Case("a16wfp4-bias", "a16wfp4", 7, 80, 256, bias=True, out_dtype="float32"),
    Case("a16wfp4-e4m3", "a16wfp4", 16, 64, 512, a_format="e4m3"),
    Case("a16wfp4-e4m3-weight", "a16wfp4", 16, 64, 256, ROW_MAJOR, b_format="e4m3"),
    Case("a16wfp4-split", "a16wfp4", 16, 128, 1024, config=_SPLIT),
    Case("a16wfp4-split-bias", "a16wfp4", 20, 96, 1024, config=_SPLIT, bias=True),
    Case("a16wfp4-one-launch", "a16wfp4", 16, 128, 1024, config={**_SPLIT, "one_launch": True}),
    Case("a16wfp4-one-launch-tiles", "a16wfp4", 33, 272, 1024, config={**_SPLIT, "one_launch": True}),
    Case("w4a16", "w4a16", 16, 64, 512, a_format="bf16"),
    Case("w4a16-row-major", "w4a16", 3, 48, 288, ROW_MAJOR, a_format="bf16", a_dtype="float16"),
    Case("gemm_mx", "gemm_mx", 40, 64, 768),
    Case("gemm_mx-e4m3", "gemm_mx", 16, 64, 512, a_format="e4m3"),
    Case("gemm_mx-e5m2", "gemm_mx", 16, 64, 512, ROW_MAJOR, a_format="e5m2"),
    Case("quant_gemm_mx", "quant_gemm_mx", 140, 160, 512),
    Case("quant_gemm_mx-nan-bias", "quant_gemm_mx", 130, 48, 320, awkward=True, bias=True, rounding="ceil"),
    Case("quant_gemm_mx-row-major", "quant_gemm_mx", 70, 80, 256, ROW_MAJOR, a_dtype="float16"),
    Case("quant_gemm_mx-eight-waves", "quant_gemm_mx", 260, 272, 512, config=_EIGHT_WAVES),
    Case("quantize", "quantize", 33, 0, 288, ROW_MAJOR, awkward=True),
    Case("quantize-fp32-ceil", "quantize", 5, 0, 96, ROW_MAJOR, a_dtype="float32", rounding="ceil", awkward=True),
    Case("quantize-fp16", "quantize", 16, 0, 512, ROW_MAJOR, a_dtype="float16", awkward=True),
    Case("quantize-shuffled", "quantize", 70, 0, 320, awkward=True),
    Case("quantize-shuffled-rceil", "quantize", 16, 0, 512, a_dtype="float32", rounding="rceil", awkward=True),
    Case("quantize-e4m3", "quantize", 16, 0, 256, ROW_MAJOR, a_format="e4m3", awkward=True),
    *(Case("leaderboard-{}x{}x{}".format(*shape), "a16wfp4", *shape) for shape in LEADERBOARD),
)
_MUTATED: Final = (
    *("a16wfp4", "a16wfp4-all-of-k", "a16wfp4-one-launch", "a16wfp4-one-launch-tiles"),
    *("gemm_mx", "quant_gemm_mx", "quantize"),
)
MUTATED: Final = tuple(case for case in CASES if case.name in _MUTATED)
"""The cases from which waits, barriers and cache operations are taken."""


def compile_cases(cases: Iterable[Case], folder: Path, triton: str | os.PathLike[str] | None = None) -> None:
    """Compile in a subprocess, outside the interpreter, with the triton of this environment or the one named."""
    environment = compiler_environment(triton)
    jobs = json.dumps([case.job() for case in cases])
    command = [sys.executable, "-m", "evidence.gfx950_compile", str(folder)]
    done = subprocess.run(command, input=jobs, text=True, capture_output=True, env=environment, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def mutants(case: Case, folder: Path, copies: Path) -> Mutants:
    """Take waits and barriers out of a case's main kernel, one at a time, in copies of its files."""
    copies.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{case.name}.*"):
        shutil.copy(path, copies)
    launch = 1 if case.route == "quant_gemm_mx" else 0
    main = copies / f"{case.name}.{launch}.hsaco"

    def is_right(code: bytes) -> bool:
        main.write_bytes(code)
        return execute(case, copies, strict=True).passed

    plain = execute(case, folder, strict=True, observers=LdsTrace)
    trace = plain.observers[launch]
    assert isinstance(trace, LdsTrace)
    return mutate(main.read_bytes(), plain.launches[launch:][:1], is_right, trace.idle_barriers())


def execute(
    case: Case, folder: Path, *, strict: bool = False, observers: Callable[[], Observer] | None = None
) -> Outcome:
    """Run every launch of a compiled case in the emulator, each with an observer, and judge the result."""
    compiled = json.loads((folder / f"{case.name}.json").read_text(encoding="utf-8"))
    if "error" in compiled:
        raise RuntimeError(f"{case.name} did not compile: {compiled['error']}")
    run = _run_quantize if case.route == "quantize" else _run_gemm
    made = [observers() for _ in compiled["launches"]] if observers else []
    outcome = run(case, folder, compiled, strict, made)
    outcome.config, outcome.triton, outcome.observers = compiled["config"], compiled["triton"], made
    return outcome


def activations(case: Case) -> Tensor:
    """Random A whose block scales differ; NaN, Inf, a zero block and -0 where the case is awkward."""
    a = spread(case.m, case.k, 1)
    a[-1, :32] = 0
    if case.awkward:
        a[case.m // 2, 5] = torch.nan
        a[0, 40] = torch.inf
        a[0, 64:96] = -0.0
        a[-1, 33] = -torch.inf if case.route == "quantize" else 0.0
    return a.to(getattr(torch, case.a_dtype))


def spread(rows: int, k: int, seed: int) -> Tensor:
    """Random fp32 ``[rows, k]`` whose blocks of 32 differ in scale by powers of two."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator)
    powers = torch.randint(-6, 7, (rows, k // 32), generator=generator).float()
    return x * torch.exp2(powers).repeat_interleave(32, dim=1)


def raw_bytes(tensor: Tensor) -> Bytes:
    """Return a tensor's bytes as the emulator takes them."""
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def _run_gemm(case: Case, folder: Path, compiled: dict[str, Any], strict: bool, observers: list[Observer]) -> Outcome:
    a = activations(case)
    weight = mxgemm.quantize(spread(case.n, case.k, 2), format=case.b_format)  # type: ignore[arg-type]
    bias = torch.linspace(-4, 4, case.n) if case.bias else None
    out_dtype = getattr(torch, case.out_dtype)
    split = int(compiled["config"]["split_k"])
    preshuffled, shuffled = case.layout[0] == "preshuffled", case.layout[1] == "shuffled"
    arrays: dict[str, Bytes] = {
        "b": raw_bytes(layouts.preshuffle_weight(weight.data) if preshuffled else weight.data),
        "b_scales": raw_bytes(layouts.shuffle_scales(weight.scales) if shuffled else weight.scales),
        "out": np.full(case.m * case.n * out_dtype.itemsize, 0xFF, np.uint8),
    }
    operands = ["a", "b", "b_scales"]
    if case.route == "gemm_mx":
        quantized = mxgemm.quantize(a, format=case.a_format)  # type: ignore[arg-type]
        arrays |= {"a": raw_bytes(quantized.data), "a_scales": raw_bytes(quantized.scales)}
        operands.insert(1, "a_scales")
    else:
        arrays["a"] = raw_bytes(a)
    if case.route == "quant_gemm_mx":
        operands = ["a_data", "a_scales", *operands[1:]]
        rows, columns = layouts.padded_scale_shape(case.m, case.k)
        arrays |= {"a_data": np.full(case.m * case.k // 2, 0xFF, np.uint8)}
        arrays |= {"a_scales": np.full(rows * columns, 0xFF, np.uint8)}
    if bias is not None:
        arrays["bias"] = raw_bytes(bias)
    if split > 1:
        arrays["partials"] = np.full(4 * split * case.m * case.n, 0xFF, np.uint8)
        arrays["counters"] = np.zeros(COUNTERS, np.uint8)
    added, partials = "bias" if case.bias else "out", "partials" if split > 1 else "out"
    counters = "counters" if split > 1 and compiled["config"]["one_launch"] else "out"
    names = [[*operands, added, "out", partials, counters], ["partials", added, "out"]]
    if case.route == "quant_gemm_mx":
        names.insert(0, ["a", "a_data", "a_scales"])
    arrays, counts, launches = _launch(folder, compiled, names, arrays, strict, observers)
    if "counters" in arrays and arrays["counters"].any():
        return Outcome(False, "the split-K counters were not left at zero", counts, launches)
    out = torch.from_numpy(arrays["out"]).view(out_dtype).view(case.m, case.n)
    passed, detail = judge(case, out, a, weight, bias)
    return Outcome(passed, detail, counts, launches)


def judge(case: Case, out: Tensor, a: Tensor, weight: mxgemm.MXTensor, bias: Tensor | None) -> tuple[bool, str]:
    """Say whether a product passes both gates, rows that read a NaN being NaN, and its accuracy."""
    if case.a_format == "bf16":
        a64 = a.to(torch.bfloat16).double().numpy()
    else:
        rounding = "even" if case.route == "gemm_mx" else case.rounding
        a64 = oracle.decode(*oracle.encode(a.float().numpy(), case.a_format, rounding), case.a_format)
    b64 = oracle.decode(weight.data.numpy(), weight.scales.numpy(), case.b_format)
    spoilt = np.isnan(a64).any(axis=1)
    if case.awkward and not out[torch.from_numpy(spoilt)].isnan().all():
        return False, "a block with NaN or Inf gave a finite result"
    a64, out = a64[~spoilt], out[torch.from_numpy(~spoilt)]
    exact = oracle.matmul(a64, b64, None if bias is None else bias.double().numpy())
    accuracy = compare(out, exact, a64, b64)
    return accuracy.passed, str(accuracy)


def _run_quantize(
    case: Case, folder: Path, compiled: dict[str, Any], strict: bool, observers: list[Observer]
) -> Outcome:
    x = activations(case)
    expected = mxgemm.quantize(x, format=case.a_format, scale_rounding=case.rounding)  # type: ignore[arg-type]
    scales = layouts.shuffle_scales(expected.scales) if case.layout[1] == "shuffled" else expected.scales
    arrays = {
        "x": raw_bytes(x),
        "data": np.full(expected.data.numel(), 0xA5, np.uint8),
        "scales": np.full(scales.numel(), 0xA5, np.uint8),
    }
    after, counts, launches = _launch(folder, compiled, [["x", "data", "scales"]], arrays, strict, observers)
    for name, tensor in (("data", expected.data), ("scales", scales)):
        wrong = np.nonzero(after[name] != raw_bytes(tensor))[0]
        if wrong.size:
            first = int(wrong[0])
            detail = f"{name}: {wrong.size} bytes differ, the first at {first}: {after[name][first]:#x}"
            return Outcome(False, detail, counts, launches)
    return Outcome(True, "equal to the byte", counts, launches)


def _launch(
    folder: Path,
    compiled: dict[str, Any],
    names: list[list[str]],
    arrays: dict[str, Bytes],
    strict: bool,
    observers: list[Observer],
) -> tuple[dict[str, Bytes], dict[str, int], list[Stats]]:
    counts: dict[str, int] = {}
    launches: list[Stats] = []
    for index, (launch, tensors) in enumerate(zip(compiled["launches"], names, strict=False)):
        assert launch["tensors"] == len(tensors), (launch, tensors)
        writable = {"out", "partials", "counters", "data", "scales", "a_data"}
        if "a_data" in tensors[1:2]:
            writable.add("a_scales")
        arrays, stats = run_code_object(
            folder / launch["code"],
            launch["kernel"],
            launch["grid"],
            launch["block"],
            [*tensors, *launch["scalars"]],
            arrays,
            dynamic_lds=launch["dynamic_lds"],
            strict=strict,
            read_only=arrays.keys() - writable,
            observer=observers[index] if observers else None,
        )
        launches.append(stats)
        for kind, count in by_class(stats.counts).items():
            counts[kind] = counts.get(kind, 0) + count
    return arrays, counts, launches
