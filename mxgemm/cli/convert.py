"""``mxgemm convert``: a checkpoint in another format, a shard at a time."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace

from mxgemm import checkpoints
from mxgemm.checkpoints.statistics import summary
from mxgemm.cli.terminal import Progress, progress, say, say_wrapped


def run(options: Namespace) -> int:
    """Convert, and say what was read and made."""
    started = time.monotonic()
    try:
        source = checkpoints.open(
            options.source, format=options.source_format, a_format=options.a_format,
            scale_rounding=options.scale_rounding, scale_bias=int(options.scale_bias) if options.scale_bias else None,
        )  # fmt: skip
        say_wrapped(f"{source.path}: {summary(source)}", 2)
        with _Watch() as watch:
            made = checkpoints.convert(
                source, options.target, options.to, quantize=options.quantize, a_format=options.a_format,
                scale_rounding=options.scale_rounding, dtype=options.dtype, shard_bytes=options.shard_size,
                watch=watch.on,
            )  # fmt: skip
    except ImportError as error:
        raise ValueError(f"convert: {error}") from error
    say_wrapped(f"{made}: {summary(checkpoints.open(made))}", 2)
    say(f"wrote {options.target} in {time.monotonic() - started:.1f} s")
    return 0


class _Watch(contextlib.ExitStack):
    """Progress by files, with the name of the parameter in hand."""

    _shown: Progress | None = None
    _done = 0

    def on(self, what: str, done: int, count: int) -> None:
        """Show how far it is; how many files there will be is known from the first time on."""
        if self._shown is None:
            self._shown = self.enter_context(progress(count))
        if done > self._done:
            self._shown.done(what)
        else:
            self._shown.now(what)
        self._done = done
