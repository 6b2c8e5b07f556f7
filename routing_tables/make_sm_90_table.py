"""Make routing_tables/sm_90.json from what bench/hopper.py, bench/mma_table.py and bench/w4_wgmma.py measured.

python routing_tables/make_sm_90_table.py bench/results/hopper_h200.json [--mma bench/results/mma_table*_h200.json]
    [--wgmma bench/results/w4_wgmma_h200.json]

Up to 32 rows of A there are rows of w4_mma, with the fastest configuration where bench/mma_table.py has measured some,
raw and prepared weights apart, and of fp8_fold on prepared ones: the faster of them is taken. What else was measured
there is left out, and rows of larger M, which would speak for a weight that has none nearer, come with some of these.

From 33 rows on w4_wgmma has rows where it was measured faster than fp8_fold. Other formats of A run the same kernel
behind another rounding, which was not timed: for them and for compact weights there are rules. Rows of weights as they
lie, up to :data:`MAX_RAW`, are predicted and name no time: there only the results were checked. They stand where there
were rows of routes that decode such a weight at each call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mxgemm import files, measure
from mxgemm.cuda.operands import FORMS
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_wgmma import WgmmaConfig
from mxgemm.measure import output
from mxgemm.measure.identity import Identity, identity
from mxgemm.routing import tables

MMA = "w4_mma"
MAX_MMA = 32
"""Rows of A that it takes."""
WGMMA = "w4_wgmma"
MAX_RAW = 128
"""Rows of A up to which w4_wgmma is predicted for weights that are decoded at each call."""
MAX_WGMMA = 256
"""Those that were measured."""
WGMMA_KIND = "mxgemm-w4-wgmma"
FOLD = "fp8_fold"
TUNED_KIND = "mxgemm-w4-mma-table"
DERIVED = {"raw": (None,), "prepared": FORMS}
"""Kinds of prepared weight that a form of bench/mma_table.py speaks for: each that brings the fragment order."""
ROWS_OF = (
    Identity("route", MMA, "e2m1", "fast"),
    Identity("route", MMA, "e4m3", "fast"),
    Identity("route", MMA, "bf16", "fast"),
    Identity("route", "fp8_fold", "e2m1", "fast"),
    Identity("route", "dequant_mm", "e2m1", "raw"),
    Identity("route", "a16wfp4", "e2m1", "raw"),
    Identity("route", "dequant_mm", "bf16", "raw"),
    Identity("route", "w4a16", "bf16", "raw"),
)
"""Whose times are rows. Compact weights have rules alone."""

HEAD: dict[str, Any] = {
    "kind": tables.KIND,
    "version": 1,
    "arch": "sm_90",
    "sources": {
        "hopper": {
            "title": "bench/hopper.py on an H200: bench/results/hopper_h200.json",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "device time of whole calls; weights of fp8_fold and w4_mma prepared as fast, others unprepared",
        },
        "eager": {
            "title": "bench/results/bench_h200.json (eager): one launch beats three where a call is mostly launching",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "eager calls on an idle device",
        },
        "mma": {
            "title": "bench/mma_table.py on an H200: bench/results/mma_table_h200.json, and earlier runs beside it",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "device time of whole calls of w4_mma, raw and prepared weights apart",
        },
        "wgmma": {
            "title": "bench/w4_wgmma.py on an H200: bench/results/w4_wgmma_h200.json",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "device time of whole calls with prepared weights, a_format e2m1; other formats share the kernel",
        },
        "wgmma_raw": {
            "title": "as w4_wgmma with prepared weights, decoding taken for up to half as long again: not measured",
            "machine": "NVIDIA H200, 132 SMs",
            "scope": "call",
            "covers": "weights that are decoded at each call otherwise, in twice the time of torch.mm and more",
        },
    },
    "rules": [
        {"m_max": MAX_MMA, "route": MMA, "source": "hopper"},
        {"a_format": "e2m1", "m_max": 32, "k_max": 1024, "route": "a16wfp4", "source": "eager"},
        {"a_format": "e2m1", "derived": "fp8_fold", "nk_min": 300000000, "route": "fp8_fold", "source": "wgmma"},
        {"a_format": "e2m1", "derived": "fp8_fold", "m_max": 64, "route": WGMMA, "source": "wgmma"},
        {"a_format": "e2m1", "derived": "fp8_fold", "route": "fp8_fold", "source": "hopper"},
        {"derived": "bf16", "m_max": 64, "route": WGMMA, "source": "wgmma"},
        {"derived": "bf16", "route": "dequant_mm", "source": "hopper"},
        {"derived": "fp8_fold", "m_max": MAX_WGMMA, "route": WGMMA, "source": "wgmma"},
        {"derived": "fragments", "m_max": MAX_WGMMA, "route": WGMMA, "source": "wgmma"},  # the same bytes, no others
        {"m_max": MAX_RAW, "route": WGMMA, "source": "wgmma_raw"},
        {"a_format": "e2m1", "derived": "fp8_fold_compact", "route": "fp8_fold", "source": "hopper"},
        {"a_format": "bf16", "m_max": 64, "nk_min": 64000000, "route": "w4a16", "source": "hopper"},
        {"route": "dequant_mm", "source": "hopper"},
    ],
}


def main() -> None:
    """Read the measurements named on the command line and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what bench/hopper.py wrote")
    parser.add_argument(
        "--mma",
        type=Path,
        nargs="+",
        help="what bench/mma_table.py wrote, whole and deeper parts: replace w4_mma's times",
    )
    parser.add_argument("--wgmma", type=Path, help="what bench/w4_wgmma.py timed: rows of w4_wgmma")
    output.add_options(parser, Path("routing_tables/sm_90.json"))
    arguments = parser.parse_args()
    keep = output.text_file(arguments.output, files.json_mark(tables.KIND), force=arguments.force)
    rows = rows_of(measure.load(arguments.results))
    if arguments.mma:
        tuned = tuned_rows([(str(path), files.read_json(path)) for path in arguments.mma])
        rows = in_order([*(row for row in rows if row["route"] != MMA), *tuned])
    if arguments.wgmma:
        rows = with_wgmma(rows, str(arguments.wgmma), files.read_json(arguments.wgmma))
    tables.parse({**HEAD, "rows": rows}, str(arguments.output))
    lines = ",\n".join(json.dumps(row) for row in rows)
    keep(f'{json.dumps(HEAD, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n')
    print(f"{arguments.output}: {len(rows)} rows", file=sys.stderr)


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each time of :data:`ROWS_OF`, in order of weight, M, format and time.

    Raises:
        ValueError: the document is of another architecture, or holds none of these times.
    """
    environment = document["environment"]
    if environment["arch"] != HEAD["arch"]:
        raise ValueError(f"arch: got {environment['arch']}, want a run on {HEAD['arch']}")
    rows = [
        {
            **{name: record[name] for name in ("m", "n", "k", "a_format")},
            "cu_count": environment["compute_units"],
            "route": record["name"],
            "config": {},
            "us": round(record["device"]["us"], 2),
            "grade": "measured",
            "source": "hopper",
            "derived": FOLD if record["form"] == "fast" else "",
        }
        for record in document["results"]
        if record["device"] and identity(record) in ROWS_OF and (record["name"] in (MMA, FOLD) or record["m"] > MAX_MMA)
    ]
    if not rows:
        raise ValueError("results: none of them is of a route and form that the table has rows of")
    return in_order(rows)


def tuned_rows(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each problem and form that bench/mma_table.py measured, with the fastest configuration.

    Args:
        documents: each with the name of its file; of one machine.

    Raises:
        ValueError: another document, or one of another architecture.
    """
    for where, document in documents:
        if document.get("kind") != TUNED_KIND or document["environment"]["arch"] != HEAD["arch"]:
            raise ValueError(f"{where}: want what bench/mma_table.py wrote on {HEAD['arch']}")
    units = documents[0][1]["environment"]["compute_units"]
    best: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for one in (row for _, document in documents for row in document["rows"]):
        key = tuple(one[name] for name in ("m", "n", "k", "a_format", "form"))
        if one.get("again") and (key not in best or one["us"] < best[key]["us"]):
            best[key] = one
    plain = MmaConfig().to_mapping()
    return [
        {
            **{name: one[name] for name in ("m", "n", "k", "a_format")},
            "cu_count": units,
            "route": MMA,
            "config": {name: value for name, value in one["config"].items() if value != plain[name] or name == "tiles"},
            "us": round(one["us"], 2),
            "grade": "measured",
            "source": "mma",
            **({} if derived is None else {"derived": derived}),
        }
        for one in best.values()
        for derived in DERIVED[one["form"]]
    ]


