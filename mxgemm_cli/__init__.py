"""The ``mxgemm`` command up to where it needs torch: what it takes, its help and version, and what it refuses.

Importing ``mxgemm`` imports torch, which takes seconds. So the command's own package stands beside it, needs Python
alone, and hands a line that is right to ``mxgemm.cli``.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final

USAGE: Final = 2
FAILURE: Final = 1
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, without the program's name; by default the process's own.

    Returns:
        0; 1 for what failed; 2 for what should have been said otherwise; 130 for an interrupt.
    """

    def run() -> int:
        from mxgemm_cli.parser import read

        options = read(sys.argv[1:] if arguments is None else arguments)
        from mxgemm.cli import app  # from here on there is torch

        try:
            return app.command(options.command)(options)
        except Exception as error:
            if interrupts:  # which has come out of torch's C code as another error
                raise KeyboardInterrupt from error
            status = FAILURE if app.is_failure(error) else USAGE if app.is_refusal(error) else None
            if status is None:  # a fault of the program keeps its traceback
                raise
            complain(str(error) or type(error).__name__)
            return status

    with _interrupts_noted() as interrupts:
        return _ended(run)


def refuse_early() -> None:
    """End the process here if its command line is answered without torch; otherwise say nothing."""

    def check() -> int:
        from mxgemm_cli.parser import read

        read(sys.argv[1:])
        return -1

    status = _ended(check)
    if status != -1:
        sys.exit(status)


def complain(text: object) -> None:
    """Write a line about an error."""
    if sys.stderr is not None:  # print() would take standard output for it
        with contextlib.suppress(OSError):  # there is no third place
            print(f"mxgemm: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Note Ctrl-C, where it is Python's to handle, beside raising KeyboardInterrupt."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(command: Callable[[], int]) -> int:
    """Run a command, write what is left, and return the status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without the letters of a path must not end a run
    try:
        try:
            status = command()
        except SystemExit as end:  # argparse's way of ending
            status = end.code if isinstance(end.code, int) else 0
        except KeyboardInterrupt:
            status = INTERRUPTED
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # nobody is left to be told
            complain(error)
        status = FAILURE
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own flush at its end
    return status
