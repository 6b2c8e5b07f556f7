"""Tiles of the published shapes and the dies of an MI355X; a submission carries what this reads as literals."""

from typing import Any

from mxgemm.device import KNOWN_MACHINES
from mxgemm.submission.tiles import tiles_of_table

XCDS: int = KNOWN_MACHINES["gfx950"].xcds
TABLE: dict[tuple[int, int, int], tuple[Any, ...]] = tiles_of_table()
