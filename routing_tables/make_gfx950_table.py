r"""Make routing_tables/gfx950.json from AITER's tuned tables (CSV) and the published leaderboard submission v93.

    python routing_tables/make_gfx950_table.py --commit e4048607 --isa bench/results/isa_gfx950.json \
        a4w4_blockscale_tuned_gemm.csv [more.csv ...]

AITER's files are in its repository under aiter/configs (MIT license). Rows that break the contract of AITER's own
kernels (``mxgemm.aiter.f4gemm``) are dropped; the table's source says how many, and why.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mxgemm import files
from mxgemm.aiter import f4gemm
from mxgemm.measure import output
from mxgemm.routes.ck_gemm import CK_PREFIX
from mxgemm.routing import tables

LARGE_M = 256  # from which quant_gemm_mx is predicted to beat a16wfp4 (bench/results/large_m_gfx950.json)
SMALL_M = 32  # the seed's bound between the fused_asm and the ck_gemm route

V93 = (  # M, N, K, route, benchmark microseconds
    (4, 2880, 512, "a16wfp4", 9.7),
    (16, 2112, 7168, "fused_asm", 20.9),
    (32, 4096, 512, "a16wfp4", 10.6),
    (32, 2880, 512, "a16wfp4", 11.3),
    (64, 7168, 2048, "ck_gemm", 17.5),
    (256, 3072, 1536, "ck_gemm", 16.2),
)

Row = dict[str, Any]


def main() -> None:
    """Read the CSV files named on the command line and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="+", type=Path, help="AITER's tuned tables")
    parser.add_argument("--commit", required=True, help="AITER commit that the files come from")
    parser.add_argument("--isa", type=Path, help="what evidence/isa_table.py wrote: predicted rows of our own kernels")
    output.add_options(parser, Path("routing_tables/gfx950.json"))
    arguments = parser.parse_args()
    keep = output.text_file(arguments.output, files.json_mark(tables.KIND), force=arguments.force)
    dropped: collections.Counter[str] = collections.Counter()
    rows = [*_v93_rows(), *(row for path in arguments.csv for row in _aiter_rows(path, dropped))]
    rows += _predicted_rows(arguments.isa) if arguments.isa else []
    rows.sort(key=lambda row: (row["n"], row["k"], row["m"], row["grade"], row["route"]))
    keep(_to_text(rows, arguments.commit, dropped))
    print(f"{arguments.output}: {len(rows)} rows", file=sys.stderr)
    for reason, count in dropped.most_common():
        print(f"dropped {count} rows: {reason}", file=sys.stderr)


def _aiter_rows(path: Path, dropped: collections.Counter[str]) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as handle:
        for line in csv.DictReader(handle):
            m, n, k = int(line["M"]), int(line["N"]), int(line["K"])
            name = line["kernelName"]
            kernel = f4gemm.of_symbol(name)
            reason = _dropped_because(m, n, k, int(line["splitK"]), name)
            if reason:
                dropped[reason] += 1
                continue
            yield {
                "m": m,
                "n": n,
                "k": k,
                "cu_count": int(line["cu_num"]),
                "route": "fused_asm" if kernel and m <= SMALL_M else "ck_gemm",
                "config": {"kernel": kernel.name if kernel else name},
                "us": float(line["us"]),
                "grade": "measured",
                "source": "aiter",
            }


def _dropped_because(m: int, n: int, k: int, log2_splits: int, name: str) -> str | None:
    if log2_splits:
        return "split-K: bf16 partial sums are added atomically, not reproducible and outside the error gates"
    kernel = f4gemm.of_symbol(name)
    if kernel is None and not name.startswith(CK_PREFIX):
        return f"{name} is not among the kernels that are known"
    broken = kernel.broken(m, n, k) if kernel else f4gemm.broken_by_any(n, k)
    return f"{broken.field.upper()} is not {broken.needed}" if broken else None


def _v93_rows() -> Iterator[Row]:
    for m, n, k, route, us in V93:
        yield {
            "m": m,
            "n": n,
            "k": k,
            "cu_count": 256,
            "route": route,
            "config": {},
            "us": us,
            # v93's a16wfp4 ran AITER's kernel: for ours its time is a prediction.
            "grade": "predicted" if route == "a16wfp4" else "measured",
            "source": "v93",
        }


def _predicted_rows(path: Path) -> Iterator[Row]:
    for found in files.read_json(path)["rows"]:
        yield {
            "m": found["m"],
            "n": found["n"],
            "k": found["k"],
            "cu_count": 256,
            "route": "a16wfp4",
            "config": found["config"],
            "us": found["predicted_us"],
            "grade": "predicted",
            "source": "isa",
        }


def _to_text(rows: Iterable[Row], commit: str, dropped: collections.Counter[str]) -> str:
    head = {
        "kind": tables.KIND,
        "version": 1,
        "arch": "gfx950",
        "sources": {
            "aiter": {
                "title": f"AITER's tuned a4w4 tables, commit {commit}",
                "url": "https://github.com/ROCm/aiter",
                "license": "MIT",
                "machine": "MI355X, 256 CUs",
                "scope": "kernel",
                "covers": "both operands quantised and shuffled already",
                "dropped": "; ".join(f"{count} rows: {reason}" for reason, count in dropped.most_common()),
            },
            "v93": {
                "title": "GPU MODE amd-mxfp4-mm submission v93 (733989), its routing rule and benchmark times",
                "url": "https://www.gpumode.com",
                "machine": "MI355X, 256 CUs",
                "scope": "call",
                "covers": "the whole call on the leaderboard's harness, built from AITER's kernels, not ours",
            },
            "torch": {
                "title": "torch's own MXFP4 product, hipBLASLt's, for weights as a checkpoint holds them",
                "machine": "none: nothing was run",
                "scope": "call",
                "covers": "nothing: no time is named",
            },
            "isa": {
                "title": "machine code of our kernels, cross-compiled: bench/results/isa_gfx950.json",
                "machine": "none: nothing was run",
                "scope": "call",
                "covers": "the whole call as predicted by evidence/predict.py, strictly",
            },
            "hip": {
                "title": "the fused HIP kernel, predicted: bench/results/isa_hip_gfx950.json",
                "machine": "none: nothing was run",
                "scope": "call",
                "covers": "nothing: no time is named",
            },
        },
        "rules": [
            {"m_max": 32, "k_max": 1024, "a_format": "e2m1", "route": "a16wfp4", "source": "v93"},
            {"m_max": 32, "a_format": "e2m1", "route": "fused_asm", "source": "v93"},
            {"a_format": "e2m1", "route": "ck_gemm", "source": "v93"},
            # Without AITER: above the bound two launches beat quantising A for every tile of columns.
            {"m_max": LARGE_M - 1, "a_format": "e2m1", "route": "a16wfp4", "source": "isa"},
            {"a_format": "e2m1", "route": "scaled_mm", "source": "torch"},  # of row-major weights, where torch has it
            {"a_format": "e2m1", "route": "quant_gemm_mx", "source": "isa"},
            # Without a Triton of use: everything above wants one, and the reference route decodes at each call.
            {"a_format": "e2m1", "route": "hip_fused", "source": "hip"},
        ],
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
