"""Benchmarks that can be trusted: sizes, timing, floors, peers, comparison, pictures, A/B (docs/benchmarks.md)."""

from mxgemm.measure.document import Keeper, load
from mxgemm.measure.peers import PEERS
from mxgemm.measure.session import Request, inputs, passed, run, sizes_of
from mxgemm.measure.shapes import LEADERBOARD, SETS, Shape, select, shape_set
from mxgemm.measure.spread import Effort, Spread, quartiles

__all__ = [
    "LEADERBOARD",
    "PEERS",
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
    "sizes_of",
]
