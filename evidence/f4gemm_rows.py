"""Run AITER's f4gemm kernels at few columns and few rows in the emulator, those too that their contract refuses there.

    MXGEMM_AITER_CO=.../hsa/gfx950/f4gemm python evidence/f4gemm_rows.py -o bench/results/f4gemm_rows_gfx950.json

N of 32, 64, 96 and 128, every kernel; every M up to 64 of the smallest tile and of those with a clause about columns,
the edges of tiles of the others: each result is judged row by row against float64. What ``F4GemmKernel.broken`` says
is compared with what happens. About two minutes of one core.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
if __name__ == "__main__":  # a test imports this file, and others of its process may want a GPU
    os.environ.setdefault("TRITON_INTERPRET", "1")  # which must be chosen before import

from evidence import f4gemm_cases as f4gemm  # noqa: E402
from gfx950emu.errors import EmulatorError  # noqa: E402
from mxgemm import files  # noqa: E402
from mxgemm.aiter.f4gemm import KERNELS, F4GemmKernel  # noqa: E402

KIND: Final = "mxgemm-f4gemm-rows"
COLUMNS: Final = (32, 64, 96, 128)
ROWS: Final = tuple(range(1, 65))
EDGES: Final = (1, 2, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64)
"""Of the other kernels."""
_SMALLEST: Final = F4GemmKernel(32, 128)
DEPTH: Final = 512


def outcome(kernel: F4GemmKernel, m: int, n: int, k: int, *, strict: bool = False) -> tuple[str, list[int]]:
    """Multiply one size: "right", "wrong" with the rows that are, or what the emulator raised."""
    problem = _operands(kernel.preshuffled, m, n, k)
    try:
        after, _ = f4gemm.execute(kernel, problem, strict=strict)
    except EmulatorError as error:
        return type(error).__name__, []
    wrong = problem.wrong_rows(after)
    return ("wrong" if wrong else "right"), wrong


@cache
def _operands(preshuffled: bool, m: int, n: int, k: int) -> f4gemm.Operands:
    """Make operands for every kernel that reads the weight in this order."""
    return f4gemm.operands(next(kern for kern in KERNELS.values() if kern.preshuffled == preshuffled), m, n, k)


def sweep(kernel: F4GemmKernel, n: int, k: int) -> dict[str, Any]:
    """Run every M; return counts, the M that are not right, how many rows are wrong, and whether the contract knew."""
    rows = ROWS if (kernel.whole_columns and kernel.preshuffled) or kernel == _SMALLEST else EDGES
    found = {m: outcome(kernel, m, n, k) for m in rows}
    legal = [m for m in rows if kernel.broken(m, n, k) is None]
    return {
        **{"kernel": kernel.name, "n": n, "k": k, "rows": len(rows), "legal": len(legal)},
        "counts": dict(Counter(what for what, _ in found.values())),
        "legal_and_not_right": [m for m in legal if found[m][0] != "right"],
        "refused_and_right": [m for m in rows if m not in legal and found[m][0] == "right"],
        "wrong_rows": {str(m): len(wrong) for m, (_, wrong) in found.items() if wrong},
    }


def main() -> None:
    """Run all of it and write the document."""
    parser = argparse.ArgumentParser(description="AITER's f4gemm kernels at few columns, in the emulator.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    files.check_writable(output, files.json_mark(KIND))
    kernels = f4gemm.available()
    if not kernels:
        raise SystemExit("no code objects: MXGEMM_AITER_CO must name the folder that has them")
    results = []
    for kernel in kernels:
        found = [sweep(kernel, n, DEPTH) for n in COLUMNS]
        results += found
        print(kernel.name, [entry["counts"] for entry in found], flush=True)
    totals: Counter[str] = Counter()
    for entry in results:
        totals.update(entry["counts"])
    document = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "code_objects": "AITER e4048607, hsa/gfx950/f4gemm",
        "totals": dict(totals),
        "legal": sum(entry["legal"] for entry in results),
        "legal_and_not_right": sum(len(entry["legal_and_not_right"]) for entry in results),
        "results": results,
    }
    files.save_json(output, document, KIND)


if __name__ == "__main__":
    main()
