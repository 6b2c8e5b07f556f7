"""The command line, run in this process."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

import mxgemm_cli


@dataclass(frozen=True)
class Done:
    """What a command ended with, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def command(*arguments: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = mxgemm_cli.main([str(argument) for argument in arguments])
    return Done(code, out.getvalue(), err.getvalue())


def output(*arguments: object, code: int = 0) -> str:
    """Run a command that ends with ``code``, and return all that it wrote."""
    done = command(*arguments)
    assert done.code == code, done.text
    return done.text
