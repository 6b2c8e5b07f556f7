"""``mxgemm.explain``: which route a shape takes, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm.arguments import as_int, as_path, check_bool, check_type, shown
from mxgemm.cpu import variants
from mxgemm.device import Machine, machine_asked
from mxgemm.errors import Refused, lines_of_others
from mxgemm.mx.formats import BLOCK, E2M1, ActivationFormat
from mxgemm.mx.layouts import ROW_MAJOR, Layout, ScaleLayout, WeightLayout, scale_shape
from mxgemm.mx.prepared import wanted
from mxgemm.problem import Options, Problem, contiguous_strides
from mxgemm.routes import ROUTES, Config
from mxgemm.routing.router import choose
from mxgemm.routing.tables import Scope
from mxgemm.validation import check_names

_LARGEST: Final = 2**63 - 1
"""The largest size that a tensor has."""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What the router answers for one problem; prints as a few lines of text.

    Attributes:
        problem: the question.
        weight: how the weight comes, as assumed, in words.
        route: the chosen route's name.
        config: its configuration.
        reason: the table row or rule that decided, in words.
        source: where that row or rule comes from.
        table: path of a table of the user's own that it is in, "" for one that comes with the package.
        us: microseconds that the row gives, None without one.
        grade: "measured" or "predicted", None without a row.
        scope: whether they are those of a whole "call" or of the GEMM "kernel" alone.
        covers: what those microseconds include.
        refusals: routes and rows that would have come first, and every other route that cannot run, with reasons.
        also_possible: other routes that could.
    """

    problem: Problem
    weight: str
    route: str
    config: Config
    reason: str
    source: str
    table: str
    us: float | None
    grade: str | None
    scope: Scope
    covers: str
    refusals: tuple[Refused, ...]
    also_possible: tuple[str, ...]

    def __str__(self) -> str:
        machine = self.problem.machine
        units = f", {machine.cu_count} compute units" if machine.cu_count else ""
        units += f", {variants.kind()}" if machine.arch == "cpu" and variants.kind() else ""
        lines = [
            f"{self.problem} ({machine.name}{units})",
            f"  weight    {self.weight}",
            f"  route     {self.route}: {self.config}",
            f"  because   {self.reason}",
            f"  source    {self.source}",
        ]
        if self.table:
            lines.append(f"  table     {self.table}")
        if self.us is not None:
            alone = " (the GEMM kernel alone)" if self.scope == "kernel" else ""
            lines.append(f"  time      {self.us:g} us{alone}, {self.grade}: {self.covers}")
        return "\n".join([*lines, *lines_of_others(self.refusals, self.also_possible)])

    __repr__ = __str__


