"""Results as rows of text, for a table."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mxgemm.measure.compare import Change
from mxgemm.measure.contender import BEFOREHAND
from mxgemm.measure.identity import identity, names
from mxgemm.measure.layout import Table

COLUMNS: Final = ("M,N,K", "what", "device", "spread", "eager", "host", "floor", "x floor", "error", "gates")
CHANGE_COLUMNS: Final = ("M,N,K", "what", "old", "new", "ratio", "verdict")
LEFT: Final = ("M,N,K", "what")
SHARED: Final = ("M,N,K", "floor")
"""Columns that all contenders of a size have in common."""


def title(document: Mapping[str, Any]) -> str:
    """Return one line about the run."""
    environment = document["environment"]
    return (
        f"{environment['device']} ({environment['arch']}), torch {environment['torch']},"
        f" triton {environment['triton']}, a_format {', '.join(document['a_formats'])}, {document['date'][:10]}"
    )


def rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row of :data:`COLUMNS` for each result; starred: the router's choice; "+": A comes quantised."""
    named = names(document["results"])
    return [_row(record, named[identity(record)]) for record in document["results"]]


def notes(document: Mapping[str, Any]) -> list[str]:
    """Return what the table does not show: ceilings, absent peers, refusals, failures, method."""
    roof = document["roof"]
    rates = ", ".join(f"{name} {rate:.4g}" for name, rate in roof["tflop_per_s"].items())
    lines = [f"measured ceilings: {roof['bandwidth_gb_per_s']:.4g} GB/s; TFLOP/s: {rates}"]
    lines += _shares(document["results"])
    lines += [f"ceiling {name} not measured: {reason}" for name, reason in roof["refused"].items()]
    lines += [f"absent {peer['name']}: {peer['reason']}" for peer in document["peers"] if not peer["present"]]
    lines += _grouped("refused", document["refusals"], "reason")
    lines += _grouped("FAILED", document["failures"], "error")
    lines.append(f"device: {document['method']['device']}")
    lines.append("spread: between the quartiles of device time, in parts of it; x floor: device time over the floor")
    lines.append("* the router's choice; + A quantised beforehand, not timed; gates and fields: docs/benchmarks.md")
    return lines


def change_rows(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return a row of :data:`CHANGE_COLUMNS` for each change."""
    return [
        (
            f"{change.m},{change.n},{change.k}",
            change.name,
            duration(change.old_us),
            duration(change.new_us),
            f"{change.ratio:.3f}" if change.ratio else "",
            change.verdict,
        )
        for change in changes
    ]


def filled(header: Sequence[str], body: Sequence[Sequence[str]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Leave out columns that are empty in every row, as "eager" and "host" are on a CPU."""
    kept = [i for i in range(len(header)) if not body or any(row[i] for row in body)]
    return [header[i] for i in kept], [tuple(row[i] for i in kept) for row in body]


def aligned(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns, the first two to the left, however wide."""
    lines = Table(header, body, header[:2]).lines(sys.maxsize)
    return "\n".join("".join(line).rstrip() for line in lines)


def duration(us: float | None) -> str:
    """Return microseconds with three digits, in the unit that keeps them below a thousand; "" for none."""
    if us is None:
        return ""
    unit, scale = _unit(us)
    return f"{_three_digits(us / scale)} {unit}"


def _shares(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what the router's choices take of the time of torch's products, where both were measured."""
    peers: dict[tuple[int, int, int], float] = {}
    for record in results:
        size = record["m"], record["n"], record["k"]
        if record["kind"] == "peer" and record["name"].startswith("torch_mm") and record["device"]:
            peers[size] = min(record["device"]["us"], peers.get(size, math.inf))
    shares = [
        f"{r['m']},{r['n']},{r['k']} {r['name']} {r['device']['us'] / peers[r['m'], r['n'], r['k']]:.2f}"
        for r in results
        if r["chosen"] and r["device"] and (r["m"], r["n"], r["k"]) in peers
    ]
    return [f"the router's choice, as a share of the fastest torch.mm's time: {'; '.join(shares)}"] if shares else []


def _row(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    device, accuracy = record["device"], record["accuracy"]
    return (
        f"{record['m']},{record['n']},{record['k']}",
        f"{name}{'*' if record['chosen'] else ''}{'+' if BEFOREHAND in record['statement'] else ''}",
        duration(device and device["us"]),
        _percent((device["high"] - device["low"]) / device["us"]) if device else "",
        duration(record["eager"] and record["eager"]["us"]),
        duration(record["host"] and record["host"]["us"]),
        duration(record["floor_us"]),
        _three_digits(record["ratio_to_floor"]) if record["ratio_to_floor"] else "",
        "not finite" if accuracy["norm"] is None else f"{accuracy['norm']:.2e}",
        "pass" if accuracy["passed"] else "FAIL",
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _unit(us: float) -> tuple[str, float]:
    for unit, scale in (("us", 1.0), ("ms", 1e3)):
        if float(f"{us / scale:.3g}") < 1000:
            return unit, scale
    return "s", 1e6


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if 1000 <= value < 1e6 else f"{value:#.3g}".rstrip(".")


def _grouped(label: str, records: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    sizes: dict[tuple[str, str], list[str]] = {}
    for record in records:
        sizes.setdefault((record["name"], record[field]), []).append(f"{record['m']},{record['n']},{record['k']}")
    lines = []
    for (name, reason), where in sizes.items():
        shown = " ".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")
        lines.append(f"{label} {name} ({shown}): {reason}")
    return lines
