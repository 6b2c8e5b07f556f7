"""What the pictures share: colours that colour-blind readers tell apart, titles, and how files are written."""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.measure.contender import BEFOREHAND
from mxgemm.measure.identity import Identity, identity, names

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F6000", "#000000")
"""Okabe and Ito's palette, its yellow replaced by brown: yellow on white does not print."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "h")
GREY: Final = "#666666"
MANY_DECADES: Final = 300
CLOSE: Final = 4
"""Four digits of M want a factor between ticks."""
DRAWN_BY: Final = "mxgemm"
MARK: Final = files.Mark("a picture that names mxgemm as its software", rb"\A\x89PNG(?s:.)*Software\0mxgemm")


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

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True})
    return plt


def path_of(folder: Path, name: str) -> Path:
    """Return the file of a picture."""
    return folder / f"{name}.png"


def save(figure: Any, folder: Path, name: str, *, force: bool = False, dpi: int = 150) -> Path:
    """Write a figure as PNG and close it.

    Args:
        figure: matplotlib's.
        folder: made if it is missing.
        name: of the file, without the suffix.
        force: replace a picture that mxgemm did not draw.
        dpi: pixels an inch.

    Raises:
        FileError: the file cannot be written, or is there and is no picture of mxgemm's.
    """
    path = path_of(folder, name)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=dpi, metadata={"Software": DRAWN_BY})
    files.save(path, image.getvalue(), MARK, force=force)
    pyplot().close(figure)
    return path


def headline(document: Mapping[str, Any], what: str) -> str:
    """Return a title: what, on which device, when."""
    return f"{what}\n{document['environment']['device']}, {document['date'][:10]}"


def formats(document: Mapping[str, Any]) -> str:
    """Return what A is rounded to, for a title."""
    return f"a_format {', '.join(document['a_formats'])}"


def contenders(records: Sequence[Mapping[str, Any]]) -> list[Identity]:
    """Return everyone who was timed, routes first, in order of appearance."""
    seen = dict.fromkeys(identity(record) for record in records if record["device"])
    return sorted(seen, key=lambda who: who.kind != "route")


def marker(index: int) -> str:
    """Return a marker of its own for every index: past the shapes, numerals."""
    return MARKERS[index] if index < len(MARKERS) else f"${index + 1}$"


def look(kinds: Sequence[Identity]) -> dict[Identity, dict[str, Any]]:
    """Return marker and colours for each contender: routes filled, peers hollow."""
    looks = {}
    counts = {"route": 0, "peer": 0}
    for who in kinds:
        i = counts[who.kind]
        counts[who.kind] += 1
        # Peers start at the other end, so that the first route and the first peer do not look alike.
        colour = COLOURS[i % len(COLOURS)] if who.kind == "route" else COLOURS[-1 - i % len(COLOURS)]
        turn = i + i // len(COLOURS)  # the ninth gets the first colour again, and another marker
        shape = MARKERS[turn % len(MARKERS)] if who.kind == "route" else MARKERS[-1 - turn % len(MARKERS)]
        looks[who] = {
            "marker": shape,
            "color": colour,
            "markerfacecolor": colour if who.kind == "route" else "white",
            "markeredgecolor": colour,
        }
    return looks


def labels(records: Sequence[Mapping[str, Any]]) -> dict[Identity, str]:
    """Name contenders for a legend, and say of whom the time of quantising A is missing."""
    beforehand = {identity(record) for record in records if BEFOREHAND in record["statement"]}
    found = {}
    for who, name in names(records).items():
        ours = f"mxgemm {name}" if who.kind == "route" else name
        found[who] = f"{ours} (A comes quantised)" if who in beforehand else ours
    return found


def m_axis(axis: Any, ms: Sequence[int]) -> None:
    """Make M the horizontal axis, a tick at each; where neighbours are close their numbers stand upright."""
    ticks = sorted(set(ms))
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(m) for m in ticks])
    axis.set_xticks([], minor=True)
    close = any(large < CLOSE * small for small, large in itertools.pairwise(ticks))
    axis.tick_params(axis="x", labelrotation=90 if close else 0)


def plain_log_labels(axis: Any, low: float, high: float) -> None:
    """Write plain numbers on a logarithmic axis: at 1, 2, 5, or at powers of ten alone where the axis is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    steps = (1, 2, 5) if high / low < MANY_DECADES else (1,)
    axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=30))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}" if value >= 1000 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
