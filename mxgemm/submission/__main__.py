"""``python -m mxgemm.submission -o submission.py``: the same as ``mxgemm submission``, without its dependencies."""

from __future__ import annotations

import argparse
import sys

from mxgemm.errors import RouteUnavailable
from mxgemm.submission.generate import FORMS, write


def main() -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m mxgemm.submission", description=__doc__)
    parser.add_argument("-o", "--output", default="submission.py")
    parser.add_argument("--form", action="append", choices=FORMS, help="carry this form; repeat; default: all")
    parser.add_argument(
        "--arch", default="gfx950", help="write down this machine's Triton launches, to judge the file there"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is no submission made by mxgemm")
    options = parser.parse_args()
    try:
        print(f"wrote {write(options.output, options.form or tuple(FORMS), arch=options.arch, force=options.force)}")
    except (ValueError, OSError, RouteUnavailable) as error:
        sys.exit(f"mxgemm.submission: {error}")


if __name__ == "__main__":
    main()
