"""``python -m mxgemm`` is the ``mxgemm`` command."""

import sys

from mxgemm_cli import main

if __name__ == "__main__":
    sys.exit(main())
