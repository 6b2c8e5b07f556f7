"""Pictures of a benchmark document, PNG and SVG; they need matplotlib (``pip install 'mxgemm[bench]'``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure.plots import style
from mxgemm.measure.plots.roofline import draw_roofline
from mxgemm.measure.plots.route_map import Plane, draw_route_map
from mxgemm.measure.plots.style import require_matplotlib
from mxgemm.measure.plots.times import draw_times

_PLANES: Final[tuple[Plane, ...]] = ("mk", "mn")


def draw(document: Mapping[str, Any], folder: Path, prefix: str = "bench", *, force: bool = False) -> list[Path]:
    """Draw time per size, the roofline, and the route maps of the document's architecture.

    Args:
        document: of :func:`mxgemm.measure.run`.
        folder: where to write.
        prefix: file names are ``<prefix>_time.png`` and so on.
        force: replace files that mxgemm did not draw.

    Returns:
        the files written.
    """
    require_matplotlib()
    paths = draw_times(document, folder, f"{prefix}_time", force=force)
    paths += draw_roofline(document, folder, f"{prefix}_roofline", force=force)
    arch = document["environment"]["arch"]
    if arch in KNOWN_MACHINES:
        paths += draw_maps(arch, folder, a_format=document["a_format"], prepared=document["prepared"], force=force)
    return paths


def check_writable(folder: Path, arch: str, prefix: str = "bench", *, force: bool = False) -> None:
    """Find out before a run whether :func:`draw` will be able to write its pictures.

    Raises:
        ImportError: matplotlib is missing.
        FileError: a file cannot be written, or is there and is no picture of mxgemm's.
    """
    require_matplotlib()
    maps = [_map_name(arch, plane) for plane in _PLANES] if arch in KNOWN_MACHINES else []
    for name in (f"{prefix}_time", f"{prefix}_roofline", *maps):
        for path in style.paths_of(folder, name):
            files.check_writable(path, style.MARKS[path.suffix], force=force)


def draw_maps(
    arch: str, folder: Path, *, a_format: Any = "e2m1", prepared: bool = True, force: bool = False
) -> list[Path]:
    """Draw both route maps of an architecture, ``routes_<arch>_mk`` and ``routes_<arch>_mn``."""
    asked: dict[str, Any] = {"a_format": a_format, "prepared": prepared, "force": force}
    return [
        path for plane in _PLANES for path in draw_route_map(arch, folder, _map_name(arch, plane), plane=plane, **asked)
    ]


def _map_name(arch: str, plane: Plane) -> str:
    return f"routes_{arch}_{plane}"


__all__ = ["check_writable", "draw", "draw_maps", "draw_roofline", "draw_route_map", "draw_times", "require_matplotlib"]
