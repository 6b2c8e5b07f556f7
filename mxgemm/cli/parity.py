"""``mxgemm parity``: A/B of two ways to compute the same products, size by size."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

import torch

from mxgemm import files
from mxgemm.cli.sizes import device_for, sizes_for
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.measure import parity, text, timing
from mxgemm.measure.rotation import FACTOR, cache_bytes
from mxgemm.measure.subjects import subject_of

COLUMNS = ("M,N,K", "A", "B", "gap", "again", "difference", "failure")


def run(options: Namespace) -> int:
    """Compare, print and write; 1 where a side failed."""
    device = device_for(options.device)
    shapes = sizes_for(device, options.shape, options.set)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # python:MODULE:FUNCTION is the user's, and lies here
    a, b = (subject_of(spec, device, prepared=options.prepared) for spec in (options.a, options.b))
    if options.csv:
        files.check_writable(options.csv, parity.CSV, force=options.force)  # before the work, not after it
    settings = parity.Settings(_timer(device, options.time), options.warm_up, options.repeats)
    rows = []
    with progress(len(shapes)) as shown:
        for row in parity.parity(a, b, shapes, device, settings):
            rows.append(row)
            shown.done(f"{row.m},{row.n},{row.k}")
    say(f"A = {a.name}, B = {b.name}; gap = B / A - 1, above 0 B is slower")
    say_table(*text.filled(COLUMNS, [_cells(row) for row in rows]), left=COLUMNS[:1], wrapped=("failure",))
    found = parity.summarise(rows)
    if found.median_gap is not None and found.within is not None:
        say(f"median gap {found.median_gap:+.1%}, {found.within:.0%} of sizes within +-{parity.WITHIN:.0%}")
    elif found.failed < found.sizes:
        say("outputs alone were compared: a kernel in the emulator has no time")
    say(f"{found.sizes} sizes, {found.again} measured again alone, {found.failed} failed")
    if options.csv:
        files.save(options.csv, parity.csv_text(rows), parity.CSV, force=options.force)
        say(f"wrote {options.csv}")
    return int(found.failed > 0)


def _timer(device: torch.device, what: str) -> parity.Timer:
    if device.type != "cuda":
        return timing.single_wall_us
    if what == "eager":
        return timing.single_eager_us
    return timing.single_device_us(device, FACTOR * cache_bytes(device))


def _cells(row: parity.Row) -> tuple[str, ...]:
    return (
        f"{row.m},{row.n},{row.k}",
        text.duration(row.us_a),
        text.duration(row.us_b),
        "" if row.gap is None else f"{row.gap:+.1%}",
        "yes" if row.again else "",
        "" if row.difference is None else f"{row.difference:.2e}",
        row.failure,
    )
