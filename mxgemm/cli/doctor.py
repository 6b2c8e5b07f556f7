"""``mxgemm doctor``: what is here, and what each route has or misses."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from mxgemm.cli.app import app, console
from mxgemm.doctor import examine


@app.command()
def doctor() -> None:
    """Say what is here, which routes are available, and what each missing one needs."""
    found = examine()
    facts = Table(show_header=False, box=None)
    for name, value in found.facts:
        facts.add_row(escape(name), escape(value))
    console.print(facts)
    routes = Table("route", "state", "what it needs", title=f"routes on {found.arch}", title_justify="left")
    for name, missing in found.routes:
        routes.add_row(
            name, "[yellow]missing[/yellow]" if missing else "[green]available[/green]", escape(missing or "")
        )
    console.print(routes)
