"""Time per size: a row of dots for each size, or for many sizes a panel for each weight with M along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mxgemm.measure.identity import Identity, identity
from mxgemm.measure.plots import style

MOST_ROWS: Final = 12
_FLOOR_LINE: Final[dict[str, Any]] = {"color": "black", "linewidth": 2.2, "linestyle": "--"}
"""Among the lines of contenders, one of which may be black too."""


def times_figure(document: Mapping[str, Any]) -> Any | None:
    """Draw what was timed of a run against the floor; None where nothing was timed."""
    records = [record for record in document["results"] if record["device"]]
    if not records:
        return None
    sizes = list(dict.fromkeys(_size(record) for record in records))
    return _rows(document, records, sizes) if len(sizes) <= MOST_ROWS else _panels(document, records)


def _rows(
    document: Mapping[str, Any], records: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[int, int, int]]
) -> Any:
    plt = style.pyplot()
    kinds = style.contenders(records)
    looks = style.look(kinds)
    metrics = ["device", *(["eager"] if all(record["eager"] for record in records) else [])]
    height = 1.9 + len(sizes) * max(0.5, 0.13 * len(kinds)) + 0.24 * ((len(kinds) + 4) // 4)
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(5.4 * len(metrics) + 1.6, height), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, metric in zip(axes[0], metrics, strict=True):
        for row in range(0, len(sizes), 2):
            axis.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
        for row, size in enumerate(sizes):
            here = [record for record in records if _size(record) == size]
            floor = here[0]["floor_us"]
            axis.plot([floor, floor], [row - 0.42, row + 0.42], color="black", linewidth=2.2, label="_")
            for record in here:
                who = identity(record)
                slot = (kinds.index(who) + 0.5) / len(kinds) - 0.5
                spread = record[metric]
                error = [[spread["us"] - spread["low"]], [spread["high"] - spread["us"]]]
                axis.errorbar(
                    spread["us"], row + 0.8 * slot, xerr=error, linestyle="", markersize=6.5, capsize=2, **looks[who]
                )
                if record["chosen"]:
                    axis.plot(
                        spread["us"], row + 0.8 * slot, "o", markersize=13, markerfacecolor="none",
                        markeredgecolor="black", markeredgewidth=1.1,
                    )  # fmt: skip
        axis.set_xscale("log")
        style.plain_log_labels(axis.xaxis, *axis.get_xlim())
        axis.grid(axis="x", which="major", color="0.85")
        axis.set_xlabel(f"{metric} time, microseconds a call (log), median and quartiles")
    axes[0][0].set_ylim(len(sizes) - 0.5, -0.5)
    axes[0][0].set_yticks(range(len(sizes)), [f"M {m}\nN {n}  K {k}" for m, n, k in sizes])
    figure.suptitle(style.headline(document, f"Time per call, A in bf16, {style.formats(document)}"))
    chosen = any(record["chosen"] for record in records)
    _legend(figure, style.labels(records), looks, {"color": "black", "linewidth": 2.2}, chosen)
    return figure


def _panels(document: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Any:
    plt = style.pyplot()
    kinds = style.contenders(records)
    looks = style.look(kinds)
    weights = list(dict.fromkeys((record["n"], record["k"]) for record in records))
    columns = min(4, len(weights))
    lines = -(-len(weights) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(1.0 + 3.6 * columns, 1.7 + 3.0 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(weights) :]:
        axis.set_visible(False)
    for axis, (n, k) in zip(axes.flat, weights, strict=False):
        here = [record for record in records if (record["n"], record["k"]) == (n, k)]
        floors = sorted({record["m"]: record["floor_us"] for record in here}.items())
        axis.plot([m for m, _ in floors], [us for _, us in floors], **_FLOOR_LINE)
        for who in kinds:
            line = sorted(
                (record["m"], record["device"]["us"], record["device"]["low"], record["device"]["high"])
                for record in here
                if identity(record) == who
            )
            if line:
                ms, us, low, high = zip(*line, strict=True)
                axis.plot(ms, us, linewidth=1.3, markersize=5, **looks[who])
                axis.fill_between(ms, low, high, color=looks[who]["color"], alpha=0.2, linewidth=0)
        style.m_axis(axis, [m for m, _ in floors])
        axis.set_yscale("log")
        style.plain_log_labels(axis.yaxis, *axis.get_ylim())
        axis.grid(which="major", color="0.88")
        axis.set_title(f"N {n}, K {k}", fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel("device time, microseconds (log)")
    for axis in axes.flat[max(0, len(weights) - columns) : len(weights)]:
        axis.set_xlabel("M")
    figure.suptitle(style.headline(document, f"Device time per call, A in bf16, {style.formats(document)}"))
    _legend(figure, style.labels(records), looks, _FLOOR_LINE, chosen=False)
    return figure


def _legend(
    figure: Any,
    labels: Mapping[Identity, str],
    looks: Mapping[Identity, Mapping[str, Any]],
    floor: Mapping[str, Any],
    chosen: bool,
) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", markersize=7, label=labels[who], **looks[who]) for who in looks]
    handles.append(Line2D([], [], label="floor", **floor))
    if chosen:
        ring: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgecolor": "black"}
        handles.append(Line2D([], [], linestyle="", label="the router's choice", **ring))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)


def _size(record: Mapping[str, Any]) -> tuple[int, int, int]:
    return record["m"], record["n"], record["k"]
