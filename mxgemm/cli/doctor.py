"""``mxgemm doctor``: what is here, and what each route has or misses; ``--verify`` runs all that is here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from rich.text import Text

from mxgemm import files, measure
from mxgemm.cli.app import Device, Force, app, console, progress_bar, seconds_of
from mxgemm.cli.sizes import sizes_for
from mxgemm.device import default_device
from mxgemm.errors import Refusal, Refused, by_reason
from mxgemm.measure.doctor import Findings, examine
from mxgemm.measure.verify import KIND


@app.command()
def doctor(
    verify: Annotated[bool, typer.Option("--verify", help="run every available route against the oracle")] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", help="with --verify: M,N,K; repeat for more; default: the leaderboard's six"),
    ] = None,
    device: Device = None,
    seconds: Annotated[
        float,
        typer.Option(parser=seconds_of, metavar="SECONDS", help="with --verify: time to spend on timing a case"),
    ] = 0.2,
    json_file: Annotated[Path | None, typer.Option("--json", help="with --verify: write the report here")] = None,
    force: Force = False,
) -> None:
    """Say what is here, what each route is for, which ones are available, and what the others miss."""
    if not verify and (shape or json_file):
        raise ValueError("--shape and --json: got them without --verify, want --verify too")
    if json_file:
        files.check_writable(json_file, files.json_mark(KIND), force=force)
    where = device or default_device()
    shapes = sizes_for(where, shape) if verify else []
    found = examine()
    _print_findings(found)
    if verify:
        _verify(found, shapes, where, seconds, json_file, force)


def _print_findings(found: Findings) -> None:
    facts = Table(show_header=False, box=None)
    for name, value in found.facts:
        facts.add_row(name, value)
    console.print(facts)
    hip = Table("HIP", "state", "what serves, or what is missing", title="HIP kernels", title_justify="left")
    for ability in found.abilities:
        hip.add_row(ability.name, _state(ability.missing), ability.words)
    console.print(hip)
    routes = Table("route", "state", "what it is for", title=f"routes on {found.arch}", title_justify="left")
    for route in found.routes:
        routes.add_row(route.name, _state(route.missing), route.takes)
    console.print(routes)
    for reason in by_reason(Refused(route.name, route.missing) for route in found.routes if route.missing):
        console.print(f"missing {reason}", soft_wrap=True)


def _state(missing: Refusal | None) -> Text:
    return Text("missing", "yellow") if missing else Text("available", "green")


def _verify(
    found: Findings,
    shapes: Sequence[measure.Shape],
    device: torch.device,
    seconds: float,
    json_file: Path | None,
    force: bool,
) -> None:
    from mxgemm.measure.verify import report, verify

    done = []
    with progress_bar(counted=False) as progress:
        task = progress.add_task("verifying")
        for verdict in verify(shapes, device=device, seconds=seconds):
            done.append(verdict)
            progress.update(task, description=f"{verdict.route} on {verdict.m},{verdict.n},{verdict.k}")
    table = Table(box=None, pad_edge=False)
    for name in ("M,N,K", "route", "weight", "A"):
        table.add_column(name, no_wrap=name in ("M,N,K", "route"))
    for name in ("us", "norm", "element"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result")
    for v in done:
        if v.state in ("missing", "refused"):
            continue
        numbers = ["" if v.us is None else f"{v.us:.1f}"]
        numbers += ["" if error is None else f"{error:.2e}" for error in (v.norm_error, v.element_error)]
        result = Text("pass", "green") if v.state == "passed" else Text("FAIL", "red")
        table.add_row(f"{v.m},{v.n},{v.k}", v.route, v.weight, v.activations, *numbers, result)
    console.print(table)
    reasons = Counter((v.state, v.route, v.reason) for v in done if v.reason)
    for (state, route, reason), count in reasons.items():
        console.print(f"{state} {count} of {len(done)}: {route}: {reason}", soft_wrap=True)
    document = report(done, found, device)
    counts = document["counts"]
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()), soft_wrap=True)
    if json_file:
        files.save_json(json_file, document, KIND, force=force)
        console.print(f"wrote {json_file}", soft_wrap=True)
    if counts["failed"]:
        raise typer.Exit(1)
