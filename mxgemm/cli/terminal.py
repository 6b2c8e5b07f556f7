"""What commands write: lines and tables on standard output, progress on standard error.

Plain text, of the terminal's width or ``COLUMNS``, of 80 columns in a pipe. Where rich is installed and somebody looks,
verdicts have colours and progress is a bar. Texts are shown as they are: no markup.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from mxgemm.measure.layout import Table

_GOOD: Final = ("pass", "PASS", "faster", "available")
_ODD: Final = ("gone", "missing", "SMOKE-ONLY", "NOT RUN")
_BAD: Final = ("FAIL", "slower", "wrong now", "raises now")
_COLOURS: Final = {**dict.fromkeys(_GOOD, "green"), **dict.fromkeys(_ODD, "yellow"), **dict.fromkeys(_BAD, "red")}
_SILENCE: Final = 20.0
"""Seconds after which a pipe is told what is being done, where nothing has been finished."""


def width() -> int:
    """Return how many columns a line of a table may have."""
    return max(shutil.get_terminal_size((80, 24)).columns, 20)


def say(line: str = "") -> None:
    """Print a line as it is, however long."""
    _write([line])


def say_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    *,
    left: Sequence[str] = (),
    wrapped: Sequence[str] = (),
    shared: Sequence[str] = (),
) -> None:
    """Print a table that is no wider than :func:`width`, below a title; ``layout.Table`` says what the others are."""
    if title:
        say_wrapped(title)
    for line in Table(header, rows, left, wrapped, shared).lines(width()):
        _write(line)


def say_wrapped(line: str, indent: int = 0) -> None:
    """Print a line, broken at spaces where it is wider than :func:`width`, its further lines indented."""
    wrapped = textwrap.wrap(
        line, width(), subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
    for part in wrapped or [""]:
        say(part)


def _write(pieces: Sequence[str]) -> None:
    """Print a line made of pieces; those that are verdicts get their colours on a terminal."""
    line = "".join(pieces).rstrip()
    coloured = any(piece.strip() in _COLOURS for piece in pieces) and _is_terminal(sys.stdout)
    try:
        if coloured and _with_rich():
            from rich.console import Console
            from rich.text import Text

            parts = [(piece, _COLOURS.get(piece.strip(), "")) for piece in pieces]
            Console(highlight=False, soft_wrap=True).print(Text.assemble(*parts))
        elif sys.stdout is not None:
            print(line)
    except BrokenPipeError:  # whoever read it has seen enough
        raise SystemExit(1) from None


class Progress(Protocol):
    """How far a command is."""

    def now(self, what: str) -> None:
        """Say what is being done."""

    def done(self, what: str) -> None:
        """Say what has been finished: one of the steps."""


@contextlib.contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show on standard error how far a command of ``total`` steps is: a bar on a terminal, else a line a step."""
    if not _is_terminal(sys.stderr):
        yield _Lines(total)
    elif _with_rich():
        with _bar(total) as bar:
            yield bar
    else:
        rewritten = _OneLine(total)
        try:
            yield rewritten
        finally:
            rewritten.clear()


class _Lines:
    def __init__(self, total: int) -> None:
        self._total, self._count, self._last = total, 0, time.monotonic()

    def now(self, what: str) -> None:
        if time.monotonic() - self._last > _SILENCE:
            self._print(f"{what} ...")

    def done(self, what: str) -> None:
        self._count += 1
        self._print(what)

    def _print(self, what: str) -> None:
        self._last = time.monotonic()
        if sys.stderr is not None:
            print(f"[{self._count}/{self._total}] {what}", file=sys.stderr, flush=True)


class _OneLine:
    """One line of a terminal, written over."""

    def __init__(self, total: int) -> None:
        self._total, self._count = total, 0

    def now(self, what: str) -> None:
        line = f"[{self._count}/{self._total}] {what}"
        print(f"\r\x1b[K{line[: width() - 1]}", end="", file=sys.stderr, flush=True)

    def done(self, what: str) -> None:
        self._count += 1
        self.now(what)

    def clear(self) -> None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Bar(SpinnerColumn(), *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        class Shown:
            def now(self, what: str) -> None:
                bar.update(task, description=what)

            def done(self, what: str) -> None:
                bar.update(task, description=what, advance=1)

        yield Shown()


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def _with_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True
