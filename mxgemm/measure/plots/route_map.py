"""Which route the router takes over a plane of sizes, and where a measured table row says so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, Literal

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure.plots import style
from mxgemm.mx.formats import ActivationFormat
from mxgemm.routing.explain import Explanation, explain

MS: Final = tuple(1 << i for i in range(14))
NS: Final = tuple(1 << i for i in range(8, 17))
KS: Final = tuple(1 << i for i in range(8, 16))

Plane = Literal["mk", "mn"]


def route_map_figure(
    arch: str,
    *,
    plane: Plane = "mk",
    fixed: int | None = None,
    a_format: ActivationFormat = "e2m1",
    prepared: bool = True,
) -> Any | None:
    """Draw the router's choice for an architecture, which need not be here.

    Args:
        arch: of ``mxgemm.device.KNOWN_MACHINES``.
        plane: "mk" (M and K vary) or "mn".
        fixed: the size that does not vary: N (by default 4096) or K (by default 2048).
        a_format: as in ``gemm``.
        prepared: as if the weight had been through ``prepare()``.

    Returns:
        the figure, None where one route is taken everywhere.

    Raises:
        ValueError: an unknown architecture.
    """
    if arch not in KNOWN_MACHINES:
        raise ValueError(f"arch: got {arch!r}, want one of {', '.join(KNOWN_MACHINES)}")
    across: Sequence[int] = KS if plane == "mk" else NS
    fixed = fixed or (4096 if plane == "mk" else 2048)
    ask: dict[str, Any] = {"device": arch, "a_format": a_format, "prepared": prepared}
    answers = [
        [explain(m, *((fixed, other) if plane == "mk" else (other, fixed)), **ask) for m in MS] for other in across
    ]
    if len({answer.route for row in answers for answer in row}) == 1:
        return None
    return _figure(arch, across, answers, plane, fixed, a_format, prepared)


_MARKS: Final[dict[str, dict[str, Any]]] = {
    "measured row for this size": {"marker": "o", "markersize": 6, "color": "black"},
    "measured row nearby": {"marker": "o", "markersize": 6, "markerfacecolor": "none", "markeredgecolor": "black"},
    "predicted row": {"marker": "_", "markersize": 9, "color": "black", "markeredgewidth": 1.6},
}


def _mark(answer: Explanation) -> str:
    if answer.scope == "kernel":  # a rule chose the route
        return ""
    if answer.grade == "measured":
        return "measured row for this size" if "exactly" in answer.reason else "measured row nearby"
    return "predicted row" if answer.grade == "predicted" else ""


def _figure(
    arch: str,
    across: Sequence[int],
    answers: Sequence[Sequence[Explanation]],
    plane: Plane,
    fixed: int,
    a_format: str,
    prepared: bool,
) -> Any:
    plt = style.pyplot()
    from matplotlib.colors import ListedColormap
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    routes = sorted({answer.route for row in answers for answer in row})
    colours = style.COLOURS[: len(routes)]
    figure, axis = plt.subplots(figsize=(8.6, 1.6 + 0.42 * len(across) + 0.6), layout="constrained")
    grid = [[routes.index(answer.route) for answer in row] for row in answers]
    axis.pcolormesh(
        range(len(MS) + 1), range(len(across) + 1), grid,
        cmap=ListedColormap(colours), vmin=-0.5, vmax=len(routes) - 0.5, edgecolors="white", linewidth=1.5, alpha=0.85,
    )  # fmt: skip
    marks = {(x + 0.5, y + 0.5): _mark(answer) for y, row in enumerate(answers) for x, answer in enumerate(row)}
    for (x, y), mark in marks.items():
        if mark:
            axis.plot(x, y, linestyle="", **_MARKS[mark])
    other, held = ("K", "N") if plane == "mk" else ("N", "K")
    axis.set_xticks([i + 0.5 for i in range(len(MS))], [str(m) for m in MS])
    axis.set_yticks([i + 0.5 for i in range(len(across))], [str(value) for value in across])
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_xlabel("M (rows of A)")
    axis.set_ylabel(other)
    machine = KNOWN_MACHINES[arch]
    weight = "weight prepared" if prepared else "weight as its bytes lie"
    figure.suptitle(
        f"Routes at {held} = {fixed}, a_format {a_format}, {weight}\n"
        f"{machine.name} ({arch}), {date.today().isoformat()}"
    )
    handles: list[Any] = [Patch(color=c, alpha=0.85, label=route) for route, c in zip(routes, colours, strict=True)]
    for mark, looks in _MARKS.items():
        if mark in marks.values():
            handles.append(Line2D([], [], linestyle="", label=mark, **looks))
    if "" in marks.values():
        handles.append(Line2D([], [], linestyle="", label="no mark: a rule, or the first that can"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    return figure
