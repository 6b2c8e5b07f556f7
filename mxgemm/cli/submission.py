"""``mxgemm submission``: write the self-contained file for the leaderboard."""

from __future__ import annotations

from argparse import Namespace

from mxgemm import submission as generator
from mxgemm.cli.terminal import say


def run(options: Namespace) -> int:
    """Write the file that the command line names."""
    forms = options.form or tuple(generator.FORMS)
    path = generator.write(options.output, forms, arch=options.arch, force=options.force)
    say(f"wrote {path}")
    return 0
