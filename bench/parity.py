"""A/B of two ways to compute the same products, size by size.

    python bench/parity.py route:fp8_fold peer:torch_mm --set gpt-oss --csv parity.csv
    python bench/parity.py route:auto python:my_kernels:gemm --shape 16,2112,7168
    python bench/parity.py so:/path/a.so so:/path/b.so --set leaderboard

Fifty unmeasured and a hundred measured calls of each side, in turn; sizes that differ by more than 15 % are measured
again, each side alone. Outputs are looked at first: all zero, never written or not finite is a failure. The exit status
is 1 where a side failed. Method: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from mxgemm import measure
from mxgemm.device import default_device
from mxgemm.measure import output, parity, text, timing
from mxgemm.measure.rotation import FACTOR, cache_bytes
from mxgemm.measure.subjects import FORMS, subject_of

COLUMNS = ("M,N,K", "failure", "A us", "B us", "gap", "again", "difference")


def main() -> int:
    """Compare, print, write."""
    arguments = _parser().parse_args()
    device = torch.device(arguments.device) if arguments.device else default_device()
    try:
        a, b = (subject_of(spec, device) for spec in (arguments.a, arguments.b))
        shapes = measure.select(arguments.set, arguments.shape)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    keep = output.text_file(arguments.csv, parity.CSV, force=arguments.force)
    settings = parity.Settings(_timer(device, arguments.time), arguments.warm_up, arguments.repeats)
    rows = []
    for row in parity.parity(a, b, shapes, device, settings):
        rows.append(row)
        print(f"[{len(rows)}/{len(shapes)}] {row.m},{row.n},{row.k}", file=sys.stderr, flush=True)
    print(f"A = {a.name}, B = {b.name}; gap = B / A - 1, above 0 B is slower")
    print(text.aligned(COLUMNS, [_cells(row) for row in rows]))
    found = parity.summarise(rows)
    if found.median_gap is not None and found.within is not None:
        print(f"median gap {found.median_gap:+.1%}, {found.within:.0%} of sizes within +-{parity.WITHIN:.0%}")
    print(f"{found.sizes} sizes, {found.again} measured again alone, {found.failed} failed")
    keep(parity.csv_text(rows))
    return int(found.failed > 0)


def _timer(device: torch.device, what: str) -> parity.Timer:
    if device.type != "cuda":
        return timing.single_wall_us
    if what == "eager":
        return timing.single_eager_us
    return timing.single_device_us(device, FACTOR * cache_bytes(device))


def _cells(row: parity.Row) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        f"{row.m},{row.n},{row.k}",
        row.failure,
        number(row.us_a, ".4g"),
        number(row.us_b, ".4g"),
        number(row.gap, "+.1%"),
        "yes" if row.again else "",
        number(row.difference, ".2e"),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help=FORMS)
    parser.add_argument("b", help="the same")
    parser.add_argument("--set", action="append", default=[], choices=list(measure.SETS))
    parser.add_argument("--shape", action="append", default=[], help="M,N,K; repeat for more")
    parser.add_argument("--device", help="torch device; default: the GPU if there is one")
    parser.add_argument("--time", default="device", choices=("device", "eager"), help="on a GPU; a CPU has wall time")
    parser.add_argument("--warm-up", type=int, default=parity.WARM_UP)
    parser.add_argument("--repeats", type=int, default=parity.REPEATS)
    parser.add_argument("--csv", type=Path, help="write the rows here")
    parser.add_argument("--force", action="store_true", help="with --csv: replace a file that this did not write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
