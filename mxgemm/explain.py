"""``mxgemm.explain``: which route a shape takes, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from mxgemm.derived import FP8_FOLD
from mxgemm.device import KNOWN_MACHINES, Machine, default_device, machine_of
from mxgemm.errors import Refusal
from mxgemm.formats import E2M1, ActivationFormat
from mxgemm.layouts import ScaleLayout, WeightLayout, padded_scale_shape
from mxgemm.mx import PREPARED_LAYOUT
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.router import choose
from mxgemm.routes import ROUTES, Config
from mxgemm.validation import check_names


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What the router answers for one problem; prints as a few lines of text.

    Attributes:
        problem: the question.
        route: the chosen route's name.
        config: its configuration.
        reason: the table row or rule that decided, in words.
        source: where that row or rule comes from.
        us: microseconds that the row gives, None without one.
        grade: "measured" or "predicted", None without a row.
        covers: what those microseconds include.
        refusals: routes and rows that would have come first, and every other route that cannot run, with reasons.
        also_possible: other routes that could.
    """

    problem: Problem
    route: str
    config: Config
    reason: str
    source: str
    us: float | None
    grade: str | None
    covers: str
    refusals: tuple[Refusal, ...]
    also_possible: tuple[str, ...]

    def __str__(self) -> str:
        machine = self.problem.machine
        units = f", {machine.cu_count} compute units" if machine.cu_count else ""
        lines = [
            f"{self.problem} ({machine.name}{units})",
            f"  route     {self.route}: {self.config}",
            f"  because   {self.reason}",
            f"  source    {self.source}",
        ]
        if self.us is not None:
            lines.append(f"  time      {self.us:g} us ({self.grade}): {self.covers}")
        lines += [f"  refused   {refusal}" for refusal in self.refusals]
        if self.also_possible:
            lines.append(f"  possible  {', '.join(self.also_possible)}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(
    m: int,
    n: int,
    k: int,
    *,
    device: torch.device | str | None = None,
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
        device: a torch device, or an architecture's name ("gfx950", "sm_90", "cpu") to ask about a machine that
            is not here; by default the current GPU, else the CPU.
        a_format: as in ``gemm``.
        weight_layout: as in ``gemm``.
        scale_layout: as in ``gemm``.
        prepared: as if the weight had been through ``prepare()``, and folded where that is what the device wants.
        derived: ``derived_kind`` of the weight, where it is known.
        route: as in ``gemm``: explain this one.
        tables: paths of routing tables to put before the shipped ones.

    Raises:
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
    for name, value, wanted in (("m", m, m >= 1), ("n", n, n >= 1), ("k", k, k >= 32 and k % 32 == 0)):
        if not wanted:
            want = "a positive multiple of 32" if name == "k" else "at least 1"
            raise ValueError(f"{name}: got {value}, want {want}")
    machine = _machine(device)
    if prepared and machine.arch in PREPARED_LAYOUT:
        layout = PREPARED_LAYOUT[machine.arch]
        weight_layout, scale_layout = layout.data, layout.scales
    columns = padded_scale_shape(n, k)[1] if scale_layout == "shuffled" else k // 32
    if derived is None:
        derived = FP8_FOLD if prepared and machine.arch == "sm_90" else ""
    problem = Problem(
        m, n, k, machine, a_format=a_format, weight_layout=weight_layout, scale_layout=scale_layout,
        strides=contiguous_strides(n, k, E2M1, columns),
        derived=derived,
    )  # fmt: skip
    choice = choose(problem, route=route, tables=tables)
    refusals, possible = list(choice.refusals), []
    for name, other in ROUTES.items():
        if name == choice.route.name or any(refusal.route == name for refusal in refusals):
            continue
        refusal = other.can_implement(problem)
        if refusal:
            refusals.append(refusal)
        else:
            possible.append(name)
    row = choice.row
    return Explanation(
        problem=problem,
        route=choice.route.name,
        config=choice.config,
        reason=choice.reason,
        source=choice.source,
        us=row.us if row else None,
        grade=row.grade if row else None,
        covers=choice.covers,
        refusals=tuple(refusals),
        also_possible=tuple(possible),
    )


def _machine(device: torch.device | str | None) -> Machine:
    if device is None:
        return machine_of(default_device())
    if isinstance(device, str) and device in KNOWN_MACHINES:
        return KNOWN_MACHINES[device]
    try:
        return machine_of(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        known = ", ".join(KNOWN_MACHINES)
        raise ValueError(f"device: got {device!r} ({error}); want a torch device or one of {known}") from error
