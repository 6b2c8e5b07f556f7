"""``mxgemm build``: build HIP kernels ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer

from mxgemm import build_cache, measure
from mxgemm.cli.app import app, console


@app.command()
def build(
    shape: Annotated[
        list[str] | None, typer.Option(help="M,N,K; repeat for more; default: the leaderboard's six")
    ] = None,
    arch: Annotated[str, typer.Option(help="what to build for")] = "gfx950",
) -> None:
    """Build the HIP kernels of shapes into the cache, on any machine that has a compiler for them."""
    from mxgemm.ahead import build_ahead

    for built in build_ahead(measure.select([], shape or []), arch):
        text = f"{built.source} {built.what or 'for every shape'}: {built.nbytes} bytes, {built.seconds:.1f} s"
        console.print(text, soft_wrap=True)
    console.print(f"in {build_cache.folder()}", soft_wrap=True)
