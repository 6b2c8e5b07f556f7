"""What the pictures share: colours that colour-blind readers tell apart, titles, and how files are written."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.measure.contender import BEFOREHAND

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F6000", "#000000")
"""Okabe and Ito's palette, its yellow replaced by brown: yellow on white does not print."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "h")
GREY: Final = "#666666"
MANY_DECADES: Final = 300
DRAWN_BY: Final = "mxgemm"
MARKS: Final = {
    ".png": files.Mark("a picture that names mxgemm as its software", rb"\A\x89PNG(?s:.)*Software\0mxgemm"),
    ".svg": files.Mark("a picture that names mxgemm as its creator", rb"\A<\?xml(?s:.)*<dc:title>mxgemm</dc:title>"),
}


def require_matplotlib() -> None:
    """Check that pictures can be drawn.

    Raises:
        ImportError: matplotlib is missing; the message says how to get it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("pictures need matplotlib: pip install 'mxgemm[bench]'")


def pyplot() -> Any:
    """Return ``matplotlib.pyplot``, drawing to files."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "svg.fonttype": "none",
            "svg.hashsalt": "mxgemm",
        }
    )
    return plt


def paths_of(folder: Path, name: str) -> list[Path]:
    """Return the files of a picture."""
    return [folder / f"{name}{suffix}" for suffix in MARKS]


def save(figure: Any, folder: Path, name: str, *, force: bool = False, dpi: int = 150) -> list[Path]:
    """Write a figure as PNG and SVG and close it.

    Args:
        figure: matplotlib's.
        folder: made if it is missing.
        name: of the files, without the suffix.
        force: replace pictures that mxgemm did not draw.
        dpi: of the PNG.

    Raises:
        FileError: a file cannot be written, or is there and is no picture of mxgemm's.
    """
    paths = paths_of(folder, name)
    for path in paths:
        # No date in the file itself, so that the same data gives the same bytes.
        metadata = {"Date": None, "Creator": DRAWN_BY} if path.suffix == ".svg" else {"Software": DRAWN_BY}
        image = io.BytesIO()
        figure.savefig(image, format=path.suffix[1:], dpi=dpi, metadata=metadata)
        files.save(path, image.getvalue(), MARKS[path.suffix], force=force)
    pyplot().close(figure)
    return paths


def headline(document: Mapping[str, Any], what: str) -> str:
    """Return a title: what, on which device, when."""
    return f"{what}\n{document['environment']['device']}, {document['date'][:10]}"


def contenders(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (kind, name) of everything that was timed, routes first, in order of appearance."""
    seen = dict.fromkeys((record["kind"], record["name"]) for record in records if record["device"])
    return sorted(seen, key=lambda pair: pair[0] != "route")


def look(kinds: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return marker and colours for each contender: routes filled, peers hollow."""
    looks = {}
    counts = {"route": 0, "peer": 0}
    for pair in kinds:
        i = counts[pair[0]]
        counts[pair[0]] += 1
        # Peers start at the other end, so that the first route and the first peer do not look alike.
        colour = COLOURS[i % len(COLOURS)] if pair[0] == "route" else COLOURS[-1 - i % len(COLOURS)]
        turn = i + i // len(COLOURS)  # the ninth gets the first colour again, and another marker
        marker = MARKERS[turn % len(MARKERS)] if pair[0] == "route" else MARKERS[-1 - turn % len(MARKERS)]
        looks[pair] = {
            "marker": marker,
            "color": colour,
            "markerfacecolor": colour if pair[0] == "route" else "white",
            "markeredgecolor": colour,
        }
    return looks


def labels(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Name contenders for a legend, and say of whom the time of quantising A is missing."""
    found = {}
    for record in records:
        pair = record["kind"], record["name"]
        name = f"mxgemm {pair[1]}" if pair[0] == "route" else pair[1]
        found[pair] = f"{name} (A comes quantised)" if BEFOREHAND in record["statement"] else name
    return found


def plain_log_labels(axis: Any, low: float, high: float) -> None:
    """Write plain numbers on a logarithmic axis: at 1, 2, 5, or at powers of ten alone where the axis is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    steps = (1, 2, 5) if high / low < MANY_DECADES else (1,)
    axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=30))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}" if value >= 1000 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
