"""The C compiler of the machine: which one, and how it is run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mxgemm.errors import BuildError

VARIABLE: Final = "CC"
NAMES: Final = ("cc", "gcc", "clang")
_SECONDS: Final = 300


def commands() -> Iterator[list[str] | str]:
    """Yield commands of compilers, and in words what cannot be run."""
    named = os.environ.get(VARIABLE, "")
    try:
        wanted = [shlex.split(named)] if named.strip() else [[name] for name in NAMES]
    except ValueError as error:
        yield f"{VARIABLE} is {named!r} ({error})"
        return
    for command in wanted:
        path = shutil.which(command[0])
        yield [path, *command[1:]] if path else f"no {command[0]} on PATH"


def identity(command: list[str]) -> tuple[list[str], int, int]:
    """Return what tells a compiler from another one, for the key of a build."""
    file = os.stat(os.path.realpath(command[0]))
    return command, file.st_size, file.st_mtime_ns


def run(command: list[str], folder: Path) -> None:
    """Run a program in a folder.

    Raises:
        BuildError: it cannot be run, takes too long or fails; the message has its output.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}: exit status {done.returncode}\n{done.stdout.strip()}")
