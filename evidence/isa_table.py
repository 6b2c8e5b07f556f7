"""What the gfx950 kernels of the leaderboard's shapes compile to, and what that predicts.

    python evidence/isa_table.py [-o bench/results/isa_gfx950.json] [--layout prepared|leaderboard|row_major]

Needs triton and no GPU. The predicted time is arithmetic on the machine code, not a measurement; see :func:`predict`.
"""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from evidence.cross_compile import describe_job, problem_of
from mxgemm.measure import LEADERBOARD, output
from mxgemm.triton.support import triton_version

LAYOUTS: dict[str, dict[str, Any]] = {
    "prepared": {"weight_layout": "preshuffled", "scale_layout": "shuffled"},
    "leaderboard": {"scale_layout": "shuffled"},
    "row_major": {},
}
DISPATCH_US, COLD_MISS_US, SECOND_LAUNCH_US = 2.5, 1.0, 1.5
CLOCK_GHZ, BYTES_PER_US = 2.4, 5e6
CYCLES_PER_INSTRUCTION = 4


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
            "method": "cross-compiled and counted; predicted_us = evidence/isa_table.py:predict, nothing was run",
            "rows": rows,
        }
        keep(document)
        console.print(f"wrote {arguments.output}", highlight=False)


def row_of(m: int, n: int, k: int, layout: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Compile the kernels that the router chooses (or of ``config``) and predict their time."""
    from mxgemm.routing.router import choose

    problem = problem_of(m, n, k, "gfx950", **LAYOUTS[layout])
    chosen = choose(problem, route="a16wfp4").config.to_mapping() if config is None else config
    job = {
        "route": "a16wfp4",
        "arch": "gfx950",
        "m": m,
        "n": n,
        "k": k,
        "config": chosen,
        "problem": dict(LAYOUTS[layout]),
    }
    kernels = describe_job(job)
    us = predict(kernels, problem.traffic_bytes, k, problem.machine.cu_count)
    for kernel in kernels:
        del kernel["config"], kernel["whole"]
    return {"m": m, "n": n, "k": k, "config": chosen, "predicted_us": round(us, 1), "kernels": kernels}


def predict(kernels: list[dict[str, Any]], traffic_bytes: int, k: int, cu_count: int) -> float:
    """Predict microseconds of a call, within about a third.

    Dispatch and events 2.5 us, one cold miss 1 us, 1.5 us for each further launch; the instructions that a wave issues,
    four cycles each at 2.4 GHz, times the waves that share a SIMD; the bytes that must move, at 5 TB/s.
    """
    us = DISPATCH_US + COLD_MISS_US + SECOND_LAUNCH_US * (len(kernels) - 1) + traffic_bytes / BYTES_PER_US
    for f in kernels:
        c = f["config"]
        main_loop = (
            f["valu"] + f["salu"] + f["lds_reads"] + f["lds_writes"] + sum(f["loads"].values()) + f["scaled_mfma"]
        )
        steps = -(-k // c["block_k"] // c["split_k"]) if f["in_loop"] else 1
        issued = sum(f["whole"].values()) + main_loop * (steps - 1)
        waves_a_simd = max(1, -(-f["grid"][0] // cu_count) * c["num_warps"] / 4)
        us += issued * CYCLES_PER_INSTRUCTION * waves_a_simd / CLOCK_GHZ / 1e3
    return us


if __name__ == "__main__":
    main()
