"""``mxgemm explain``: which route a size takes, and why."""

from __future__ import annotations

from argparse import Namespace

from mxgemm.cli.terminal import say, say_wrapped
from mxgemm.routing.explain import explain as explain_shape

_INDENT = {2: 12, 4: 6}
"""Where the further lines of an answer's line begin: below its value, or below the reason."""


def run(options: Namespace) -> int:
    """Print the router's answer for each size."""
    for number, (m, n, k) in enumerate(options.shape):
        answer = explain_shape(
            m, n, k, device=options.device, a_format=options.a_format, prepared=options.prepared,
            route=options.route, tables=options.tables,
        )  # fmt: skip
        if number:
            say()
        for line in str(answer).splitlines():
            say_wrapped(line, _INDENT.get(len(line) - len(line.lstrip()), 0))
    return 0
