"""The command line: ``mxgemm bench | explain | doctor``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError as error:
    sys.exit(f"the mxgemm command needs typer and rich: pip install 'mxgemm[cli]' ({error})")

import torch

from mxgemm import __version__, benchmark
from mxgemm.device import default_device
from mxgemm.doctor import examine
from mxgemm.errors import RouteUnavailable
from mxgemm.explain import explain as explain_shape

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Block-scaled (microscaling) GEMM.")
console = Console()

Device = Annotated[str | None, typer.Option(help='torch device ("cpu", "cuda:0"); default: the GPU if there is one')]
AFormat = Annotated[str, typer.Option(help="what A is rounded to: e2m1, e4m3 or bf16")]
RouteName = Annotated[str | None, typer.Option(help="force a route instead of asking the router")]


def main() -> None:
    """Run the command line; user errors end in one line and exit status 2."""
    try:
        app()
    except (ValueError, TypeError, RouteUnavailable) as error:
        console.print(f"[red]mxgemm:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _version(value: bool) -> None:
    if value:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    del version


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
    shapes = [_shape(text) for text in shape] if shape else list(benchmark.LEADERBOARD)
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


@app.command()
def explain(
    m: Annotated[int, typer.Argument(help="rows of A")],
    n: Annotated[int, typer.Argument(help="rows of B")],
    k: Annotated[int, typer.Argument(help="elements along K")],
    device: Annotated[str | None, typer.Option(help="torch device, or an architecture such as gfx950")] = None,
    a_format: AFormat = "e2m1",
    prepared: Annotated[bool, typer.Option(help="as if the weight had been through prepare()")] = False,
    route: RouteName = None,
    tables: Annotated[list[Path] | None, typer.Option(help="routing tables to put before the shipped ones")] = None,
) -> None:
    """Say which route a shape takes, and why not the others."""
    answer = explain_shape(
        m, n, k, device=device, a_format=a_format, prepared=prepared, route=route, tables=tables  # type: ignore[arg-type]
    )  # fmt: skip
    console.print(str(answer), highlight=False, soft_wrap=True)


@app.command()
def doctor() -> None:
    """Say what is here, which routes are available, and what each missing one needs."""
    found = examine()
    facts = Table(show_header=False, box=None)
    for name, value in found.facts:
        facts.add_row(name, value)
    console.print(facts)
    routes = Table("route", "state", "what it needs", title=f"routes on {found.arch}", title_justify="left")
    for name, missing in found.routes:
        routes.add_row(name, "[yellow]missing[/yellow]" if missing else "[green]available[/green]", missing or "")
    console.print(routes)


def _shape(text: str) -> benchmark.Shape:
    try:
        m, n, k = (int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"--shape: got {text!r}, want M,N,K such as 16,2112,7168") from None
    if m < 1 or n < 1 or k < 32 or k % 32:
        raise ValueError(f"--shape: got {text!r}, want M and N of at least 1 and K a positive multiple of 32")
    return m, n, k


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
