"""The ``-o`` of the scripts that measure: a file that is asked about before the work, and kept whatever happens to it.

    output.add_options(parser)
    keep = output.json_file(parser.parse_args(), "mxgemm-spans")
    ...
    keep(document)

The script ends at the second line if that file will not do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mxgemm import files
from mxgemm.files import FileError


def add_options(parser: argparse.ArgumentParser, default: Path | None = None) -> None:
    """Give a parser ``-o`` and ``--force``."""
    parser.add_argument("-o", "--output", type=Path, default=default, help="write the results here")
    parser.add_argument("--force", action="store_true", help="replace a file that this script did not write")


def json_file(arguments: argparse.Namespace, kind: str) -> Callable[[dict[str, Any]], None]:
    """Check the file that was named and return what writes a document of ``kind`` there; without one, nothing."""
    keep = text_file(arguments.output, files.json_mark(kind), force=arguments.force)
    return lambda document: keep(files.json_text(document))


def text_file(path: Path | None, mark: files.Mark, *, force: bool) -> Callable[[str], None]:
    """Check a file and return what writes text there; without a path, nothing."""
    if path is None:
        return lambda text: None
    _or_exit(lambda: files.check_writable(path, mark, force=force))
    return lambda text: _or_exit(lambda: files.save(path, text, mark, force=force))


def _or_exit(action: Callable[[], object]) -> None:
    try:
        action()
    except FileError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
