"""What the commands share: the application, its console, option types, and how user errors end."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mxgemm._version import __version__
from mxgemm.errors import RouteUnavailable

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Block-scaled (microscaling) GEMM.")
# What goes to a file or a pipe has no terminal's width to fit in: rich would cut every cell down to 80 columns.
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)

Device = Annotated[str | None, typer.Option(help='torch device ("cpu", "cuda:0"); default: the GPU if there is one')]
AFormat = Annotated[str, typer.Option(help="what A is rounded to: e2m1, e4m3 or bf16")]
Force = Annotated[
    bool, typer.Option("--force", help="replace an output file that this command did not write (an empty one is free)")
]
RouteName = Annotated[str | None, typer.Option(help="force a route instead of asking the router")]


def main() -> None:
    """Run the command line; user errors end in one line and exit status 2."""
    try:
        app()
    except (ValueError, TypeError, RouteUnavailable) as error:
        console.print(f"[red]mxgemm:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)


def progress_bar(counted: bool) -> Progress:
    """Return a progress display that goes when it is done; ``counted``: the number of steps is known."""
    count = (BarColumn(), MofNCompleteColumn()) if counted else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *count, TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _version(value: bool) -> None:
    if value:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    del version
