"""The tiles that the shipped routing table has for the leaderboard's shapes, as data for a submission."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from mxgemm.device import KNOWN_MACHINES
from mxgemm.routing import tables
from mxgemm.triton.tile import TileConfig

ROUTE = "a16wfp4"


def tiles_of_table() -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """Return (m, n, k) -> the fields of the tile, for gfx950's rows that come from our own kernels' machine code."""
    (table,) = tables.shipped("gfx950")
    rows = sorted(
        (row for row in table.rows if row.route == ROUTE and row.source == "isa"), key=lambda row: (row.m, row.n, row.k)
    )
    return {(row.m, row.n, row.k): astuple(TileConfig.from_mapping(row.config)) for row in rows}


def render() -> str:
    """Return the tiles as the text of a module."""
    rows = "\n".join(f"    {shape}: {tile},".replace("'", '"') for shape, tile in tiles_of_table().items())
    return f'''"""Tiles of the published shapes (m, n, k), from routing_tables/gfx950.json, and the dies of an MI355X.

Tiles are predicted from machine code, not measured on an MI355X. The fields are those of Tile.
"""

XCDS = {KNOWN_MACHINES["gfx950"].xcds}
TABLE = {{
{rows}
}}
'''
