"""``mxgemm explain``: which route a shape takes, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mxgemm.cli.app import AFormat, RouteName, app, console
from mxgemm.routing.explain import explain as explain_shape


@app.command()
def explain(
    m: Annotated[int, typer.Argument(help="rows of A")],
    n: Annotated[int, typer.Argument(help="rows of B")],
    k: Annotated[int, typer.Argument(help="elements along K")],
    device: Annotated[str | None, typer.Option(help="torch device, or an architecture such as gfx950")] = None,
    a_format: AFormat = "e2m1",
    prepare: Annotated[
        bool, typer.Option("--prepare/--raw", help="a weight that has been through prepare(), or loose tensors")
    ] = True,
    route: RouteName = None,
    tables: Annotated[list[Path] | None, typer.Option(help="routing tables to put before the shipped ones")] = None,
) -> None:
    """Say which route a shape takes, and why not the others."""
    answer = explain_shape(
        m, n, k, device=device, a_format=a_format, prepared=prepare, route=route, tables=tables  # type: ignore[arg-type]
    )  # fmt: skip
    console.print(str(answer), soft_wrap=True)
