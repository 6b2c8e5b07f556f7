"""Look at the machine: versions, device, tables, and what every route misses here and is for."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Final

import torch

from mxgemm._version import __version__
from mxgemm.aiter import direct, installed
from mxgemm.cpu import variants
from mxgemm.device import Machine, default_device, machine_of
from mxgemm.errors import Refusal
from mxgemm.hip.abilities import Ability, abilities
from mxgemm.mx.prepared import wanted_on
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.triton.support import interpreting, triton_failure, triton_version

OWN_TABLE: Final = "what mxgemm tune found"
"""Name of the fact that is about the table in the user's cache folder."""


@dataclass(frozen=True, slots=True)
class RouteState:
    """One route on this machine.

    Attributes:
        name: of the route.
        missing: what it lacks here, None where it is available.
        takes: which calls it is for.
    """

    name: str
    missing: Refusal | None
    takes: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What :func:`examine` found.

    Attributes:
        arch: of the default device.
        facts: (name, value) pairs.
        abilities: what of the HIP part works.
        routes: every route, in the router's order.
    """

    arch: str
    facts: tuple[tuple[str, str], ...]
    abilities: tuple[Ability, ...]
    routes: tuple[RouteState, ...]


def examine() -> Findings:
    """Examine the default device."""
    machine = machine_of(default_device())
    routes = tuple(RouteState(route.name, route.missing(machine), route.takes) for route in ROUTES.values())
    form = wanted_on(machine.arch)
    units = f", {machine.cu_count} compute units" if machine.cu_count else ""
    shipped = tables.shipped(machine.arch)
    named = tables.from_environment(machine.arch)
    facts = (
        ("mxgemm", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("triton", _triton()),
        ("aiter", installed.describe()),
        ("aiter code objects", direct.describe()),
        ("device", f"{machine.name} ({machine.arch}{units})"),
        *_cpu(machine),
        ("prepare() makes of a weight", "nothing: row-major serves" if form is None else str(form)),
        ("routing tables", ", ".join(f"{os.path.basename(t.path)} ({_rows(t)})" for t in shipped) or "none"),
        (f"own tables ({tables.TABLES_VARIABLE})", ", ".join(table.path for table in named) or "none"),
        (OWN_TABLE, _own_table(machine.arch)),
    )
    return Findings(machine.arch, facts, abilities(machine), routes)


def _cpu(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Say which kind of CPU rows of tables have to name to count here."""
    if machine.arch != "cpu":
        return ()
    return (("kind of CPU", variants.kind() or "none that the C kernels are for: rows that name a kind do not count"),)


def _rows(table: tables.Table) -> str:
    """Say how many rows a table has, and how many of them are for other CPUs."""
    here = variants.kind() if table.arch == "cpu" else ""
    others = sum(row.cpu not in (None, here) for row in table.rows)
    return f"{len(table.rows)} rows, {others} of them for other CPUs" if others else f"{len(table.rows)} rows"


def _own_table(arch: str) -> str:
    found = tables.own(arch)
    if found:
        return f"{found[0].path} ({_rows(found[0])})"
    if os.environ.get(tables.TABLES_VARIABLE) == "":
        return f"left out: {tables.TABLES_VARIABLE} is set to nothing"
    try:
        path = tables.own_path(arch)
        return f"none that can be used: {path} is damaged, or not for {arch}" if path.exists() else "none"
    except OSError as error:
        return f"none: {error}"


def _triton() -> str:
    version, failure = triton_version(), triton_failure()
    if version is None:
        return f"cannot be imported ({failure})" if failure else "none"
    return f"{version[0]}.{version[1]}{' (interpreter)' if interpreting() else ''}"