def explain(
    m: int,
    n: int,
    k: int,
    *,
    device: torch.device | str | int | None = None,
    a_format: ActivationFormat = "e2m1",
    weight_layout: WeightLayout = "row_major",
    scale_layout: ScaleLayout = "row_major",
    prepared: bool = False,
    derived: str | None = None,
    route: str | None = None,
    tables: Iterable[str | os.PathLike[str]] | None = None,
) -> Explanation:
    """Say which route :func:`mxgemm.gemm` takes for a shape, and why not the others.

    Args:
        m: rows of A, at least 1.
        n: rows of B, at least 1.
        k: elements along K, a positive multiple of 32.
        device: a torch device or a GPU's index, or an architecture's name ("gfx950", "sm_90", "cpu") to ask about a
            machine that is not here; by default the current GPU, else the CPU. An architecture that no table here knows
            ("gfx1250", "sm_120") is answered by what each route refuses.
        a_format: as in ``gemm``.
        weight_layout: as in ``gemm``.
        scale_layout: as in ``gemm``.
        prepared: as if the weight had been through ``prepare()``, and all its rows folded where the device wants that;
            otherwise it comes as loose tensors.
        derived: ``prepared.kind`` of the weight, where it is known: of a form that is read beside its bytes, or "".
        route: as in ``gemm``: explain this one.
        tables: paths of routing tables to put before the shipped ones, in place of those that ``MXGEMM_TABLES`` names
            and of the one that ``mxgemm tune`` keeps in the user's cache folder.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: a wrong size, device or name.
        RouteUnavailable: the named route cannot run here.
    """
    check_names(
        a_format=a_format,
        scale_rounding="even",
        weight_layout=weight_layout,
        scale_layout=scale_layout,
        route=route,
    )
    m, n, k = _size("m", m, 1), _size("n", n, 1), _size("k", k, BLOCK)
    check_bool("prepared", prepared)
    if derived is not None:
        check_type("derived", derived, str, "the kind of a prepared weight")
    tables = None if tables is None else _paths(tables)
    machine = machine_asked(device)
    problem = problem_of(
        m, n, k, machine, a_format=a_format, given=Layout(weight_layout, scale_layout), prepared=prepared,
        derived=derived,
    )  # fmt: skip
    layout = Layout(problem.weight_layout, problem.scale_layout)  # type: ignore[arg-type]
    if problem.derived or layout != Layout(weight_layout, scale_layout):
        weight = f"prepared ({problem.derived or layout})"
    else:
        what = f"prepare() makes nothing of it on {machine.arch}" if prepared else None
        weight = f"{layout}: {what}" if what else f"{layout}, as loose tensors"
    choice = choose(problem, route=route, tables=tables)
    refusals, possible = list(choice.refusals), []
    for name, other in ROUTES.items():
        if name == choice.route.name:
            continue
        refusal = other.refusal(problem)
        if refusal is None:
            possible.append(name)
        elif (refused := Refused(name, refusal)) not in refusals:
            refusals.append(refused)
    row = choice.row
    return Explanation(
        problem=problem,
        weight=weight,
        route=choice.route.name,
        config=choice.config,
        reason=choice.reason,
        source=choice.source,
        table=choice.table,
        us=row.us if row else None,
        grade=row.grade if row else None,
        scope=choice.scope,
        covers=choice.covers,
        refusals=tuple(refusals),
        also_possible=tuple(possible),
    )


def problem_of(
    m: int,
    n: int,
    k: int,
    machine: Machine,
    *,
    a_format: str = "e2m1",
    given: Layout = ROW_MAJOR,
    prepared: bool = False,
    derived: str | None = None,
) -> Problem:
    """Describe the call of a size on a machine that need not be here: contiguous operands, bf16 in and out.

    Args:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        machine: where it would run.
        a_format: as in ``gemm``.
        given: layout of the weight before it is prepared.
        prepared: as in :func:`explain`.
        derived: as in :func:`explain`.
    """
    form = next(wanted(machine.arch, "fast", E2M1, n, k), None) if prepared else None
    layout = given if form is None or form.layout is None else form.layout
    if derived is None:
        derived = "" if form is None or form.layout is not None else form.kind
    columns = scale_shape(layout.scales, n, k)[1]
    return Problem(
        m, n, k, machine,
        Options(a_format, weight_layout=layout.data, scale_layout=layout.scales, derived=derived),
        strides=contiguous_strides(n, k, E2M1, columns),
    )  # fmt: skip


def _size(name: str, value: Any, least: int) -> int:
    size = as_int(name, value)
    if not least <= size <= _LARGEST or size % least:
        want = f"a positive multiple of {least}" if least > 1 else "at least 1"
        raise ValueError(f"{name}: got {shown(size)}, want {want}, at most 2^63 - 1")
    return size


def _paths(tables: Any) -> list[Path]:
    if not isinstance(tables, str | bytes | os.PathLike | torch.Tensor) and isinstance(tables, Iterable):
        return [as_path("tables", path, "a list of paths") for path in tables]
    raise TypeError(f"tables: got {shown(tables)}, want a list of paths")
