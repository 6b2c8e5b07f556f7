"""``mxgemm tune``: measure every configuration of every route, and write a routing table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mxgemm.cli.app import AFormat, Device, Force, app, console, progress_bar, route_named, seconds_of
from mxgemm.cli.sizes import Shapes, sizes_for
from mxgemm.device import default_device, machine_of
from mxgemm.routing.tables import TABLES_VARIABLE


@app.command()
def tune(
    output: Annotated[Path, typer.Option("--output", "-o", help="the table to write or to add to")],
    shape: Shapes = None,
    device: Device = None,
    a_format: AFormat = "e2m1",
    route: Annotated[
        list[str] | None, typer.Option(parser=route_named, metavar="ROUTE", help="only this route; repeat for more")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="weights as they come; otherwise after prepare()")] = False,
    seconds: Annotated[
        float, typer.Option(parser=seconds_of, metavar="SECONDS", help="time to spend on one configuration")
    ] = 0.2,
    force: Force = False,
) -> None:
    """Measure every legal configuration of every route that is right, and write a routing table."""
    from mxgemm.measure.tune import check_writable, rows, source_of, write
    from mxgemm.measure.tune import tune as tuned

    where = device or default_device()
    shapes = sizes_for(where, shape)
    check_writable(output, machine_of(where).arch, force=force)  # before the work, not after it
    done = []
    with progress_bar(counted=False) as progress:
        task = progress.add_task("tuning")
        for timing in tuned(
            shapes,
            device=where,
            a_format=a_format,  # type: ignore[arg-type]
            prepared=not raw,
            routes=route or (),
            seconds=seconds,
        ):
            done.append(timing)
            m, n, k = timing.shape
            progress.update(task, description=f"{len(done)} measured; {timing.route} on {m},{n},{k}: {timing.config}")
    name, source = source_of(where, not raw)
    found = rows(done, where, a_format, name)  # type: ignore[arg-type]
    for timing in done:
        if timing.us is None:
            text = f"left out: {timing.route} ({timing.config}) on {timing.shape}: {timing.reason}"
            console.print(text, soft_wrap=True)
    if not found:
        console.print("nothing was measured: no route that was asked for took a shape and passed")
        raise typer.Exit(1)
    table = Table("M,N,K", "us", "route", "configuration", box=None, pad_edge=False)
    for row in found:
        config = ", ".join(f"{field}={value}" for field, value in row.config.items())
        table.add_row(f"{row.m},{row.n},{row.k}", f"{row.us:g}", row.route, config)
    console.print(table)
    write(output, machine_of(where).arch, name, source, found, force=force)
    console.print(
        f"{len(done)} configurations measured; wrote {output}; to use it: {TABLES_VARIABLE}={output}",
        highlight=False,
        soft_wrap=True,
    )
