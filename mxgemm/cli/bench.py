"""``mxgemm bench``: measure sizes, draw what was measured, or compare two runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mxgemm import measure
from mxgemm.cli.app import AFormat, Device, Force, RouteName, app, choice, console, progress_bar, seconds_of
from mxgemm.cli.sizes import sizes_for
from mxgemm.device import default_device, machine_of
from mxgemm.measure import compare as comparison
from mxgemm.measure import plots, text


@app.command()
def bench(
    shape: Annotated[list[str] | None, typer.Option("--shape", help="M,N,K; repeat for more")] = None,
    set_name: Annotated[
        list[str] | None,
        typer.Option("--set", help=f"{' | '.join(measure.SETS)}; repeat for more; default: leaderboard"),
    ] = None,
    device: Device = None,
    a_format: AFormat = "e2m1",
    route: RouteName = None,
    all_routes: Annotated[bool, typer.Option("--all-routes", help="every route that can, not only the chosen")] = False,
    peers: Annotated[
        bool | None, typer.Option("--peers/--no-peers", help="other libraries too; default: on a GPU")
    ] = None,
    prepare: Annotated[bool, typer.Option("--prepare/--raw", help="call prepare() on the weight first")] = True,
    seconds: Annotated[
        float,
        typer.Option(parser=seconds_of, metavar="SECONDS", help="time to spend on each of a contender's times"),
    ] = 0.3,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results here")] = None,
    plot: Annotated[Path | None, typer.Option(help="write pictures into this folder (mxgemm[bench])")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="old.json new.json: compare two runs, measure nothing")
    ] = None,
    force: Force = False,
    metric: Annotated[
        str,
        typer.Option(
            parser=choice("metric", comparison.METRICS),
            metavar="METRIC",
            help="what --compare looks at: device, eager or host",
        ),
    ] = "device",
) -> None:
    """Error against the float64 oracle, then device, eager and host time, against the floor and against peers."""
    if compare:
        _compare(*compare, metric)
        return
    where = device or default_device()
    request = measure.Request(
        shapes=sizes_for(where, shape, set_name),
        device=where,
        a_format=a_format,  # type: ignore[arg-type]
        route=route,
        all_routes=all_routes,
        peers=tuple(measure.PEERS) if (where.type == "cuda" if peers is None else peers) else (),
        form="fast" if prepare else "raw",
        effort=measure.Effort(seconds=seconds),
    )
    if plot:
        try:
            plots.check_writable(plot, machine_of(where).arch, force=force)  # before the work, not after it
        except ImportError as error:
            raise ValueError(f"--plot: {error}") from error
    document = _measure(request, measure.Keeper(json_file, force=force) if json_file else None)
    _print_table(text.title(document), *text.filled(text.COLUMNS, text.rows(document)))
    console.print("\n".join(text.notes(document)), soft_wrap=True)
    if json_file:
        console.print(f"wrote {json_file}", soft_wrap=True)
    if plot:
        for path in plots.draw(document, plot, force=force):
            console.print(f"wrote {path}", soft_wrap=True)
    if not measure.passed(document):
        raise typer.Exit(1)


def _measure(request: measure.Request, keeper: measure.Keeper | None) -> dict[str, Any]:
    """Measure with a progress bar; the file is written after each size, and again at the end."""
    with progress_bar(counted=True) as progress:
        task = progress.add_task("", total=len(request.shapes))
        document = measure.run(
            request,
            lambda done, what: progress.update(task, completed=done, description=what),
            keeper.keep if keeper else None,
        )
    if keeper:
        keeper.finish(document)
    return document


def _compare(old_path: Path, new_path: Path, metric: str) -> None:
    old, new = measure.load(old_path), measure.load(new_path)
    changes = comparison.compare(old, new, metric=metric)  # type: ignore[arg-type]
    _print_table(f"{metric} time, {old_path} to {new_path}", text.CHANGE_COLUMNS, text.change_rows(changes))
    for line in comparison.remarks(old, new):
        console.print(line, soft_wrap=True)
    bad = [change for change in changes if change.bad]
    console.print(f"{len(bad)} of {len(changes)} slower by more than the spread, or wrong")
    if bad:
        raise typer.Exit(1)


_WIDEST = 1000
_RED = ("FAIL", "slower", "wrong now", "raises now")
_COLOURS = {"pass": "green", "faster": "green", "gone": "yellow", **dict.fromkeys(_RED, "red")}


def _print_table(title: str, header: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """Print a table whole: where it is wider than the terminal its lines wrap, no cell is cut."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for *cells, last in body:
        colour = _COLOURS.get(last)
        table.add_row(*cells, Text(last, style=colour or ""))
    before = console.width
    wanted = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.width = max(before, wanted)
    try:
        console.print(table)
    finally:
        console.width = before
