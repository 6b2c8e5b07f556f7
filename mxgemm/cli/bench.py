"""``mxgemm bench``: run shapes, judge each against the oracle, time each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from mxgemm import benchmark
from mxgemm.cli.app import AFormat, Device, RouteName, app, console, parse_shape
from mxgemm.device import default_device


@app.command()
def bench(
    shape: Annotated[
        list[str] | None, typer.Option(help="M,N,K; repeat for more; default: the leaderboard's six")
    ] = None,
    device: Device = None,
    a_format: AFormat = "e2m1",
    route: RouteName = None,
    seconds: Annotated[float, typer.Option(help="time to spend on timing a shape")] = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results here")] = None,
) -> None:
    """Run shapes: route, error against the float64 oracle, time, GB/s, TFLOP/s."""
    shapes = [parse_shape(text) for text in shape] if shape else list(benchmark.LEADERBOARD)
    where = torch.device(device) if device else default_device()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    done = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("shapes", total=len(shapes))
        for measurement in benchmark.measure(shapes, device=where, a_format=a_format, route=route, seconds=seconds):  # type: ignore[arg-type]
            done.append(measurement)
            progress.advance(task)
    document = benchmark.report(done, where, a_format)
    console.print(_bench_table(document))
    gates = document["gates"]
    note = f"{document['method']}\ngates: norm {gates['norm']:g}, element {gates['element']}, see docs/numbers.md"
    console.print(note, highlight=False, soft_wrap=True)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {json_file}", highlight=False)
    if not all(measurement.passed for measurement in done):
        raise typer.Exit(1)


def _bench_table(document: dict[str, Any]) -> Table:
    title = f"{document['device']} ({document['arch']}), torch {document['torch']}, a_format {document['a_format']}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("M,N,K", no_wrap=True)
    table.add_column("route", no_wrap=True)
    for name in ("us", "GB/s", "TFLOP/s", "norm", "element"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("gates", no_wrap=True)
    for r in document["results"]:
        table.add_row(
            f"{r['m']},{r['n']},{r['k']}",
            r["route"],
            f"{r['us']:.1f}",
            f"{r['gb_per_s']:.1f}",
            f"{r['tflop_per_s']:.3f}",
            f"{r['norm_error']:.2e}",
            f"{r['element_error']:.2f}",
            "[green]pass[/green]" if r["passed"] else "[red]FAIL[/red]",
        )
    return table
