"""The launches of the library's Triton route, as literals: what a submission runs is what the library would run."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.mx.formats import E2M1
from mxgemm.mx.layouts import padded_scale_shape
from mxgemm.problem import Options, Problem, contiguous_strides
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.routing.router import choose
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.releases import old_release
from mxgemm.triton.tile import fill
from mxgemm.triton.tile_config import TileConfig

ARCH: Final = "gfx950"
ROUTE: Final = "a16wfp4"
_WIDTH: Final = 100
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"


_OTHERS: Final = (
    TileConfig(block_m=16, block_n=32, block_k=512),
    TileConfig(block_m=16, block_n=128, block_k=256, waves_per_eu=4),
    TileConfig(block_m=32, block_n=128, block_k=256, waves_per_eu=3),
)
"""The tiles that the library's choice on gfx950 is among: each was the best guess for some shape."""


def kernel_calls(m: int, n: int, k: int, arch: str = ARCH) -> list[list[KernelCall]]:
    """Return the launches of a shape, tile by tile: first the library's choice by its shipped tables, then others.

    Raises:
        RouteUnavailable: triton is missing, does not compile the kernel for ``arch``, or is older than the
            leaderboard's, and its tiles are others.
    """
    old = old_release(arch)
    if old is not None:
        refusal = Refusal("triton", old.version, "3.6 or newer, as the leaderboard has: older ones' tiles differ")
        raise RouteUnavailable(ROUTE, refusal)
    strides = contiguous_strides(n, k, E2M1, padded_scale_shape(n, k)[1])
    machine = KNOWN_MACHINES[arch]
    options = Options(weight_layout="preshuffled", scale_layout="shuffled")
    problem = Problem(m, n, k, machine, options, strides=strides)
    chosen = choose(problem, route=ROUTE, tables=())
    route = chosen.route
    assert isinstance(route, TritonGemm)
    assert isinstance(chosen.config, TileConfig)
    tiles = [chosen.config]
    if arch == ARCH:  # where forms are timed, and the choice is a prediction
        fitting = [fill(problem, tile) for tile in _OTHERS if tile.block_k <= k and tile.block_m < max(2 * m, 32)]
        tiles += [tile for tile in fitting if tile != chosen.config and route.check_config(problem, tile) is None]
    # Where this runs says nothing about where the file will: only a CPU interprets.
    interpreted = {"INTERPRETED": arch == "cpu"}
    return [
        [replace(call, constants={**call.constants, **interpreted}) for call in route.calls(problem, tile)]
        for tile in tiles
    ]


def render(shapes: Sequence[tuple[int, int, int]], arch: str = ARCH) -> str:
    """Return the launches of some shapes as the text of a module.

    Raises:
        RouteUnavailable: as :func:`kernel_calls`.
    """
    calls = {shape: kernel_calls(*shape, arch) for shape in shapes}
    kernels = {call.kernel.fn for tiles in calls.values() for launches in tiles for call in launches}
    imports = sorted(f"from {kernel.__module__} import {kernel.__name__}" for kernel in kernels)
    lines = [
        f'"""The launches of each shape (m, n, k), as the library makes them by its route {ROUTE} on {arch}.',
        "",
        "A list for each tile, the library's own choice first; a launch, or two where K is split.",
        "Scalars are m, n, k, then strides (row, column) of A, of the weight's bytes, of its scales and of C, and the",
        "stride of the absent bias.",
        '"""',
        "",
        *imports,
        "from mxgemm.submission.parts.kernel_launch import KernelLaunch",
        "",
        f'TRITON_ARCH = "{arch}"',
        "TRITON_LAUNCHES = {",
    ]
    for shape, tiles in calls.items():
        lines.append(f"    {shape}: [")
        for launches in tiles:
            lines += ["        [", *(line for call in launches for line in _launch(call)), "        ],"]
        lines.append("    ],")
    return "\n".join([*lines, "}", ""])


def _launch(call: KernelCall) -> list[str]:
    fields = [
        f"{call.kernel.fn.__name__},",
        f"grid={call.grid},",
        f"scalars={call.scalars},",
        *_dictionary("constants", call.constants),
        *_dictionary("options", call.options),
    ]
    return ["            KernelLaunch(", *(f"                {line}" for line in fields), "            ),"]


def _dictionary(name: str, items: Mapping[str, Any]) -> list[str]:
    text = ", ".join(f'"{key}":{_UNBROKEN}{_literal(value)}' for key, value in items.items())
    lines = [line.replace(_UNBROKEN, " ") for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False)]
    if len(lines) == 1:
        return [f"{name}={{{lines[0]}}},"]
    return [f"{name}={{", *(f"    {line}" for line in lines[:-1]), f"    {lines[-1]},", "},"]


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
