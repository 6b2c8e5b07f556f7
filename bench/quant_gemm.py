"""Every scheme of mxgemm.quant_gemm on a GPU: each route and torch.mm in bf16, judged and timed.

    python bench/quant_gemm.py [-o bench/results/quant_gemm_h200.json] [--quick] [--only int4 --only e2m1]

Device microseconds of one call by mxgemm.measure.timing.graph_us: replays of a graph of calls on copies of B that
together exceed the L2 cache twice; median and quartiles. Operands are N(0, 1), quantised beforehand by quantize_for. A
route is timed as quant_gemm calls it, scales in the order that quantize_for gives, ones for sides without scales made
inside. torch_mm is torch.mm of bf16 operands of the same sizes. Every route is judged by both gates of docs/numbers.md
against float64 on 32 rows and 256 columns; chosen says which one quant_gemm takes. tiles has the Triton kernel with
other tiles than the one that it gets. groups: rows of A in eight equal groups, by quant_gemm_grouped in one launch, by
a call for each group, by torch._scaled_grouped_mm (row-wise scales), and by torch._grouped_mm in bf16.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mxgemm
from mxgemm import ABBlock, ABlock, BBlock, QuantTensor, RowCol, TensorWise
from mxgemm.measure import Effort, output
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.timing import graph_us
from mxgemm.mx.accuracy import compare
from mxgemm.mx.oracle import matmul
from mxgemm.scaled import oracle, triton_gemm
from mxgemm.scaled.choice import ROUTES
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.plan import planned, stored
from mxgemm.scaled.problem import Operands, Options, QuantProblem
from mxgemm.scaled.route import Launch
from mxgemm.scaled.schemes import Scheme
from mxgemm.scaled.tile import Tile, depth_of, tile_for, tile_refusal
from mxgemm.scaled.validation import scale_name

KIND = "mxgemm-quant-gemm"
EFFORT = Effort(seconds=0.02)
WORKERS = 15


@dataclass(frozen=True)
class Case:
    """A scheme and the formats of A and B."""

    scheme: Scheme
    a: str = "e4m3"
    b: str = "e4m3"

    @property
    def name(self) -> str:
        """The case in a few letters."""
        return f"{self.scheme}, {self.a} by {self.b}"


CASES = (
    Case(TensorWise()),
    Case(RowCol()),
    Case(RowCol(), "e5m2", "e5m2"),
    Case(ABlock(128)),
    Case(ABlock(128), "int4"),
    Case(ABBlock()),
    Case(ABBlock(128, 1, 128)),
    Case(ABBlock(), "e2m1", "e2m1"),
    Case(BBlock(1, 128)),
    Case(BBlock(128, 128)),
    Case(BBlock(1, 128), b="int4"),
    Case(BBlock(1, 32, "e8m0"), "bf16", "e2m1"),
    Case(BBlock(1, 128, "e8m0"), "bf16", "e5m2"),
    Case(BBlock(1, 32, "e8m0"), "bf16", "bf16"),
)
SIZES = (
    *((m, 7168, 2048) for m in (1, 16, 64, 256, 1024, 4096)),
    *((m, 2112, 7168) for m in (1, 16, 64)),
    *((m, 10240, 8192) for m in (16, 1024)),
)
SWEPT = (1, 5, 10, 13)
"""Cases whose tiles are swept, by their places in CASES: one of each kind of inner loop."""
SWEPT_SIZES = (*((m, 7168, 2048) for m in (16, 64, 256, 1024)), (16, 2112, 7168))
GROUPS = 8


def main() -> None:
    """Compile in many processes, judge, time; exit status 1 after a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="no other tiles than those that quant_gemm takes")
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this in it, and nothing else")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes that compile first, 0 for none")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    device = torch.device("cuda", 0)
    only, failures = arguments.only, list[str]()
    cases = [case for case in CASES if not only or any(part in case.name for part in only)]
    quick = arguments.quick or bool(only)
    if arguments.workers:
        jobs = [job for job in all_jobs(quick) if CASES[job[0]] in cases]
        with ProcessPoolExecutor(arguments.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            failures = [said for said in pool.map(compile_job, jobs, chunksize=2) if said]
    heat()
    document: dict[str, Any] = {
        "kind": KIND,
        "version": 1,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "clocks": {"start": clocks(device)},
        "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "torch_mm": [torch_mm(*size) for size in SIZES],
        "results": [row for case in cases for size in SIZES for row in measure(case, size)],
        "groups": [
            row for case in (CASES[1], CASES[5]) for m in (4, 64, 512) if not only for row in grouped(case, GROUPS * m)
        ],
        "tiles": [] if quick else [row for index in SWEPT for row in sweep(CASES[index])],
        "failures": failures,
    }
    document["clocks"]["end"] = clocks(device)
    keep(document)
    print("\n".join(summary(document)))
    raise SystemExit(0 if not failures and all(row["passed"] for row in document["results"]) else 1)


def operands_of(case: Case, m: int, n: int, k: int) -> tuple[QuantTensor | Tensor, QuantTensor | Tensor]:
    """Draw N(0, 1), the same in every run, and quantise it."""
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    a, b = (torch.randn(rows, k, generator=generator, device="cuda") for rows in (m, n))
    left = mxgemm.quantize_for(a, case.scheme, "a", format=case.a)
    return left, mxgemm.quantize_for(b, case.scheme, "b", format=case.b)


@dataclass(frozen=True)
class Prepared:
    """A problem with its tensors as routes get them."""

    case: Case
    problem: QuantProblem
    chosen: str
    tensors: tuple[Tensor, Tensor | None, Tensor, Tensor | None]
    a64: np.ndarray[Any, Any]
    b64: np.ndarray[Any, Any]
    rows: Tensor
    columns: Tensor

    def operands(self, out: Tensor, b: Tensor | None = None, b_scales: Tensor | None = None) -> Operands:
        """Return the operands, with a copy of B where one is given."""
        a, a_scales, own, own_scales = self.tensors
        return Operands(a, a_scales, own if b is None else b, own_scales if b is None else b_scales, None, out)

    def calls(self, launch: Launch, rotated: Sequence[Sequence[Tensor | None]], out: Tensor) -> list[partial[Any]]:
        """Return one call for each copy of B."""
        return [partial(launch, self.operands(out, b, scales)) for b, scales in rotated]


def prepare(case: Case, m: int, n: int, k: int) -> Prepared:
    """Make a problem, and what a sample of its operands is worth."""
    a, b = operands_of(case, m, n, k)
    (a_data, a_scales, a_format), (b_data, b_scales, b_format) = parts("a", a), parts("b", b)
    problem, route = planned(a_data, a_scales, b_data, b_scales, Options(case.scheme, a_format, b_format))
    random = np.random.default_rng(m + n + k)
    rows, columns = (torch.from_numpy(np.sort(random.permutation(size)[:most])) for size, most in ((m, 32), (n, 256)))
    s = case.scheme
    a64 = worth(a_data, a_scales, case.a, s.a_kind, (1, s.a_group), rows)
    b64 = worth(b_data, b_scales, case.b, s.b_kind, s.b_group, columns)
    tensors = tuple(stored(tensor) for tensor in (a_data, a_scales, b_data, b_scales))
    return Prepared(case, problem, route.name, tensors, a64, b64, rows, columns)  # type: ignore[arg-type]


def worth(
    data: Tensor, scales: Tensor | None, fmt: str, kind: Any, group: tuple[int, int], rows: Tensor
) -> np.ndarray[Any, Any]:
    """Return rows of an operand in float64."""
    picked = stored(data)[rows.to(data.device)].cpu()  # type: ignore[index]
    raw = picked.view(torch.int16).numpy().view(np.uint16) if fmt == "bf16" else picked.numpy()
    if scales is None or kind in ("none", "tensor"):
        kept = None if scales is None else scales.cpu().numpy()
        return oracle.operand(raw, fmt, kept, "fp32", kind, group)
    of_rows = stored(scales)[(rows // group[0]).to(scales.device)].cpu().numpy()  # type: ignore[index]
    return oracle.operand(raw, fmt, of_rows, scale_name(scales), kind, (1, group[1]))


def judged(prepared: Prepared, out: Tensor, bits: int) -> dict[str, Any]:
    """Judge a result by both gates."""
    got = out[prepared.rows.cuda()][:, prepared.columns.cuda()].cpu()
    found = compare(got, matmul(prepared.a64, prepared.b64), prepared.a64, prepared.b64, bits)
    return {"norm": found.norm, "element": found.element, "element_limit": found.element_limit, "passed": found.passed}


def copies(tensors: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
    """Return copies of B and its scales that together exceed the cache."""
    weight = tensors[0]
    assert weight is not None
    count = copies_needed(weight.nbytes, cache_bytes(weight.device))
    return [list(tensors), *([None if t is None else t.clone() for t in tensors] for _ in range(count - 1))]


def timed(calls: Sequence[Callable[[], object]]) -> dict[str, Any]:
    """Time calls, or say why it cannot be done."""
    try:
        spread = graph_us(calls, EFFORT)
    except RuntimeError as error:
        torch.cuda.synchronize()
        return {"us": None, "error": str(error).splitlines()[0]}
    return {"us": spread.us, "low": spread.low, "high": spread.high, "runs": spread.runs}


def measure(case: Case, size: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    """Judge and time every route that takes a problem."""
    m, n, k = size
    prepared = prepare(case, m, n, k)
    rotated = copies(prepared.tensors[2:])
    for name, route in ROUTES.items():
        if name == "reference" or route.refusal(prepared.problem) is not None:
            continue
        launch = route.bind(prepared.problem)
        out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
        made = launch(prepared.operands(out))
        verdict = judged(prepared, out if made is None else made, route.accumulate_bits(prepared.problem))
        calls = prepared.calls(launch, rotated, out)
        tile = {"tile": asdict(tile_for(prepared.problem))} if name == "triton" else {}
        row = {"case": case.name, "m": m, "n": n, "k": k, "route": name, "chosen": name == prepared.chosen}
        yield {**row, **timed(calls), **verdict, **tile}


def torch_mm(m: int, n: int, k: int) -> dict[str, Any]:
    """Time the bf16 product of the same sizes."""
    a, b = (torch.randn(rows, k, device="cuda").to(torch.bfloat16) for rows in (m, n))
    return {"m": m, "n": n, "k": k, **timed([partial(torch.mm, a, copy[0].t()) for copy in copies([b])])}  # type: ignore[union-attr]


def tiles_for(problem: QuantProblem) -> list[Tile]:
    """Return other tiles than the one that a problem gets."""
    depth, m = depth_of(problem), problem.m
    if m <= 32:
        found = [Tile(16, 64, depth, split, True, 4, 4) for split in (1, 2, 4, 8, 16)]
        found += [Tile(16, 128, depth, split, True, 4, 4) for split in (2, 4, 8)]
    elif m <= 64:
        found = [Tile(64, 64, depth, split, False, 4, 4) for split in (1, 2, 4, 8)]
        found += [Tile(64, 128, depth, split, True, 8, 4) for split in (1, 2, 4)]
    else:
        found = [Tile(64, 128, depth, 1, False, 4, 3), Tile(128, 64, depth, 1, False, 4, 3)]
        found += [Tile(128, 64, depth, 1, False, 8, 3), Tile(64, 64, depth, 1, False, 4, 3)]
        found += [Tile(128, 128, depth, 1, False, 8, 3), Tile(128, 128, depth, 1, False, 4, 3)]
        found += [Tile(128, 64, depth, 1, False, 4, 4), Tile(64, 128, depth, 1, False, 4, 4)]
    return [tile for tile in found if tile != tile_for(problem) and tile_refusal(problem, tile) is None]


def sweep(case: Case) -> Iterator[dict[str, Any]]:
    """Time the Triton kernel with other tiles."""
    for m, n, k in SWEPT_SIZES:
        prepared = prepare(case, m, n, k)
        rotated = copies(prepared.tensors[2:])
        out = torch.empty((m, n), dtype=torch.bfloat16, device="cuda")
        for tile in tiles_for(prepared.problem):
            launch = triton_gemm.bind(prepared.problem, tile)
            calls = prepared.calls(launch, rotated, out)
            row = {"case": case.name, "m": m, "n": n, "k": k, **timed(calls)}
            yield {**row, **judged(prepared, out, 13), "tile": asdict(tile)}


def grouped(case: Case, m: int) -> Iterator[dict[str, Any]]:
    """Time eight equal groups of rows, each with a matrix of its own."""
    n, k = SIZES[0][1:]
    a, _ = operands_of(case, m, n, k)
    stack = torch.randn(GROUPS, n, k, device="cuda")
    b = mxgemm.quantize_for(stack, case.scheme, "b", format=case.b)
    assert isinstance(a, QuantTensor)
    assert isinstance(b, QuantTensor)
    offsets = torch.arange(1, GROUPS + 1, device="cuda", dtype=torch.int32) * (m // GROUPS)
    ends = [(g * m // GROUPS, (g + 1) * m // GROUPS) for g in range(GROUPS)]
    each = [QuantTensor(a.data[i:j], a.scales[i:j], a.format) for i, j in ends]
    matrices = [QuantTensor(b.data[g], b.scales[g], b.format) for g in range(GROUPS)]

    def by_calls() -> None:
        for left, right in zip(each, matrices, strict=True):
            mxgemm.quant_gemm(left, right, scheme=case.scheme)

    ways: dict[str, Callable[[], object]] = {
        "one launch": partial(mxgemm.quant_gemm_grouped, a, b, offsets, scheme=case.scheme),
        "a call for each": by_calls,
    }
    if case.scheme == RowCol():
        ways["torch._scaled_grouped_mm"] = partial(
            torch._scaled_grouped_mm, a.data, b.data.transpose(-1, -2), a.scales, b.scales, offs=offsets,
            out_dtype=torch.bfloat16,
        )  # fmt: skip
    else:
        halves = torch.randn(m, k, device="cuda").bfloat16(), stack.bfloat16().transpose(-1, -2)
        ways["torch._grouped_mm"] = partial(torch._grouped_mm, *halves, offs=offsets)
    for way, call in ways.items():
        yield {"case": case.name, "m": m, "n": n, "k": k, "groups": GROUPS, "way": way, **timed([call])}


Job = tuple[int, tuple[int, int, int], Tile | None]


def all_jobs(quick: bool) -> Iterator[Job]:
    """Yield what is to be compiled: (case, size, tile), None for the tile that a problem gets."""
    for index in range(len(CASES)):
        yield from ((index, size, None) for size in SIZES)
    for index in () if quick else SWEPT:
        for size in SWEPT_SIZES:
            problem = prepare(CASES[index], *size).problem
            yield from ((index, size, tile) for tile in tiles_for(problem))


def compile_job(job: Job) -> str:
    """Launch once, which leaves the kernel in Triton's cache; return what went wrong, or ""."""
    index, size, tile = job
    try:
        prepared = prepare(CASES[index], *size)
        out = torch.empty(size[:2], dtype=torch.bfloat16, device="cuda")
        launch = triton_gemm.bind(prepared.problem, tile or tile_for(prepared.problem))
        launch(prepared.operands(out))
        unpacking = ROUTES["unpack_mm"]
        if tile is None and unpacking.refusal(prepared.problem) is None:
            unpacking.bind(prepared.problem)(prepared.operands(out))
        torch.cuda.synchronize()
    except Exception as error:  # one that breaks is a result: it is kept
        return f"{CASES[index].name} {size} {tile}: {type(error).__name__}: {str(error)[:200]}"
    return ""


def heat() -> None:
    """Bring the clocks up."""
    x = torch.randn(8192, 8192, device="cuda").bfloat16()
    for _ in range(60):
        torch.mm(x, x)
    torch.cuda.synchronize()


def summary(document: dict[str, Any]) -> list[str]:
    """Return a line for each problem: every route's time, the chosen one marked, and the bf16 product's."""
    bf16 = {(row["m"], row["n"], row["k"]): row["us"] for row in document["torch_mm"]}
    lines: dict[Any, list[str]] = {}
    for row in document["results"]:
        mark, bad = "*" if row["chosen"] else "", "" if row["passed"] else " WRONG"
        us = "-" if row["us"] is None else f"{row['us']:.2f}"
        size = (row["m"], row["n"], row["k"])
        lines.setdefault((row["case"], size), []).append(f"{row['route']}{mark} {us}{bad}")
    found = [f"{case} {size}: {', '.join(cells)}, bf16 {bf16[size]:.2f}" for (case, size), cells in lines.items()]
    found += [f"{row['case']} groups of {row['m'] // GROUPS}: {row['way']} {row['us']}" for row in document["groups"]]
    return found + [json.dumps(failure) for failure in document["failures"]]


if __name__ == "__main__":
    main()
