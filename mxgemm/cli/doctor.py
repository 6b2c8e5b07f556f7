"""``mxgemm doctor``: what is here, and what each route has or misses; ``--verify`` runs all that is here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from rich.markup import escape
from rich.table import Table

from mxgemm import benchmark, files
from mxgemm.cli.app import Device, Force, app, console, progress_bar
from mxgemm.device import default_device
from mxgemm.doctor import Findings, examine
from mxgemm.verify import KIND

_PLAIN: Final[dict[str, Any]] = {"highlight": False, "markup": False, "soft_wrap": True}


@app.command()
def doctor(
    verify: Annotated[bool, typer.Option("--verify", help="run every available route against the oracle")] = False,
    shape: Annotated[
        list[str] | None, typer.Option(help="with --verify: M,N,K; repeat for more; default: the leaderboard's six")
    ] = None,
    device: Device = None,
    seconds: Annotated[float, typer.Option(help="with --verify: time to spend on timing a case")] = 0.2,
    json_file: Annotated[Path | None, typer.Option("--json", help="with --verify: write the report here")] = None,
    force: Force = False,
) -> None:
    """Say what is here, which routes are available, and what each missing one needs."""
    if json_file:
        files.check_writable(json_file, files.json_mark(KIND), force=force)
    found = examine()
    _print_findings(found)
    if verify:
        shapes = benchmark.select([], shape or [])
        _verify(found, shapes, torch.device(device) if device else default_device(), seconds, json_file, force)
    elif shape or json_file:
        raise ValueError("--shape and --json: got them without --verify, want --verify too")


def _print_findings(found: Findings) -> None:
    facts = Table(show_header=False, box=None)
    for name, value in found.facts:
        facts.add_row(escape(name), escape(value))
    console.print(facts)
    hip = Table("HIP", "state", "what serves, or what is missing", title="HIP kernels", title_justify="left")
    for ability in found.abilities:
        hip.add_row(ability.name, _state(ability.missing), escape(ability.missing or ability.found))
    console.print(hip)
    routes = Table("route", "state", "what it needs", title=f"routes on {found.arch}", title_justify="left")
    for name, missing in found.routes:
        routes.add_row(name, _state(missing), escape(missing or ""))
    console.print(routes)


def _state(missing: str | None) -> str:
    return "[yellow]missing[/yellow]" if missing else "[green]available[/green]"


def _verify(
    found: Findings,
    shapes: Sequence[benchmark.Shape],
    device: torch.device,
    seconds: float,
    json_file: Path | None,
    force: bool,
) -> None:
    from mxgemm.verify import report, verify

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
        if v.state == "refused":
            continue
        numbers = ["" if v.us is None else f"{v.us:.1f}"]
        numbers += ["" if error is None else f"{error:.2e}" for error in (v.norm_error, v.element_error)]
        result = "[green]pass[/green]" if v.state == "passed" else "[red]FAIL[/red]"
        table.add_row(f"{v.m},{v.n},{v.k}", v.route, v.weight, v.activations, *numbers, result)
    console.print(table)
    reasons = Counter((v.state, v.route, v.reason) for v in done if v.reason)
    for (state, route, reason), count in reasons.items():
        console.print(f"{state} {count} of {len(done)}: {route}: {reason}", **_PLAIN)
    document = report(done, found, device)
    counts = document["counts"]
    console.print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['refused']} refused", **_PLAIN)
    if json_file:
        files.save_json(json_file, document, KIND, force=force)
        console.print(f"wrote {json_file}", **_PLAIN)
    if counts["failed"]:
        raise typer.Exit(1)
