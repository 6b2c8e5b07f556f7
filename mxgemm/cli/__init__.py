"""The command line, a file a command; one is added by importing its file here."""

import sys

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:
    sys.exit(f"the mxgemm command needs typer and rich: pip install 'mxgemm[cli]' ({error})")

from mxgemm.cli import bench, build, dispatcher, doctor, explain, submission, tune  # noqa: F401  # each registers its command
from mxgemm.cli.app import app, main

__all__ = ["app", "main"]
