"""Make routing_tables/sm_90.json from what bench/hopper.py measured.

python routing_tables/make_sm_90_table.py bench/results/hopper_h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mxgemm import files
from mxgemm.routing import tables

ROUTES = {
    "fold fast": ("fp8_fold", "e2m1"),
    "dequant e2m1": ("dequant_mm", "e2m1"),
    "a16wfp4": ("a16wfp4", "e2m1"),
    "dequant bf16": ("dequant_mm", "bf16"),
    "w4a16": ("w4a16", "bf16"),
}

HEAD: dict[str, Any] = {
    "kind": tables.KIND,
    "version": 1,
    "arch": "sm_90",
    "sources": {
        "hopper": {
            "title": "bench/hopper.py on an H200: bench/results/hopper_h200.json",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "device time of the whole call; fp8_fold with a weight prepared as fast, the others unprepared",
        },
        "eager": {
            "title": "bench/results/bench_h200.json (eager): one launch beats three where a call is mostly launching",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "eager calls on an idle device",
        },
    },
    "rules": [
        {"a_format": "e2m1", "m_max": 32, "k_max": 1024, "route": "a16wfp4", "source": "eager"},
        {"a_format": "e2m1", "derived": "fp8_fold", "route": "fp8_fold", "source": "hopper"},
        {"a_format": "e2m1", "derived": "fp8_fold_compact", "route": "fp8_fold", "source": "hopper"},
        {"derived": "bf16", "route": "dequant_mm", "source": "hopper"},
        {"a_format": "bf16", "m_max": 64, "nk_min": 64000000, "route": "w4a16", "source": "hopper"},
        {"route": "dequant_mm", "source": "hopper"},
    ],
}


def main() -> None:
    """Read the measurements named on the command line and write the table."""
    measured = files.read_json(sys.argv[1])
    rows = []
    for found in measured["rows"]:
        for variant, (route, a_format) in ROUTES.items():
            if variant in found and found[variant]["passed"]:
                size = {name: found[name] for name in ("m", "n", "k")}
                rows.append(
                    size
                    | {"a_format": a_format, "cu_count": 132, "route": route, "config": {}}
                    | {"us": found[variant]["us"], "grade": "measured", "source": "hopper"}
                )
    rows.sort(key=lambda row: (row["n"], row["k"], row["m"], row["a_format"], row["us"]))
    lines = ",\n".join(json.dumps(row) for row in rows)
    path = Path("routing_tables/sm_90.json")
    text = f'{json.dumps(HEAD, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
    files.save(path, text, files.json_mark(tables.KIND))
    print(f"{path}: {len(rows)} rows", file=sys.stderr)


if __name__ == "__main__":
    main()
