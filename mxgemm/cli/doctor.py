"""``mxgemm doctor``: what is here, and what each route has or misses; ``--verify`` runs all that is here."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch

from mxgemm.cli.sizes import device_for, sizes_for
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.errors import Refused, by_reason
from mxgemm.measure import Shape, checkup, report, text, tuned
from mxgemm.measure.doctor import Findings, examine
from mxgemm.routing import tables

TUNING_SECONDS: Final = 1800.0
"""Of a run that tunes, where nothing else is said."""
_VERDICTS: Final = ("M,N,K", "route", "weight", "A", "time", "norm", "element", "result")
_UNFINISHED: Final = {
    "budget": "unfinished: the time is over; the same command again goes on from here",
    "device": "unfinished: the device answers no longer; the same command again goes on without what it failed in",
}


def run(options: Namespace) -> int:
    """Print what is here; with ``--verify``, run it: 1 where a route failed; with ``--read``, print a report."""
    if options.read:
        return _read(options)
    device = device_for(options.device)
    shapes = sizes_for(device, options.shape) if options.verify else []
    findings = examine()
    made = _report(options, findings, shapes, device) if options.verify else None
    _say_findings(findings)
    return 0 if made is None else _verify(options, *made, device)


def _read(options: Namespace) -> int:
    found = report.load(options.read)
    if options.table:
        if found["table"] is None:
            raise ValueError(f"--table: got {options.read}, in which nothing was tuned; want a report with --tune")
        table = tables.parse(found["table"], str(options.read))
        tuned.write(options.table, table.arch, table.sources, table.rows, force=options.force)
    say_table(("this report", "is of"), list(found["found"].items()), left=("this report",), wrapped=("is of",))
    say()
    status = _say_report(found)
    if options.table:
        say(f"wrote {options.table}; to use it: {tables.TABLES_VARIABLE}={options.table}")
    return status


def _report(
    options: Namespace, found: Findings, shapes: Sequence[Shape], device: torch.device
) -> tuple[report.Request, report.Report]:
    request = report.Request(shapes, options.seconds, options.prepared, options.tune)
    return request, report.Report(request, found, device, options.json, force=options.force)


def _say_findings(found: Findings) -> None:
    say_table(("this machine", "what is here"), found.facts, left=("this machine",), wrapped=("what is here",))
    say()
    abilities = [(x.name, _state(x.missing), x.words) for x in found.abilities]
    _say_states("HIP kernels", "what serves, or what is missing", abilities)
    say()
    _say_states(
        f"routes on {found.arch}", "what it is for", [(x.name, _state(x.missing), x.takes) for x in found.routes]
    )
    say()
    for reason in by_reason(Refused(route.name, route.missing) for route in found.routes if route.missing):
        say(f"missing {reason}")


def _say_states(what: str, about: str, rows: Sequence[tuple[str, str, str]]) -> None:
    say_table((what, "state", about), rows, left=(what, "state"), wrapped=(about,))


def _state(missing: object) -> str:
    return "missing" if missing else "available"


def _verify(options: Namespace, request: report.Request, made: report.Report, device: torch.device) -> int:
    budget = options.budget if options.budget is not None else TUNING_SECONDS if options.tune else None
    if made.taken_up:
        state = "is finished, and nothing is left to do" if made.finished else "goes on where it stopped"
        say(f"{options.json} {state}; --force begins anew")
    end: str = "finished"
    if not made.finished:
        with progress(len(request.shapes) * (1 + request.tune)) as shown:
            last = ""

            def tell(part: str, step: str) -> None:
                nonlocal last
                if last and part != last:
                    shown.done(last)
                last = part
                if step:
                    shown.now(step)

            end = checkup.run(request, made, device, budget=budget, tell=tell)
            if end == "finished":
                shown.done(last)
    status = _say_report(made.document)
    if end in _UNFINISHED:
        say(_UNFINISHED[end])
    if options.json:
        say(f"wrote {options.json}")
    return status


def _say_report(document: dict[str, Any]) -> int:
    """Print verdicts, reasons and what was tuned; 1 where a route failed."""
    done = document["results"]
    ran = [verdict for verdict in done if verdict["state"] not in ("missing", "refused")]
    say_table(
        _VERDICTS, [_cells(verdict) for verdict in ran], left=_VERDICTS[:4], wrapped=("weight",), shared=("M,N,K",)
    )
    reasons = Counter((one["state"], one["route"], one["reason"]) for one in done if one.get("reason"))
    for (state, route, reason), count in reasons.items():
        say(f"{state} {count} of {len(done)}: {route}: {reason}")
    if document["request"]["tune"]:
        _say_tuned(document)
    counts = document["counts"]
    say(", ".join(f"{count} {state}" for state, count in counts.items()))
    return int(counts["failed"] > 0)


def _say_tuned(document: dict[str, Any]) -> None:
    left_out = Counter((one["route"], one["reason"]) for one in document["tuned"] if one.get("reason"))
    for (route, reason), count in left_out.items():
        say(f"left out {count} of {len(document['tuned'])} configurations: {route}: {reason}")
    rows = [
        (_size(best), best["route"], text.duration(best["us"]), text.duration(best["torch_mm_us"]), _share(best))
        for best in document["best"]
    ]
    say()
    say_table(("M,N,K", "fastest route", "time", "torch.mm", "share"), rows, left=("M,N,K", "fastest route"))


def _share(best: dict[str, Any]) -> str:
    return "" if best["share"] is None else f"{best['share']:.2f}"


def _size(entry: dict[str, Any]) -> str:
    return f"{entry['m']},{entry['n']},{entry['k']}"


def _cells(verdict: dict[str, Any]) -> tuple[str, ...]:
    errors = (verdict.get("norm_error"), verdict.get("element_error"))
    return (
        *(_size(verdict), verdict["route"], verdict["weight"], verdict.get("activations", "")),
        text.duration(verdict.get("us")),
        *("" if error is None else f"{error:.2e}" for error in errors),
        "pass" if verdict["state"] == "passed" else "FAIL",
    )
