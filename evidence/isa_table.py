"""What the gfx950 kernels of the leaderboard's shapes compile to, and what that predicts.

    python evidence/isa_table.py [-o bench/results/isa_gfx950.json] [--layout prepared|leaderboard|row_major]

Needs triton, LLVM's objdump and no GPU. The predicted time is arithmetic on what the machine code executes in the
emulator, not a measurement: ``evidence/predict.py``.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from evidence.cross_compile import describe_job, problem_of
from evidence.gfx950_cases import Case
from evidence.gfx950_compile import compile_job
from evidence.predict import table as table_of_assumptions
from evidence.predicted import of_triton
from mxgemm.measure import LEADERBOARD, output
from mxgemm.triton.support import triton_version

LAYOUTS: dict[str, dict[str, Any]] = {
    "prepared": {"weight_layout": "preshuffled", "scale_layout": "shuffled"},
    "leaderboard": {"scale_layout": "shuffled"},
    "row_major": {},
}


def main() -> None:
    """Compile, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--layout", choices=LAYOUTS, default="prepared")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, "mxgemm-isa")
    console = Console(width=130)
    rows = [
        row_of(*shape, arguments.layout) for shape in track(LEADERBOARD, "compiling", console=console, transient=True)
    ]
    version = triton_version()
    title = f"gfx950, triton {version}, {arguments.layout} weights; counts are of the main loop of one wave"
    table = Table(title=title, title_justify="left", box=None)
    names = (
        "M,N,K",
        "tile, splits",
        "VGPR",
        "LDS",
        "waves",
        "MFMA",
        "convert",
        "loads",
        "LDS r/w",
        "VALU",
        "VALU/MFMA",
        "us",
    )
    for name in names:
        table.add_column(name, justify="left" if name in names[:2] else "right", no_wrap=True)
    for row in rows:
        c, f = row["config"], row["kernels"][0]
        table.add_row(
            f"{row['m']},{row['n']},{row['k']}",
            f"{c['block_m']}x{c['block_n']}x{c['block_k']}/{c['split_k']} w{c['num_warps']}",
            *(str(f[name]) for name in ("vgprs", "lds", "waves_per_simd", "scaled_mfma", "fp4_converts")),
            " ".join(f"{count}x{width}B" for width, count in f["loads"].items()),
            f"{f['lds_reads']}/{f['lds_writes']}",
            *(str(f["valu"]), str(f["valu_per_mfma"]), f"{row['predicted_us']:.1f}"),
        )
    console.print(table)
    if arguments.output:
        document = {
            "kind": "mxgemm-isa",
            "arch": "gfx950",
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "triton": ".".join(map(str, version or ())),
            "layout": arguments.layout,
            "method": "cross-compiled and counted; predicted_us: executed in gfx950emu, evidence/predict.py",
            "assumptions": table_of_assumptions(),
            "rows": rows,
        }
        keep(document)
        console.print(f"wrote {arguments.output}", highlight=False)


def row_of(m: int, n: int, k: int, layout: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Compile the kernels that the router chooses (or of ``config``), execute them strictly, and predict their time."""
    from mxgemm.routing.router import choose

    chosen = config
    if chosen is None:
        problem = problem_of(m, n, k, "gfx950", **LAYOUTS[layout])
        chosen = dict(choose(problem, route="a16wfp4").config.to_mapping())
    job = {"route": "a16wfp4", "arch": "gfx950", "m": m, "n": n, "k": k, "config": chosen}
    kernels = describe_job({**job, "problem": dict(LAYOUTS[layout])})
    for kernel in kernels:
        del kernel["config"], kernel["whole"]
    layouts = tuple(LAYOUTS[layout].get(name, "row_major") for name in ("weight_layout", "scale_layout"))
    case = Case("row", "a16wfp4", m, n, k, (layouts[0], layouts[1]), config=chosen)
    with tempfile.TemporaryDirectory() as folder:
        compile_job(case.job(), Path(folder))
        found = of_triton(case, Path(folder))
    return {"m": m, "n": n, "k": k, "config": chosen, **found.to_json(), "kernels": kernels}


if __name__ == "__main__":
    main()
