"""How often each scale of a checkpoint occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from mxgemm.measure.plots import style
from mxgemm.mx.formats import E8M0_BIAS, E8M0_NAN

LEAST_WIDTH: Final = 12
"""Powers of two that the axis spans at least."""


def scales_figure(document: Mapping[str, Any]) -> Any | None:
    """Draw the histogram of scale bytes, of all MX weights together, on a logarithmic axis of counts.

    Args:
        document: of ``mxgemm inspect --json``.

    Returns:
        the figure, None where nothing was counted. NaN scales (byte 255) are named in the title, not drawn.
    """
    counts: Counter[int] = Counter()
    for about in document["parameters"]:
        counts.update({int(byte): count for byte, count in about.get("scales", {}).items()})
    nan = counts.pop(E8M0_NAN, 0)
    if not counts:
        return None
    plt = style.pyplot()
    figure, axis = plt.subplots(figsize=(7.5, 4.0), layout="constrained")
    powers = sorted(byte - E8M0_BIAS for byte in counts)
    axis.bar(powers, [counts[power + E8M0_BIAS] for power in powers], width=0.9, color=style.COLOURS[0])
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.5)  # one block is seen, and bars of nearly equal counts look so
    slack = max(0.0, (LEAST_WIDTH - (powers[-1] - powers[0])) / 2)
    axis.set_xlim(powers[0] - 1 - slack, powers[-1] + 1 + slack)
    axis.set_xlabel("log2 of the block's scale")
    axis.set_ylabel("blocks (log)")
    axis.grid(axis="y", color="0.88")
    total = sum(counts.values()) + nan
    more = f", {nan} of them NaN" if nan else ""
    axis.set_title(f"{document['name']}: scales of {total} blocks{more} ({document['format']})", fontsize=10)
    return figure
