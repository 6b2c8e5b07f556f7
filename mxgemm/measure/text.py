"""Results as rows of text: what the terminal table and the plain output both show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mxgemm.measure.compare import Change
from mxgemm.measure.contender import BEFOREHAND
from mxgemm.measure.identity import identity, names

COLUMNS: Final = ("M,N,K", "what", "device us", "quartiles", "eager", "host", "floor", "x floor", "norm error", "gates")
CHANGE_COLUMNS: Final = ("M,N,K", "what", "old us", "new us", "ratio", "verdict")


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
    lines += [f"ceiling {name} not measured: {reason}" for name, reason in roof["refused"].items()]
    lines += [f"absent {peer['name']}: {peer['reason']}" for peer in document["peers"] if not peer["present"]]
    lines += _grouped("refused", document["refusals"], "reason")
    lines += _grouped("FAILED", document["failures"], "error")
    lines.append(f"device: {document['method']['device']}")
    lines.append("* the router's choice; + A quantised beforehand, not timed; gates and fields: docs/benchmarks.md")
    return lines


def change_rows(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return a row of :data:`CHANGE_COLUMNS` for each change."""
    return [
        (
            f"{change.m},{change.n},{change.k}",
            change.name,
            _us(change.old_us),
            _us(change.new_us),
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
    """Lay rows out in columns, the first two to the left."""
    widths = [max(len(row[i]) for row in (header, *body)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))  # noqa: B905
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (header, *body))


def _row(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    device, accuracy = record["device"], record["accuracy"]
    return (
        f"{record['m']},{record['n']},{record['k']}",
        f"{name}{'*' if record['chosen'] else ''}{'+' if BEFOREHAND in record['statement'] else ''}",
        _us(device and device["us"]),
        f"{_us(device['low'])}..{_us(device['high'])}" if device else "",
        _us(record["eager"] and record["eager"]["us"]),
        _us(record["host"] and record["host"]["us"]),
        _us(record["floor_us"]),
        f"{record['ratio_to_floor']:.3g}" if record["ratio_to_floor"] else "",
        "not finite" if accuracy["norm"] is None else f"{accuracy['norm']:.2e}",
        "pass" if accuracy["passed"] else "FAIL",
    )


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _grouped(label: str, records: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    sizes: dict[tuple[str, str], list[str]] = {}
    for record in records:
        sizes.setdefault((record["name"], record[field]), []).append(f"{record['m']},{record['n']},{record['k']}")
    lines = []
    for (name, reason), where in sizes.items():
        shown = " ".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")
        lines.append(f"{label} {name} ({shown}): {reason}")
    return lines