def with_wgmma(rows: Sequence[Mapping[str, Any]], where: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows with those of w4_wgmma, and without what is slower by much in the same place.

    Args:
        rows: of the other routes.
        where: name of the document's file.
        document: what bench/w4_wgmma.py timed, prepared weights and e2m1.

    Raises:
        ValueError: another document, or one of another architecture.
    """
    if document.get("kind") != WGMMA_KIND or document["environment"]["arch"] != HEAD["arch"]:
        raise ValueError(f"{where}: want what bench/w4_wgmma.py timed on {HEAD['arch']}")
    units = document["environment"]["compute_units"]
    best: dict[tuple[int, int, int], Mapping[str, Any]] = {}
    for one in document["rows"]:
        key = one["m"], one["n"], one["k"]
        if one["again"] and (one["form"], one["a_format"]) == ("prepared", "e2m1"):
            best[key] = min(best.get(key, one), one, key=lambda row: row["us"])
    folded = {(row["m"], row["n"], row["k"]): row["us"] for row in rows if row["route"] == FOLD}
    plain, made = WgmmaConfig().to_mapping(), list[dict[str, Any]]()
    for (m, n, k), one in best.items():
        config = {name: value for name, value in one["config"].items() if value != plain[name] or name == "tiles"}
        made_of = {"m": m, "n": n, "k": k, "cu_count": units, "route": WGMMA}
        if one["us"] < folded.get((m, n, k), 0.0):
            made.append(
                {**made_of, "a_format": "e2m1", "config": config, "us": round(one["us"], 2), "grade": "measured"}
                | {"source": "wgmma", "derived": FOLD}
            )
        if m <= MAX_RAW:
            made += [
                {**made_of, "a_format": a_format, "config": {}, "grade": "predicted"}
                | {"source": "wgmma_raw", "derived": ""}
                for a_format in ("e2m1", "bf16")
            ]
    kept = [dict(row) for row in rows if row.get("derived") or not MAX_MMA < row["m"] <= MAX_RAW]
    return in_order([*kept, *made])


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by weight, M, format, form and time."""
    return sorted(
        rows,
        key=lambda row: (row["n"], row["k"], row["m"], row["a_format"], row.get("derived", ""), row.get("us", 0.0)),
    )


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"make_sm_90_table.py: {error}")
