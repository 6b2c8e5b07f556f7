"""Tiles of the published shapes; a submission carries what this reads as literals."""

from typing import Any

from mxgemm.submission.tiles import tiles_of_table

TABLE: dict[tuple[int, int, int], tuple[Any, ...]] = tiles_of_table()
