"""One self-contained file for the GPU MODE leaderboard amd-mxfp4-mm, made from this library's kernels.

    mxgemm submission -o submission.py

See docs/submission.md.
"""

from mxgemm.submission.generate import FORMS, render, write

__all__ = ["FORMS", "render", "write"]
