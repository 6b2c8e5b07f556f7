"""Roofline: rate over arithmetic intensity, under the ceilings that were measured in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxgemm.measure.plots import style


def draw_roofline(document: Mapping[str, Any], folder: Path, name: str, *, force: bool = False) -> list[Path]:
    """Draw every timed result under the measured bandwidth and rates.

    Args:
        document: of a run.
        folder: where to write.
        name: of the files, without the suffix.
        force: replace files that mxgemm did not draw.

    Returns:
        the files; none where nothing was timed.
    """
    records = [record for record in document["results"] if record["device"]]
    if not records:
        return []
    plt = style.pyplot()
    kinds = style.contenders(records)
    looks, labels = style.look(kinds), style.labels(records)
    roof = document["roof"]
    bandwidth, best = roof["bandwidth_gb_per_s"] / 1e3, roof["rate_tflop_per_s"]  # TB/s is TFLOP/s at 1 flop a byte
    intensity = [record["flops"] / record["bytes"] for record in records]
    low, high = min(*intensity, best / bandwidth) / 2, max(*intensity, best / bandwidth) * 3
    figure, axis = plt.subplots(figsize=(9.0, 5.6 + 0.22 * ((len(kinds) + 2) // 3)), layout="constrained")
    ridge = best / bandwidth
    axis.plot([low, ridge, high], [low * bandwidth, best, best], color="black", linewidth=1.8)
    for form, rate in roof["tflop_per_s"].items():
        if rate < best:  # the best one is the roof
            axis.plot([rate / bandwidth, high], [rate, rate], color=style.GREY, linewidth=1, linestyle="--")
        axis.text(  # beside the axes: inside, points lie on it where a kernel is good
            1.01, rate, f"{form} GEMM {rate:.4g}", transform=axis.get_yaxis_transform(),
            ha="left", va="center", color=style.GREY, fontsize=9,
        )  # fmt: skip
    for pair in kinds:
        points = [record for record in records if (record["kind"], record["name"]) == pair]
        axis.plot(
            [record["flops"] / record["bytes"] for record in points],
            [record["tflop_per_s"] for record in points],
            linestyle="", markersize=6.5, label=labels[pair], **looks[pair],
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
    axis.grid(which="major", color="0.88")
    axis.set_xlabel("flops per byte that must move (log)")
    axis.set_ylabel("TFLOP/s by device time (log)")
    figure.suptitle(style.headline(document, f"Roofline, a_format {document['a_format']}"))
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return style.save(figure, folder, name, force=force)
