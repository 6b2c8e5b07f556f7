"""The fused HIP kernel as one text, headers in place, and its configurations for the published shapes."""

from __future__ import annotations

import re
from dataclasses import astuple
from typing import Any, Final

from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip import fused, fused_choice
from mxgemm.hip.build import texts_of
from mxgemm.problem import Options, Problem
from mxgemm.submission.parts.shapes import PUBLISHED

_INCLUDE: Final = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)


def inlined_source() -> str:
    """Return the kernel's source with each of its headers in place of its first include."""
    texts, placed = texts_of(fused.SOURCE), set[str]()

    def inline(name: str) -> str:
        if name in placed:
            return ""
        placed.add(name)
        text = texts[name].replace("#pragma once\n", "")
        return f"// ---- {name}\n{_INCLUDE.sub(lambda found: inline(found[1]), text)}"

    return inline(fused.SOURCE)


def configurations() -> dict[tuple[int, int, int], list[tuple[Any, ...]]]:
    """Return (m, n, k) -> the fields of each configuration that a file carries for gfx950, the best guess first."""
    found = {}
    for m, n, k in PUBLISHED:
        options = Options(weight_layout="preshuffled", scale_layout="shuffled")
        found[m, n, k] = [astuple(config) for config in _tried(Problem(m, n, k, KNOWN_MACHINES["gfx950"], options))]
    return found


def _tried(problem: Problem) -> list[fused.FusedConfig]:
    """Return what the library would try first, and the best of those with another block, and with K split otherwise.

    The estimate of the first two is mostly within some percent, and nobody has measured what a split costs.
    """
    best, *others = fused_choice.candidates(problem)
    block = next(c for c in others if (c.block_m, c.block_n) != (best.block_m, best.block_n))
    split = next(c for c in others if c.split_k != best.split_k)
    return [best, block] if block == split else [best, block, split]


def render() -> str:
    """Return text and configurations as the text of a module.

    Raises:
        ValueError: the source holds what would end the literal.
    """
    source = inlined_source()
    if '"""' in source or source.endswith("\\"):
        raise ValueError(f'{fused.SOURCE}: holds """ or ends in a backslash, cannot be a literal')
    rows = "\n".join(f"    {shape}: {configs}," for shape, configs in configurations().items())
    return f'''"""The HIP kernel's text (mxgemm/hip/kernels), and its configurations for the published shapes (m, n, k).

Configurations are estimated, not measured on an MI355X, the best guess first; the fields are those of HipConfig.
XCDS: its dies.
"""

XCDS = {KNOWN_MACHINES["gfx950"].xcds}
HIP_TABLE = {{
{rows}
}}
HIP_SOURCE = r"""
{source}"""
'''
