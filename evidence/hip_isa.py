"""What the fused HIP kernel of the leaderboard's shapes compiles to, and what that predicts.

    python evidence/hip_isa.py [-o bench/results/isa_hip_gfx950.json] [--markdown]

Needs clang-22 and LLVM's objdump, no GPU. The predicted time is arithmetic on what the code executes in the emulator
(``evidence/predict.py``), not a measurement. Counts are of the path that all finite data below 2^121 take.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from evidence import hip_compile, isa
from evidence.cross_compile import problem_of
from evidence.gfx950_cases import Case
from evidence.hip_cases import FusedRun
from evidence.predict import table
from evidence.predicted import of_hip
from evidence.tritons import ROOT
from mxgemm import files
from mxgemm.hip import fused
from mxgemm.hip.fused_choice import candidates
from mxgemm.hip.prepared import TILE, TILE_K
from mxgemm.measure import LEADERBOARD, Shape, output
from mxgemm.problem import Problem

RESULTS = ROOT / "bench" / "results" / "isa_hip_gfx950.json"
DOCUMENT = ROOT / "docs" / "hip-fused.md"
COMPARED = ROOT / "bench" / "results" / "isa_gfx950.json"
BEFORE = ROOT / "bench" / "results" / "isa_hip_gfx950_before.json"
"""The same prediction of the kernel as it was at ba4efa3: a lane loaded 64 bytes of its own, only waves shared K."""


def main() -> None:
    """Compile, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--markdown", action="store_true", help="print the rows of the table in docs/hip-fused.md")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, "mxgemm-isa-hip")
    console = Console(width=140)
    rows = [predicted_row_of(shape) for shape in track(LEADERBOARD, "executing", console=console, transient=True)]
    console.print(table_of(rows))
    if arguments.markdown:
        print("\n".join(map(markdown_of, rows)))
    if arguments.output:
        document = {
            "kind": "mxgemm-isa-hip",
            "arch": "gfx950",
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "compiler": hip_compile.COMPILER,
            "grade": "predicted",
            "method": "compiled and counted; predicted_us: executed in gfx950emu, evidence/predict.py",
            "assumptions": table(),
            "rows": rows,
        }
        keep(document)
        console.print(f"wrote {arguments.output}", highlight=False)


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Return the rows as a table, beside what was predicted of a16wfp4."""
    others, before = _predicted(COMPARED), _predicted(BEFORE)
    title = "gfx950, hip_fused; counts are of one wave, all of it. us: predicted; before: of the kernel at ba4efa3"
    found = Table(title=title, title_justify="left", box=None)
    for name in (
        "M,N,K",
        "tile",
        "VGPR",
        "LDS",
        "waves",
        "MFMA",
        "VALU",
        "VALU/A",
        "SALU",
        "loads",
        "us",
        "before",
        "a16w",
    ):
        found.add_column(name, justify="left" if name in ("M,N,K", "tile") else "right", no_wrap=True)
    for row in rows:
        c, f = row["config"], row["figures"]
        found.add_row(
            f"{row['m']},{row['n']},{row['k']}",
            f"{c['block_m']}x{c['block_n']}x{c['block_k']} w{c['waves']} u{c['unroll']} / {c['split_k']}",
            *(str(f[name]) for name in ("vgprs", "lds", "waves_per_simd")),
            *(str(row[name]) for name in ("mfma", "valu", "valu_per_quantised_tile", "salu")),
            " ".join(f"{count}x{width}B" for width, count in f["loads"].items()),
            f"{row['predicted_us']:.1f}",
            f"{before[row['m'], row['n'], row['k']]:.1f}",
            f"{others[row['m'], row['n'], row['k']]:.1f}",
        )
    return found


def markdown_of(row: dict[str, Any]) -> str:
    """Return a row as docs/hip-fused.md has it."""
    c, f = row["config"], row["figures"]
    loads = {int(width): count for width, count in f["loads"].items()}
    shape = row["m"], row["n"], row["k"]
    cells = (
        ", ".join(map(str, shape)), f"{c['block_m']} x {c['block_n']} x {c['block_k']}", c["waves"], c["split_k"],
        row["workgroups"], f["vgprs"], f["lds"] // 1024, row["mfma"], row["valu"], f"{loads[16]} + {loads[4]}",
        _predicted(BEFORE)[shape], row["predicted_us"], _predicted(COMPARED)[shape],
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _predicted(path: Path) -> dict[Shape, float]:
    rows = files.read_json(path)["rows"]
    return {(row["m"], row["n"], row["k"]): row["predicted_us"] for row in rows}


def row_of(shape: Shape, config: fused.FusedConfig | None = None) -> dict[str, Any]:
    """Compile the kernel of a shape, with the route's own configuration or ``config``, and count."""
    m, n, k = shape
    problem = problem_of(m, n, k, "gfx950", weight_layout="preshuffled", scale_layout="shuffled")
    c = config or candidates(problem)[0]
    figures = figures_of(problem, c)
    turns = max(1, (fused.rounds(k, c) - 1) // 2)  # of the loop, which takes two rounds at a time
    kernel = dataclasses.asdict(figures)
    executed = executed_of(figures, turns)
    tiles = c.block_m // TILE * (k // TILE_K // c.split_k // c.waves)
    whole = figures.whole
    del kernel["whole"]
    return {
        "m": m,
        "n": n,
        "k": k,
        "config": c.to_mapping(),
        "workgroups": fused.blocks(problem, c) * c.split_k,
        **executed,
        "valu_per_quantised_tile": round(executed["valu"] / tiles, 1),
        "quantise_and_convert": {
            name: whole.get(name, 0) for name in ("v_pk_maximum3_f16", "v_cvt_scalef32_pk_fp4_bf16")
        },
        "figures": kernel,
    }


def predicted_row_of(shape: Shape) -> dict[str, Any]:
    """Count, and execute the whole shape strictly in the emulator for the prediction."""
    row = row_of(shape)
    run = FusedRun(Case("fused", "hip_fused", *shape), fused.FusedConfig(**row["config"]))
    return row | of_hip(run).to_json()


def figures_of(problem: Problem, c: fused.FusedConfig) -> isa.Figures:
    """Compile and analyse."""
    text = hip_compile.assembly(fused.SOURCE, fused.defines(problem, c))
    lds = re.search(r"\.group_segment_fixed_size:\s*(\d+)", text)
    assert lds
    return isa.analyse(isa.without_cold_blocks(text), waves=c.waves, lds=int(lds[1]))


def executed_of(f: isa.Figures, turns: int) -> dict[str, int]:
    """Return what a wave issues, by class: the whole kernel, its loop ``turns`` times."""
    again = turns - 1 if f.in_loop else 0
    whole = {
        "mfma": sum(n for op, n in f.whole.items() if op.startswith("v_mfma")),
        "valu": sum(n for op, n in f.whole.items() if op.startswith("v_") and not op.startswith("v_mfma")),
        "salu": sum(n for op, n in f.whole.items() if op.startswith("s_") and not op.startswith(("s_wait", "s_nop"))),
    }
    loop = {"mfma": f.scaled_mfma, "valu": f.valu, "salu": f.salu}
    return {name: count + again * loop[name] for name, count in whole.items()}


if __name__ == "__main__":
    main()
