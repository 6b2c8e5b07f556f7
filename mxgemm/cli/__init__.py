"""The command line, ``mxgemm bench | explain | doctor | tune``: a file each, added by importing it here."""

import sys

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:
    sys.exit(f"the mxgemm command needs typer and rich: pip install 'mxgemm[cli]' ({error})")

from mxgemm.cli import bench, doctor, explain, tune  # noqa: F401  # each registers its command
from mxgemm.cli.app import app, main

__all__ = ["app", "main"]
