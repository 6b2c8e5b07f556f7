"""``python -m mxgemm`` is the ``mxgemm`` command."""

from mxgemm.cli import main

if __name__ == "__main__":
    main()
