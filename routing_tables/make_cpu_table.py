"""Put what bench/cpu_native.py measured on several kinds of CPU into cpu.json, as rows that hold for that kind alone.

    PYTHONPATH=. python routing_tables/make_cpu_table.py [-o routing_tables/cpu.json]

A kind of CPU is what ``mxgemm doctor`` prints; ``mxgemm tune`` on such a machine adds rows of the same kind, or
replaces these. Rules stay as they are. Rows of cpu_native name no method: it is the route's own, which knows to the row
of A where another one becomes the faster (a test compares it with the documents). Of a document's numbers of threads
the largest counts that a size has; of several documents of a kind the latest does.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from mxgemm import files
from mxgemm.measure import tuned
from mxgemm.routing import tables
from mxgemm.routing.tables import Row

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE.parent / "bench" / "results"


class Run(NamedTuple):
    """A document of bench/cpu_native.py, or a part of one.

    Attributes:
        source: its name in the table.
        document: the file.
        variant: of the C kernels.
        kind: of the CPU, as ``mxgemm.cpu.variants.kind`` names it there.
        run: name of the part, "" for all.
        where: in words.
    """

    source: str
    document: str
    variant: str
    kind: str
    run: str
    where: str


_BESIDE: Final = "avx512_bf16+avx512vbmi"
RUNS: Final = (
    Run("epyc_zen5", "epyc_zen5", "avx512_vnni", f"avx512_vnni+{_BESIDE}", "", "an EPYC (Zen 5) with AVX-512 BF16"),
    Run("epyc_avx2", "epyc_avx2", "avx2", "avx2", "", "an EPYC (Zen 3) with AVX2, processor time"),
    Run("xeon_amx", "xeon_beside", "amx_bf16", "amx_bf16", "amx_bf16", "a Xeon with AMX, beside other runs"),
    Run(
        *("xeon_without_amx", "xeon_beside", "avx512_vnni", f"avx512_vnni+amx_bf16+{_BESIDE}", "avx512_vnni"),
        "a Xeon whose AMX torch alone uses, beside other runs",
    ),
)
METHODS: Final = ("rows", "panels", "tiles")
OTHERS: Final = ("cpu_dequant_mm", "reference")


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "cpu.json")
    path = parser.parse_args().output
    old = tables.load(HERE / "cpu.json")
    rows, sources = list[Row](), dict[str, dict[str, str]]()
    for run in RUNS:
        document = files.read_json(RESULTS / f"cpu_native_{run.document}.json")
        rows += rows_of(document, run)
        sources[run.source] = source_of(document, run)
    others = [row for row in old.rows if row.source not in sources]
    table = tuned.document_of("cpu", {**old.sources, **sources}, rows, replace(old, rows=tuple(others)))
    files.write(path, tuned.text_of(table), files.json_mark(tables.KIND), force=True)
    print(f"{len(rows)} rows of {len(RUNS)} kinds of CPU; wrote {path}")


def rows_of(document: dict[str, Any], run: Run) -> list[Row]:
    """Return a row for each size, format of A and route of a document."""
    places: dict[tuple[int, int, int, str], dict[int, dict[str, float]]] = {}
    for one in document["results"]:
        if "n" in one and one.get("run", "") == run.run:
            of_place = places.setdefault((one["m"], one["n"], one["k"], one.get("a_format", "e2m1")), {})
            name = one["name"].removeprefix(f"{run.variant} ")
            of_place.setdefault(one["threads"], {})[name] = one["us"]
    rows = []
    for (m, n, k, a_format), of_place in places.items():
        times = of_place[max(of_place)]
        found: dict[str, float] = {route: times[route] for route in OTHERS if route in times}
        methods = [times[method] for method in METHODS if method in times]
        if methods:
            found["cpu_native"] = min(methods)
        for route, us in found.items():
            row = Row(m, n, k, route, run.source, "measured", float(f"{us:.4g}"), a_format)
            rows.append(replace(row, derived="", cpu=run.kind))
    return rows


def source_of(document: dict[str, Any], run: Run) -> dict[str, str]:
    """Return what the table says of a run."""
    threads = max(one["threads"] for one in document["results"])
    several = f"by {threads} threads, by one where those were not measured" if threads > 1 else "by one thread"
    return {
        "title": f"bench/cpu_native.py on {run.where}: bench/results/cpu_native_{run.document}.json",
        "scope": "call",
        "covers": f"whole calls {several}, weights read from memory; median",
    }


if __name__ == "__main__":
    main()
