"""``mxgemm submission``: write the self-contained file for the leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mxgemm import submission as generator
from mxgemm.cli.app import Force, app, console


@app.command()
def submission(
    output: Annotated[Path, typer.Option("--output", "-o", help="where to write it")] = Path("submission.py"),
    form: Annotated[
        list[str] | None, typer.Option(help=f"carry this form; repeat for more; default: {', '.join(generator.FORMS)}")
    ] = None,
    force: Force = False,
) -> None:
    """Write one self-contained file for the GPU MODE leaderboard amd-mxfp4-mm."""
    path = generator.write(output, form or tuple(generator.FORMS), force=force)
    console.print(f"wrote {path}", soft_wrap=True)
