"""Benchmarks that can be trusted: sizes, timing, floors, peers, comparison, pictures, A/B (docs/benchmarks.md)."""

from mxgemm.benchmark.document import Keeper, load
from mxgemm.benchmark.session import Request, inputs, passed, run
from mxgemm.benchmark.shapes import LEADERBOARD, SETS, Shape, select, shape_set
from mxgemm.benchmark.spread import Effort, Spread, quartiles

__all__ = [
    "LEADERBOARD",
    "SETS",
    "Effort",
    "Keeper",
    "Request",
    "Shape",
    "Spread",
    "inputs",
    "load",
    "passed",
    "quartiles",
    "run",
    "select",
    "shape_set",
]
