"""Pictures of a benchmark document, PNG and SVG; they need matplotlib (``pip install 'mxgemm[bench]'``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxgemm.benchmark.plots.roofline import draw_roofline
from mxgemm.benchmark.plots.route_map import Plane, draw_route_map
from mxgemm.benchmark.plots.style import require_matplotlib
from mxgemm.benchmark.plots.times import draw_times
from mxgemm.device import KNOWN_MACHINES


def draw(document: Mapping[str, Any], folder: Path, prefix: str = "bench") -> list[Path]:
    """Draw time per size, the roofline, and the route maps of the document's architecture.

    Args:
        document: of :func:`mxgemm.benchmark.run`.
        folder: where to write.
        prefix: file names are ``<prefix>_time.png`` and so on.

    Returns:
        the files written.
    """
    require_matplotlib()
    paths = draw_times(document, folder, f"{prefix}_time")
    paths += draw_roofline(document, folder, f"{prefix}_roofline")
    arch = document["environment"]["arch"]
    if arch in KNOWN_MACHINES:
        paths += draw_maps(arch, folder, a_format=document["a_format"], prepared=document["prepared"])
    return paths


def draw_maps(arch: str, folder: Path, *, a_format: Any = "e2m1", prepared: bool = True) -> list[Path]:
    """Draw both route maps of an architecture, ``routes_<arch>_mk`` and ``routes_<arch>_mn``."""
    planes: tuple[Plane, ...] = ("mk", "mn")
    asked: dict[str, Any] = {"a_format": a_format, "prepared": prepared}
    return [
        path
        for plane in planes
        for path in draw_route_map(arch, folder, f"routes_{arch}_{plane}", plane=plane, **asked)
    ]


__all__ = ["draw", "draw_maps", "draw_roofline", "draw_route_map", "draw_times", "require_matplotlib"]
