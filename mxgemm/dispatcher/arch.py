"""What is known of an architecture before anything is built for it.

Nothing here guesses: a kernel for the wrong architecture may compile, run and give zeros.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

from mxgemm.arguments import shown
from mxgemm.device import arch_named

KNOWN: Final = ("gfx942", "gfx950")
_FP8_DEPTHS: Final[dict[str, dict[int, tuple[int, ...]]]] = {
    "gfx942": {16: (32, 64), 32: (16, 32)},
    "gfx950": {16: (128, 32, 64), 32: (64, 16, 32)},
}
"""Depths of fp8 and bf8 instructions by rows, CK's own choice first: ``arch_specs.json`` of CK's dispatcher."""
_BF16_DEPTHS: Final[dict[str, dict[int, tuple[int, ...]]]] = {
    "gfx942": {16: (16, 32), 32: (8, 16)},
    "gfx950": {16: (32, 16, 64), 32: (16, 8, 32)},
}


def bare_arch(arch: str) -> str:
    """Return an AMD architecture without its feature suffixes: ``gfx942:sramecc+:xnack-`` is ``gfx942``.

    Raises:
        TypeError: it is no text.
        ValueError: it is not the name of an AMD architecture.
    """
    if not isinstance(arch, str):
        raise TypeError(f"gfx_arch: got {shown(arch)}, want the name of an AMD architecture such as 'gfx950'")
    name = arch_named(arch)
    if name is None or not name.startswith("gfx"):
        raise ValueError(f"gfx_arch: got {shown(arch)}, want an AMD architecture such as 'gfx950'")
    return name


def detect_arch() -> str:
    """Return the architecture of this machine's AMD GPU, as ROCm's own tools name it.

    Raises:
        RuntimeError: there is none to be found, or there are several kinds; the caller must say which.
    """
    found: set[str] = set()
    tried = []
    for tool in ("rocm_agent_enumerator", "rocminfo"):
        path = shutil.which(tool)
        if path is None:
            tried.append(f"{tool} is not installed")
            continue
        try:
            ran = subprocess.run([path], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            tried.append(f"{tool}: {error}")
            continue
        found = set(re.findall(r"\bgfx[0-9a-f]{3,5}\b", ran.stdout)) - {"gfx000"}
        if found:
            break
        tried.append(f"{tool} names no GPU")
    if len(found) == 1:
        return found.pop()
    why = f"several kinds of GPU ({', '.join(sorted(found))})" if found else "; ".join(tried)
    raise RuntimeError(
        f"the GPU architecture could not be detected: {why}. Pass gfx_arch, for example gfx_arch='gfx950'"
    )


def fp8_is_ocp(arch: str) -> bool:
    """Return whether fp8 and bf8 bytes are OCP's (gfx950, gfx12) and not FNUZ (gfx942 and older)."""
    return bare_arch(arch).startswith(("gfx950", "gfx12"))


def fp8_warp_tile_k(arch: str, warp_tile_m: int) -> tuple[int, ...]:
    """Return the depths of CK's fp8 instruction of 16 or 32 rows on a known architecture, CK's own choice first.

    CK compiles others without a word; 16x16x128 on gfx942 is known to give zeros.
    """
    return _FP8_DEPTHS[bare_arch(arch)][warp_tile_m]


def bf16_warp_tile_k(arch: str, warp_tile_m: int) -> tuple[int, ...]:
    """Return the same of bf16's instructions."""
    return _BF16_DEPTHS[bare_arch(arch)][warp_tile_m]
