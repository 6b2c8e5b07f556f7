"""``mxgemm build``: build HIP kernels ahead of time."""

from __future__ import annotations

from argparse import Namespace

from mxgemm import build_cache
from mxgemm.ahead import build_ahead
from mxgemm.cli.sizes import sizes_of
from mxgemm.cli.terminal import say


def run(options: Namespace) -> int:
    """Build the kernels of each size, and say where they are."""
    for built in build_ahead(sizes_of(options.shape), options.arch):
        say(f"{built.source} {built.what or 'for every shape'}: {built.nbytes} bytes, {built.seconds:.1f} s")
    say(f"in {build_cache.folder()}")
    return 0
