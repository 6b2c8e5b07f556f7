"""Execute random cases of the gfx950 kernels strictly in the emulator, once, and commit what came of them.

    python evidence/random_cases.py [--cases 100] [-o bench/results/random_gfx950.json]

Half of the cases are of hip_fused, half of the Triton kernels; as many as of hip_fused are added for hip_mx.

Needs triton, clang-22 and LLVM's objdump. Each case draws a kernel, sizes (odd N and tails of K where the kernel takes
them, M from 1 on), a tile, scale rounding, dtypes, strides of A, NaN, infinity and zero blocks in A; weight scales are
drawn over all bytes in every fourth case of the HIP kernels. A wrong result, or anything that strict mode raises,
ends the run with the case.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import track

import mxgemm
from evidence.gfx950_cases import Case, compile_cases, execute, spread
from evidence.hip_cases import FusedRun, problem_of_case
from evidence.mx_cases import MXRun
from evidence.tritons import other_triton
from gfx950emu.profile import by_class
from mxgemm.hip.fused_choice import candidates
from mxgemm.hip.mx import BLOCKS, MXConfig
from mxgemm.measure import output
from mxgemm.mx.formats import SCALE_ROUNDINGS

KIND: Final = "mxgemm-random-cases"
SEED: Final = 20


def main() -> None:
    """Run and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--cases", type=int, default=100)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    chance = random.Random(SEED)
    rows = [hip_row(chance, index) for index in track(range(arguments.cases // 2), "hip_fused")]
    other = random.Random(SEED)
    many = [mx_row(other, index) for index in track(range(arguments.cases // 2), "hip_mx")]
    drawn = [triton_case(chance, index) for index in range(arguments.cases - len(rows))]
    for installation, cases in ((None, drawn[::2]), (other_triton(), drawn[1::2])):
        rows += triton_rows(cases, installation)
    rows += many
    if arguments.output:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        keep(
            {
                "kind": KIND,
                "arch": "gfx950",
                "date": now,
                "executed_by": "gfx950emu, strict",
                "seed": SEED,
                "rows": rows,
            }
        )


def hip_row(chance: random.Random, index: int) -> dict[str, Any]:
    """Draw and run a case of the fused kernel, with a configuration of all that are legal."""
    k = 128 * chance.choice((1, 2, 3, 4, 6, 8, 9, 16))
    case = Case(
        "fused", "hip_fused", chance.choice((1, 3, 16, 17, 33, 64, 70)), 16 * chance.randint(1, 26), k,
        rounding=chance.choice(SCALE_ROUNDINGS), out_dtype=chance.choice(("bfloat16", "float32")),
        bias=chance.random() < 0.3, awkward=chance.random() < 0.3 and k >= 256,
    )  # fmt: skip
    if case.m < 3:
        case = replace(case, awkward=False)
    config = chance.choice(candidates(problem_of_case(case)))
    stride = k + 8 * chance.randint(0, 5)
    weight = all_scales(case, index) if index % 4 == 0 else None
    return judged(FusedRun(case, config, row_stride=stride, weight=weight), weight is not None, stride)


def mx_row(chance: random.Random, index: int) -> dict[str, Any]:
    """Draw and run a case of the kernel for many rows."""
    k = 128 * chance.choice((1, 2, 3, 4, 5, 7, 10))
    case = Case(
        "mx", "hip_mx", chance.choice((1, 3, 17, 64, 129, 200, 257, 300)), 16 * chance.randint(1, 35), k,
        rounding=chance.choice(SCALE_ROUNDINGS), out_dtype=chance.choice(("bfloat16", "float32")),
        bias=chance.random() < 0.3, awkward=chance.random() < 0.3 and k >= 256,
    )  # fmt: skip
    if case.m < 3:
        case = replace(case, awkward=False)
    config = MXConfig(chance.choice(BLOCKS), chance.choice(BLOCKS), chance.randint(1, 9))
    stride = k // 2 + 16 * chance.randint(0, 5)
    weight = all_scales(case, index) if index % 4 == 0 else None
    return judged(MXRun(case, config, row_stride=stride, weight=weight), weight is not None, stride)


def judged(run: FusedRun | MXRun, all_scales: bool, stride: int) -> dict[str, Any]:
    """Run a case of a HIP kernel and return its row.

    Raises:
        SystemExit: the result is wrong.
    """
    out, stats = run.launch(strict=True)
    passed, detail = judged_by_columns(run, out) if all_scales else run.judge(out)
    if not passed:
        raise SystemExit(f"{run.case} {run.config} stride {stride}: {detail}")
    return {"kernel": run.case.route, **described(run.case), "config": run.config.to_mapping(), "stride": stride,
            "all_scales": all_scales, "result": detail, "counts": by_class(stats.counts)}  # fmt: skip


def all_scales(case: Case, index: int) -> mxgemm.MXTensor:
    """Return a weight of random codes whose scale bytes are any of the 256, the same along a column."""
    generator = torch.Generator().manual_seed(index)
    weight = mxgemm.quantize(spread(case.n, case.k, 2))
    weight.data.copy_(torch.randint(0, 256, weight.data.shape, generator=generator, dtype=torch.uint8))
    byte = torch.randint(0, 256, (case.n, 1), generator=generator, dtype=torch.uint8)
    weight.scales.copy_(byte.expand_as(weight.scales))
    return weight


def judged_by_columns(run: FusedRun | MXRun, out: torch.Tensor) -> tuple[bool, str]:
    """Judge each column by itself: NaN where its scale is, near float64 where fp32 holds all of the sum."""
    case, a = run.case, run.a
    quantized = mxgemm.quantize(a, scale_rounding=case.rounding)  # type: ignore[arg-type]
    scales, codes = run.weight.scales[:, 0].double(), run.weight
    values = mxgemm.quantize(torch.zeros(case.n, case.k))
    values.data.copy_(codes.data)
    values.scales.fill_(127)
    exact = quantized.dequantize().double() @ values.dequantize().double().T * torch.exp2(scales - 127)
    if run.bias is not None:
        exact += run.bias.double()
    nan = run.weight.scales[:, 0] == 255
    rows = ~quantized.dequantize().isnan().any(1)
    if not out[:, nan].isnan().all():
        return False, "a column of NaN scales is not NaN"
    got, want = out[rows][:, ~nan].double(), exact[rows][:, ~nan]
    magnitudes = quantized.dequantize().double().abs()[rows] @ values.dequantize().double().abs().T[:, ~nan]
    magnitudes *= torch.exp2(scales[~nan] - 127)
    inside = (magnitudes < torch.finfo(torch.float32).max / 64) & (want.abs() > 2.0**-120)
    worst = ((got - want).abs() / (2.0**-8 * want.abs() + 2.0**-20 * magnitudes))[inside]
    most = float(worst.max()) if worst.numel() else 0.0
    return most <= 1, f"{int(inside.sum())} in range, the worst at {most:.3f} of the bound"


def triton_case(chance: random.Random, index: int) -> Case:
    """Draw a case of the Triton kernels."""
    route = chance.choice(("a16wfp4", "quant_gemm_mx", "quant_gemm_mx"))
    prepared = chance.random() < 0.6
    n = 16 * chance.randint(1, 18) if prepared else chance.randint(1, 280)
    k = chance.choice((512, 512, 64 * chance.randint(1, 14))) if prepared else 32 * chance.randint(1, 26)
    m = chance.choice((1, 3, 17, 65, 100, 129, 150))
    return Case(
        f"random-{index}", route, m, n, k, ("preshuffled", "shuffled") if prepared else ("row_major", "row_major"),
        a_dtype=chance.choice(("bfloat16", "bfloat16", "float16", "float32")),
        out_dtype=chance.choice(("bfloat16", "float32")), rounding=chance.choice(SCALE_ROUNDINGS),
        bias=chance.random() < 0.3, awkward=chance.random() < 0.3 and m > 2 and k >= 96,
    )  # fmt: skip


def triton_rows(cases: list[Case], installation: Path | None) -> list[dict[str, Any]]:
    """Compile with one triton, and run."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        compile_cases(cases, Path(folder), installation)
        for case in track(cases, "triton"):
            outcome = execute(case, Path(folder), strict=True)
            if not outcome.passed:
                raise SystemExit(f"{case}: {outcome.detail}")
            rows.append({"kernel": case.route, "triton": outcome.triton, **described(case), "config": outcome.config,
                         "result": outcome.detail, "counts": outcome.counts})  # fmt: skip
    return rows


def described(case: Case) -> dict[str, Any]:
    """Return what differs from the simplest case."""
    plain = asdict(Case("", "", 0, 0, 0))
    given = {name: value for name, value in asdict(case).items() if value != plain[name]}
    return {name: value for name, value in given.items() if name not in ("name", "route", "config")}


if __name__ == "__main__":
    main()
