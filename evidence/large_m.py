"""Without AITER, from which M on does quantising A once beat quantising it for every tile of columns, as predicted?

    python evidence/large_m.py [-o bench/results/large_m_gfx950.json]

Needs triton, clang's objdump and no GPU. Each kernel is executed strictly in the emulator on a few tiles of the real K;
``evidence/predict.py`` does the sums for the whole size. A kernel's loop is counted too: cycles in which a wave issues
anything against those in which it keeps the matrix unit busy, a step of K.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from evidence.cross_compile import problem_of
from evidence.gfx950_cases import Case, compile_cases
from evidence.mx_cases import MXRun
from evidence.predict import Figures, table
from evidence.predicted import Prediction, executed, for_size, mx_chain, mx_figures
from evidence.tritons import other_triton
from mxgemm.hip import mx
from mxgemm.hip.mx import MXConfig
from mxgemm.measure import Shape, output
from mxgemm.triton.support import triton_version

KIND: Final = "mxgemm-large-m"
WEIGHTS: Final = ((7168, 2048), (3072, 1536), (8192, 8192))
ROWS: Final = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
PEAK_TFLOPS: Final = 10_066
"""MXFP4 of an MI355X, its data sheet."""
KERNELS: Final = {
    "a16wfp4": ("a16wfp4", {"block_m": 32, "block_n": 128, "block_k": 256, "waves_per_eu": 3}),
    "quant_gemm_mx": ("quant_gemm_mx", {"block_m": 128, "block_n": 128, "block_k": 256}),
    "quant_gemm_mx, eight waves": (
        "quant_gemm_mx", {"block_m": 256, "block_n": 256, "block_k": 256, "num_warps": 8},
    ),
}  # fmt: skip


def main() -> None:
    """Predict, print, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    console = Console(width=140)
    rows = [row for installation in (None, other_triton()) for row in rows_of(installation, console)]
    if arguments.output:
        keep(
            {
                "kind": KIND,
                "arch": "gfx950",
                "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "grade": "predicted",
                "method": "executed on a few tiles in gfx950emu, strict; evidence/predict.py; nothing ran on a GPU",
                "assumptions": table(),
                "rows": rows,
            }
        )


def rows_of(triton: Path | None, console: Console) -> list[dict[str, Any]]:
    """Return the rows of one triton."""
    cases = {
        (name, k): Case(f"{name[-5:]}-{k}", route, config["block_m"], 2 * config["block_n"], k, config=config)
        for name, (route, config) in KERNELS.items()
        for _, k in WEIGHTS
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    quantise: dict[int, Figures] = {}
    version = "3.6" if triton else ".".join(map(str, triton_version() or ()))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        compile_cases(cases.values(), folder, triton)
        for (name, k), case in cases.items():
            n = next(n for n, of_k in WEIGHTS if of_k == k)
            figures, tile = executed(case, folder)
            if not triton:
                quantise[k] = figures[0]
            for m in ROWS:
                found = for_size(replace(case, m=m, n=n), figures, tile)
                rows.append(row_of(name, version, (m, n, k), found, console))
            rows[-1]["executed"] = [asdict(f) for f in found.figures]
    return [*rows, *hip_rows(quantise, console)]


def hip_rows(quantise: dict[int, Figures], console: Console) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``hip_mx``, in the blocks that the route would take; ``quantise`` by K, of its first launch."""
    for n, k in (weight for weight in WEIGHTS if weight[1] in quantise):
        multiply: dict[MXConfig, Figures] = {}
        for m in ROWS:
            problem = problem_of(m, n, k, "gfx950", weight_layout="preshuffled", scale_layout="shuffled")
            config = mx.candidates(problem)[0]
            if config not in multiply:
                multiply[config] = mx_figures(MXRun(Case("mx", "hip_mx", config.block_m, config.block_n, k), config))
            found = mx_chain(quantise[k], multiply[config], problem, config)
            name = f"hip_mx {config.block_m}x{config.block_n}"
            yield row_of(name, "", (m, n, k), found, console)


def row_of(name: str, triton: str, size: Shape, found: Prediction, console: Console) -> dict[str, Any]:
    """Return and print a row."""
    m, n, k = size
    tflops = round(2 * m * n * k / found.us / 1e6)
    console.print(f"{name:28} {triton:5} {m:5},{n},{k} {found.us:8.1f} us  {tflops:5} TFLOPS")
    head: dict[str, Any] = {"kernel": name, "triton": triton, "m": m, "n": n, "k": k, "predicted_us": found.us}
    return {**head, "tflops": tflops, "of_peak": round(tflops / PEAK_TFLOPS, 3), "parts": found.parts}


if __name__ == "__main__":
    main()
