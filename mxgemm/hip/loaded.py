"""Kernels of this package's sources, built and loaded once per device and set of macros."""

from __future__ import annotations

from pathlib import Path

import torch

from mxgemm.device import machine_of
from mxgemm.hip.build import build
from mxgemm.hip.runtime import Module, load

_modules: dict[tuple[str | Path, torch.device, tuple[tuple[str, int | str], ...]], Module] = {}


def module(source: str | Path, device: torch.device, **defines: int | str) -> Module:
    """Return the loaded module of a source.

    Args:
        source: name of a file in ``mxgemm/hip/kernels``, or the path of one elsewhere.
        device: a GPU, with its index.
        defines: macros to build with.

    Raises:
        BuildError, DriverError: as ``build`` and ``load`` say.
    """
    key = (source, device, tuple(sorted(defines.items())))
    found = _modules.get(key)
    if found is None:
        # Without a lock, which a finaliser could wait for: threads that load it at once share the first.
        name, folder = (source.name, source.parent) if isinstance(source, Path) else (source, None)
        image = build(name, arch=machine_of(device).arch, defines=defines, folder=folder)
        found = _modules.setdefault(key, load(image, device))
    return found
