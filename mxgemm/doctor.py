"""Look at the machine: versions, device, tables, and what every route has or misses."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch

from mxgemm import aiter_backend, aiter_direct, tables
from mxgemm._version import __version__
from mxgemm.device import default_device, machine_of
from mxgemm.formats import E2M1
from mxgemm.hip.abilities import Ability, abilities
from mxgemm.layouts import ROW_MAJOR
from mxgemm.mx import PREPARED_LAYOUT
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import ROUTES
from mxgemm.routes.triton_support import interpreting, triton_version


@dataclass(frozen=True, slots=True)
class Findings:
    """What :func:`examine` found.

    Attributes:
        arch: of the default device.
        facts: (name, value) pairs.
        abilities: what of the HIP part works.
        routes: every route and what it misses, None where it is available.
    """

    arch: str
    facts: tuple[tuple[str, str], ...]
    abilities: tuple[Ability, ...]
    routes: tuple[tuple[str, str | None], ...]


def examine() -> Findings:
    """Examine the default device with the plainest of problems, (64, 1024, 1024) and a prepared weight."""
    machine = machine_of(default_device())
    m, n, k = 64, 1024, 1024
    layout = PREPARED_LAYOUT.get(machine.arch, ROW_MAJOR)
    strides = contiguous_strides(n, k, E2M1, k // 32)
    problem = Problem(m, n, k, machine, weight_layout=layout.data, scale_layout=layout.scales, strides=strides)
    routes = []
    for name, route in ROUTES.items():
        refusal = route.can_implement(problem)
        routes.append((name, refusal.reason if refusal else None))
    version = triton_version()
    units = f", {machine.cu_count} compute units" if machine.cu_count else ""
    shipped = tables.shipped(machine.arch)
    own = tables.from_environment(machine.arch)
    facts = (
        ("mxgemm", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("triton", f"{version[0]}.{version[1]}{' (interpreter)' if interpreting() else ''}" if version else "none"),
        ("aiter", aiter_backend.describe()),
        ("aiter code objects", aiter_direct.describe()),
        ("device", f"{machine.name} ({machine.arch}{units})"),
        ("routing tables", ", ".join(f"{os.path.basename(t.path)} ({len(t.rows)} rows)" for t in shipped) or "none"),
        (f"own tables ({tables.TABLES_VARIABLE})", ", ".join(table.path for table in own) or "none"),
    )
    return Findings(machine.arch, facts, abilities(machine), tuple(routes))
