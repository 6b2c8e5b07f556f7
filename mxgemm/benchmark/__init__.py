"""Benchmarks that can be trusted: sizes, timing, floors, peers, comparison, pictures, A/B (docs/benchmarks.md)."""

from mxgemm.benchmark.session import Request, inputs, passed, run, write
from mxgemm.benchmark.shapes import LEADERBOARD, SETS, Shape, select, shape_set
from mxgemm.benchmark.spread import Effort, Spread, quartiles

__all__ = [
    "LEADERBOARD",
    "SETS",
    "Effort",
    "Request",
    "Shape",
    "Spread",
    "inputs",
    "passed",
    "quartiles",
    "run",
    "select",
    "shape_set",
    "write",
]
