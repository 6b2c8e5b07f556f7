"""What the commands share: the application, its console, option types, and how an error ends."""

from __future__ import annotations

import dis
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeVar

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from mxgemm._version import __version__
from mxgemm.arguments import one_of
from mxgemm.device import device_of
from mxgemm.dispatcher.errors import DispatcherError
from mxgemm.errors import BuildError, RouteUnavailable
from mxgemm.files import FileError
from mxgemm.hip.runtime import DriverError
from mxgemm.mx.formats import ACTIVATION_FORMATS
from mxgemm.routes import ROUTES

T = TypeVar("T")

_FAILURES: Final = (
    *(RouteUnavailable, BuildError, DispatcherError, DriverError),
    *(FileError, OSError, MemoryError, torch.OutOfMemoryError),
)
"""What may happen to a command that was asked for rightly."""
USAGE: Final = 2
FAILURE: Final = 1
INTERRUPTED: Final = 130


class _Commands(TyperGroup):
    """The commands, and the one place where an error becomes a line of text and an exit status."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command: status 2 for what the user should have said otherwise, 1 for what failed."""
        try:
            return super().main(*args, **kwargs)
        except Exception as error:
            status = _status(error)
            if status is None:
                raise
            errors.print(f"mxgemm: {str(error) or type(error).__name__}", soft_wrap=True)
            sys.exit(status)

    def invoke(self, ctx: Any) -> Any:
        """Run the command of a parsed line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(INTERRUPTED) from interrupt


# Texts are shown as they are: an argument or a compiler may say [/x] or :x:, and help says mxgemm[bench].
app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, help="Block-scaled (microscaling) GEMM.",
    rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


def _width() -> int | None:
    """Return the console's width, None for what rich finds: ``COLUMNS`` or the terminal's.

    What goes to a file or a pipe has no terminal's width to fit in: rich would cut every cell down to 80 columns.
    """
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch("[1-9][0-9]{0,4}", columns):
        return None
    return None if not columns and sys.stdout is not None and sys.stdout.isatty() else 200


_PLAIN: Final[dict[str, Any]] = {"markup": False, "emoji": False, "highlight": False}
console = Console(width=_width(), **_PLAIN)
errors = Console(stderr=True, **_PLAIN)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without the letters of a path must not end a run
    try:
        app()
    finally:
        _flush()


def _flush() -> None:
    """Write what is left; where that fails, it has been told, or nobody is there to read it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own flush at its end


def _status(error: Exception) -> int | None:
    """Return the exit status of an error that the user can do something about, None for a fault of the program."""
    if isinstance(error, _FAILURES):
        return FAILURE
    return USAGE if isinstance(error, (TypeError, ValueError)) and _is_refusal(error) else None


def _is_refusal(error: Exception) -> bool:
    """Say whether a raise statement of mxgemm raised this: what Python raises inside mxgemm is a fault."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code, module = trace.tb_frame.f_code.co_code, trace.tb_frame.f_globals.get("__name__", "")
    return dis.opname[code[trace.tb_lasti]] == "RAISE_VARARGS" and module.partition(".")[0] == "mxgemm"


def checked(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a reader of an option's text whose refusal is shown with the option's name."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error).partition(": ")[2]) from error

    return parse


def choice(name: str, choices: Iterable[str]) -> Callable[[str], str]:
    """Return a reader of an option that takes one of some names."""
    return checked(lambda text: one_of(name, text, choices))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds: got {text!r}, want a finite number of at least 0")
    return seconds


Device = Annotated[
    torch.device | None,
    typer.Option(
        parser=checked(device_of),
        metavar="DEVICE",
        help='torch device ("cpu", "cuda:0"); default: the GPU if there is one',
    ),
]
AFormat = Annotated[
    str,
    typer.Option(
        parser=choice("a_format", ACTIVATION_FORMATS), metavar="FORMAT", help="what A is rounded to: e2m1, e4m3 or bf16"
    ),
]
route_named = choice("route", ROUTES)
Force = Annotated[
    bool, typer.Option("--force", help="replace an output file that this command did not write (an empty one is free)")
]
RouteName = Annotated[
    str | None, typer.Option(parser=route_named, metavar="ROUTE", help="force a route instead of asking the router")
]
seconds_of = checked(_seconds)


def progress_bar(counted: bool) -> Progress:
    """Return a progress display that goes when it is done; ``counted``: the number of steps is known."""
    count = (BarColumn(), MofNCompleteColumn()) if counted else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *count, TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _version(value: bool) -> None:
    if value:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    del version
