"""Which command a name is, and which errors are the user's and which happen to a command."""

from __future__ import annotations

import dis
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Final

import torch

from mxgemm.dispatcher.errors import DispatcherError
from mxgemm.errors import BuildError, RouteUnavailable
from mxgemm.files import FileError
from mxgemm.hip.runtime import DriverError

_FAILURES: Final = (
    *(RouteUnavailable, BuildError, DispatcherError, DriverError),
    *(FileError, OSError, MemoryError, torch.OutOfMemoryError),
)


def command(name: str) -> Callable[[Namespace], int]:
    """Return what runs a command and returns its status."""
    run: Callable[[Namespace], int] = import_module(f"mxgemm.cli.{name}").run
    return run


def is_failure(error: Exception) -> bool:
    """Say whether this may happen to a command that was asked for rightly."""
    return isinstance(error, _FAILURES)


def is_refusal(error: Exception) -> bool:
    """Say whether a raise statement of mxgemm refused an argument here: what Python raises inside mxgemm is a fault."""
    if not isinstance(error, (TypeError, ValueError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code, module = trace.tb_frame.f_code.co_code, trace.tb_frame.f_globals.get("__name__", "")
    return dis.opname[code[trace.tb_lasti]] == "RAISE_VARARGS" and module.partition(".")[0] == "mxgemm"
