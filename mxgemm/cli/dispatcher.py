"""``mxgemm dispatcher``: names, builds and the self-test of the CK bridge."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from mxgemm.arguments import one_of
from mxgemm.cli.app import app, checked, choice, console, progress_bar
from mxgemm.dispatcher import OPERATIONS, BuildResult, KernelConfig, build
from mxgemm.dispatcher import selftest as check
from mxgemm.dispatcher.arch import KNOWN, bare_arch
from mxgemm.dispatcher.build import SOURCES

dispatcher = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The CK bridge: kernel configurations to callable kernels."
)
app.add_typer(dispatcher, name="dispatcher")

Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--op", parser=choice("op", OPERATIONS), metavar="OPERATION", help="an operation; repeat for more; default: all"
    ),
]
Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        parser=checked(lambda text: one_of("arch", bare_arch(text), KNOWN)),
        metavar="ARCH",
        help="gfx950 or gfx942; repeat for both; default: both, without asking",
    ),
]
SourceName = Annotated[
    str,
    typer.Option("--source", parser=choice("source", SOURCES), metavar="SOURCE", help="native or ck_tile"),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="kernels compiled at a time; default: one a processor")]

STYLES = {check.PASS: "green", check.FAIL: "red", check.SMOKE_ONLY: "yellow", check.NOT_RUN: "yellow"}


@dispatcher.command()
def names(op: Operations = None, arch: Archs = None) -> None:
    """Print the names of the default kernels."""
    for config in _defaults(op, arch):
        console.print(config.name, soft_wrap=True)


@dispatcher.command(name="build")
def build_command(op: Operations = None, arch: Archs = None, source: SourceName = "native", jobs: Jobs = None) -> None:
    """Build the default kernels and print where they are."""
    configs = _defaults(op, arch)
    with progress_bar(counted=True) as progress:
        task = progress.add_task("kernels", total=len(configs))

        def advance(done: int, total: int, result: BuildResult) -> None:
            progress.update(task, completed=done, total=total, description=f"{result.config.operation} {source}")

        results = build(configs, source=source, jobs=jobs, progress=advance)  # type: ignore[arg-type]
    for result in results:
        console.print(f"{result.config.name} {result.config.arch}", soft_wrap=True)
        said = f"failed: {result.error}" if result.path is None else f"{result.path} ({result.seconds:.1f} s)"
        style = "red" if result.path is None else None
        console.print(f"  {said}", style=style, soft_wrap=True)
    if any(result.path is None for result in results):
        raise typer.Exit(1)


@dispatcher.command()
def selftest(op: Operations = None, arch: Archs = None, source: SourceName = "native", jobs: Jobs = None) -> None:
    """Build the default kernels, run what can run here, and say what could not. Status 1 if anything failed."""
    with console.status("building and running"):
        rows = check.selftest(operations=op, archs=arch or KNOWN, source=source, jobs=jobs)  # type: ignore[arg-type]
    table = Table(box=None, pad_edge=False)
    for name in ("operation", "type", "arch", "built", "executed where", "max rel. error", "tolerance", "ms", "status"):
        table.add_column(name, overflow="fold")
    for row in rows:
        error = "" if row.max_relative_error is None else f"{row.max_relative_error:.2e}"
        time_ms = "" if row.time_ms is None else f"{row.time_ms:.4f}"
        status = Text(row.status, STYLES[row.status])
        built = "yes" if row.built else "no"
        table.add_row(
            row.operation, row.dtype, row.arch, built, row.where, error, f"{row.tolerance:.2e}", time_ms, status
        )
    console.print(table)
    for row in rows:
        if row.reason:
            text = f"{row.status}: {row.kernel} ({row.arch}): {row.reason}"
            console.print(text, soft_wrap=True)
    if any(row.status == check.FAIL for row in rows):
        raise typer.Exit(1)


def _defaults(op: list[str] | None, arch: list[str] | None) -> list[KernelConfig]:
    chosen = op or OPERATIONS
    configs = [config for a in arch or KNOWN for name in chosen for config in OPERATIONS[name].default_configs(a)]
    valid = [config for config in configs if config.is_valid()]
    if not valid:
        raise ValueError("; ".join(f"{config.name}: {why}" for config in configs for why in config.refusals()))
    return valid
