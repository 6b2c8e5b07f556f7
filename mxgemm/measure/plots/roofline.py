"""Roofline: rate over arithmetic intensity, under the ceilings that were measured in the same run.

A marker is a size, or with many sizes a weight, along whose line M grows; a colour is a contender. Everyone is drawn
at the bytes of its own operands: who multiplies a bf16 weight moves almost four times those of MXFP4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mxgemm.measure.identity import Identity, identity
from mxgemm.measure.plots import style

MOST_SIZES: Final = 8
"""With more there is a marker for each weight."""
_Records = Sequence[Mapping[str, Any]]


def roofline_figure(document: Mapping[str, Any]) -> Any | None:
    """Draw every timed result of a run under the measured bandwidth and rates; None where nothing was timed."""
    records = [record for record in document["results"] if record["device"]]
    if not records:
        return None
    plt = style.pyplot()
    kinds, groups = style.contenders(records), _groups(records)
    lines = -(-(len(kinds) + len(groups)) // 3)
    figure, axis = plt.subplots(figsize=(9.0, 5.6 + 0.23 * lines), layout="constrained")
    _draw_roof(axis, document["roof"], records)
    looks = _looks(kinds)
    for i, members in enumerate(groups.values()):
        for who in kinds:
            points = sorted(
                (record["m"], record["flops"] / record["traffic_bytes"], record["tflop_per_s"])
                for record in members
                if identity(record) == who
            )
            if points:
                _, x, y = zip(*points, strict=True)
                axis.plot(x, y, marker=style.marker(i), markersize=6.5, linewidth=0.8, alpha=0.9, **looks[who])
    axis.grid(which="major", color="0.88")
    axis.set_xlabel("flops per byte of the contender's own operands and result (log)")
    axis.set_ylabel("TFLOP/s by device time (log)")
    figure.suptitle(style.headline(document, f"Roofline, {style.formats(document)}"))
    _legend(figure, groups, looks, style.labels(records))
    return figure


def _groups(records: _Records) -> dict[str, list[Mapping[str, Any]]]:
    """Return who shares a marker, by what the legend says of it."""
    few = len({(record["m"], record["n"], record["k"]) for record in records}) <= MOST_SIZES
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        weight = f"N {record['n']}, K {record['k']}"
        found.setdefault(f"M {record['m']}, {weight}" if few else weight, []).append(record)
    return found if few else {f"{weight}, {_range(members)}": members for weight, members in found.items()}


def _range(members: _Records) -> str:
    ms = [record["m"] for record in members]
    return f"M {min(ms)} to {max(ms)}"


def _looks(kinds: Sequence[Identity]) -> dict[Identity, dict[str, Any]]:
    """Return colours alone: the marker is the size's here."""
    looks = style.look(kinds)
    return {who: {name: value for name, value in look.items() if name != "marker"} for who, look in looks.items()}


def _draw_roof(axis: Any, roof: Mapping[str, Any], records: _Records) -> None:
    bandwidth, best = roof["bandwidth_gb_per_s"] / 1e3, roof["rate_tflop_per_s"]  # TB/s is TFLOP/s at 1 flop a byte
    ridge = best / bandwidth
    intensity = [record["flops"] / record["traffic_bytes"] for record in records]
    low, high = min(*intensity, ridge) / 2, max(*intensity, ridge) * 3
    axis.plot([low, ridge, high], [low * bandwidth, best, best], color="black", linewidth=1.8)
    for form, rate in roof["tflop_per_s"].items():
        if rate < best:  # the best one is the roof
            axis.plot([rate / bandwidth, high], [rate, rate], color=style.GREY, linewidth=1, linestyle="--")
        axis.text(  # beside the axes: inside, points lie on it where a kernel is good
            1.01, rate, f"{form} GEMM {rate:.4g}", transform=axis.get_yaxis_transform(),
            ha="left", va="center", color=style.GREY, fontsize=9,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(low, high)
    slowest = min(record["tflop_per_s"] for record in records)
    axis.set_ylim(min(slowest, low * bandwidth) / 1.6, best * 2.2)
    axis.text(
        0.02, 0.97, f"memory {roof['bandwidth_gb_per_s']:.4g} GB/s (the slope)",
        transform=axis.transAxes, ha="left", va="top", color=style.GREY, fontsize=9,
    )  # fmt: skip
    style.plain_log_labels(axis.xaxis, *axis.get_xlim())
    style.plain_log_labels(axis.yaxis, *axis.get_ylim())


def _legend(
    figure: Any,
    groups: Mapping[str, _Records],
    looks: Mapping[Identity, Mapping[str, Any]],
    labels: Mapping[Identity, str],
) -> None:
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"linestyle": "", "color": style.GREY, "markersize": 6.5}
    handles = [Line2D([], [], marker="o", linestyle="", label=labels[who], **look) for who, look in looks.items()]
    handles += [Line2D([], [], marker=style.marker(i), label=label, **grey) for i, label in enumerate(groups)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
