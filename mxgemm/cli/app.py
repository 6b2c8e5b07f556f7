"""From a line that has been read to its command, and the one place where an error becomes a status."""

from __future__ import annotations

import dis
from argparse import Namespace
from importlib import import_module
from typing import Final

import torch

from mxgemm.dispatcher.errors import BuildError, DispatcherError
from mxgemm.errors import RouteUnavailable
from mxgemm.files import FileError
from mxgemm.hip.compilers import BuildError as HipBuildError
from mxgemm.hip.runtime import DriverError
from mxgemm_cli import FAILURE, USAGE, complain

_FAILURES: Final = (
    *(RouteUnavailable, BuildError, HipBuildError, DispatcherError, DriverError),
    *(FileError, OSError, MemoryError, torch.OutOfMemoryError),
)
"""What may happen to a command that was asked for rightly."""


def run(options: Namespace) -> int:
    """Run a command and return its status: 2 for what the user should have said otherwise, 1 for what failed.

    Raises:
        Exception: a fault of the program, which keeps its traceback.
    """
    try:
        status: int = import_module(f"mxgemm.cli.{options.command}").run(options)
    except Exception as error:
        found = _status(error)
        if found is None:
            raise
        complain(str(error) or type(error).__name__)
        return found
    return status


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
