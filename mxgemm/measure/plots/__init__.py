"""Pictures of a benchmark document, PNG; they need matplotlib (``pip install 'mxgemm[bench]'``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure.plots import style
from mxgemm.measure.plots.ratio import ratio_figure
from mxgemm.measure.plots.roofline import roofline_figure
from mxgemm.measure.plots.route_map import Plane, route_map_figure
from mxgemm.measure.plots.scales import scales_figure
from mxgemm.measure.plots.style import require_matplotlib
from mxgemm.measure.plots.times import times_figure

_PICTURES: Final = ("time", "roofline", "ratio")
_PLANES: Final[tuple[Plane, ...]] = ("mk", "mn")


def draw(
    document: Mapping[str, Any], folder: Path, prefix: str = "bench", *, peer: str = "torch_mm", force: bool = False
) -> list[Path]:
    """Draw time per size, the roofline, ratios to a peer over M, and the route maps of the architecture.

    A picture that would show nothing is not drawn: ratios without three M of one weight, a map of one route.

    Args:
        document: of :func:`mxgemm.measure.run`.
        folder: where to write.
        prefix: file names are ``<prefix>_time.png`` and so on.
        peer: what ratios are taken to.
        force: replace files that mxgemm did not draw.

    Returns:
        the files written.
    """
    require_matplotlib()
    paths = []
    figures = times_figure(document), roofline_figure(document), ratio_figure(document, peer)
    for what, figure in zip(_PICTURES, figures, strict=True):
        if figure is not None:
            paths.append(style.save(figure, folder, f"{prefix}_{what}", force=force))
    arch = document["environment"]["arch"]
    if arch in KNOWN_MACHINES:
        a_format, prepared = document["a_formats"][0], document["forms"][0] != "raw"
        paths += draw_maps(arch, folder, a_format=a_format, prepared=prepared, force=force)
    return paths


def check_writable(folder: Path, arch: str, prefix: str = "bench", *, force: bool = False) -> None:
    """Find out before a run whether :func:`draw` will be able to write its pictures.

    Raises:
        ImportError: matplotlib is missing.
        FileError: a file cannot be written, or is there and is no picture of mxgemm's.
    """
    require_matplotlib()
    maps = [_map_name(arch, plane) for plane in _PLANES] if arch in KNOWN_MACHINES else []
    for name in (*(f"{prefix}_{what}" for what in _PICTURES), *maps):
        files.check_writable(style.path_of(folder, name), style.MARK, force=force)


def draw_maps(
    arch: str, folder: Path, *, a_format: Any = "e2m1", prepared: bool = True, force: bool = False
) -> list[Path]:
    """Draw the route maps of an architecture, ``routes_<arch>_mk`` and ``routes_<arch>_mn``.

    A map is left out where the router takes one route at every size of it: the sentence "always that one" says more.
    """
    require_matplotlib()
    paths = []
    for plane in _PLANES:
        figure = route_map_figure(arch, plane=plane, a_format=a_format, prepared=prepared)
        if figure is not None:
            paths.append(style.save(figure, folder, _map_name(arch, plane), force=force))
    return paths


def draw_scales(document: Mapping[str, Any], folder: Path, prefix: str, *, force: bool = False) -> Path | None:
    """Draw the scales of a checkpoint, ``<prefix>_scales``; None where the document has none."""
    figure = scales_figure(document)
    return None if figure is None else style.save(figure, folder, f"{prefix}_scales", force=force)


def check_scales_writable(folder: Path, prefix: str, *, force: bool = False) -> None:
    """Find out whether :func:`draw_scales` will be able to write.

    Raises:
        ImportError: matplotlib is missing.
        FileError: the file cannot be written, or is there and is no picture of mxgemm's.
    """
    require_matplotlib()
    files.check_writable(style.path_of(folder, f"{prefix}_scales"), style.MARK, force=force)


def _map_name(arch: str, plane: Plane) -> str:
    return f"routes_{arch}_{plane}"


__all__ = [
    "check_scales_writable",
    "check_writable",
    "draw",
    "draw_maps",
    "draw_scales",
    "ratio_figure",
    "require_matplotlib",
    "roofline_figure",
    "route_map_figure",
    "scales_figure",
    "times_figure",
]
