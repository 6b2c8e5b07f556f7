"""Time as a share of a peer's over M, a panel for each route and a line for each weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mxgemm.measure.identity import Identity, identity
from mxgemm.measure.plots import style

LEAST_POINTS: Final = 3
"""M of one weight that make a line."""
_TICKS: Final = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)
_Line = list[tuple[int, float]]


def ratio_figure(document: Mapping[str, Any], peer: str = "torch_mm") -> Any | None:
    """Draw the routes of a run against a peer of the same run.

    Args:
        document: of a run.
        peer: its name.

    Returns:
        the figure, None where no route and that peer were timed at :data:`LEAST_POINTS` M of one weight.
    """
    records = [record for record in document["results"] if record["device"]]
    lines = _lines(records, peer)
    if not lines:
        return None
    plt = style.pyplot()
    weights = sorted({weight for _, weight in lines}, key=lambda size: size[0] * size[1])
    order = list(dict.fromkeys(who.name for who, _ in lines))
    panels = sorted(dict.fromkeys(who for who, _ in lines), key=lambda who: order.index(who.name))
    named = style.labels(records)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    across = min(columns + 1, len(weights))
    legend = 0.25 * -(-len(weights) // across)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.6 + 3.9 * columns, 1.1 + 3.0 * rows + legend), sharex=True, sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    handles = {}
    for axis, who in zip(axes.flat, panels, strict=False):
        axis.axhline(1.0, color="black", linewidth=1)
        for i, (n, k) in enumerate(weights):
            line = lines.get((who, (n, k)))
            if line:
                colour = style.COLOURS[i % len(style.COLOURS)]
                (handles[n, k],) = axis.plot(
                    *zip(*line, strict=True), marker=style.marker(i), color=colour, markersize=4.5, linewidth=1.3
                )
        axis.set_title(named[who], fontsize=10)
        axis.grid(which="major", color="0.88")
        style.m_axis(axis, [m for line in lines.values() for m, _ in line])
    first = axes.flat[0]
    first.set_yscale("log")
    low, high = first.get_ylim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    first.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    first.set_yticks([], minor=True)
    for column in range(columns):
        below = [axis for axis in axes[:, column] if axis.get_visible()][-1]
        below.set_xlabel("M")
        below.tick_params(axis="x", labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"time / {peer} (log)")
    figure.suptitle(style.headline(document, f"Device time as a share of {peer}'s, below 1 is faster"))
    figure.legend(
        [handles[weight] for weight in weights], [f"N {n}, K {k}" for n, k in weights],
        loc="outside lower center", ncols=across, frameon=False,
    )  # fmt: skip
    return figure


def _lines(records: list[Mapping[str, Any]], peer: str) -> dict[tuple[Identity, tuple[int, int]], _Line]:
    theirs = {
        (record["m"], record["n"], record["k"]): record["device"]["us"]
        for record in records
        if (record["kind"], record["name"]) == ("peer", peer)
    }
    found: dict[tuple[Identity, tuple[int, int]], _Line] = {}
    for record in records:
        m, n, k = record["m"], record["n"], record["k"]
        if record["kind"] == "route" and (m, n, k) in theirs:
            ratio = record["device"]["us"] / theirs[m, n, k]
            found.setdefault((identity(record), (n, k)), []).append((m, ratio))
    return {key: sorted(line) for key, line in found.items() if len(line) >= LEAST_POINTS}
