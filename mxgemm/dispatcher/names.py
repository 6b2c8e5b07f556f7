"""From a kernel's name back to its configuration, for a library whose configuration nobody wrote down."""

from __future__ import annotations

import re
from typing import Any, Final

from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operations import OPERATIONS

_REST: Final = re.compile(
    r"(?P<dtype>[a-z0-9]+)_(?P<layout>[rc]{3})_(?P<pipeline>[a-z0-9_]+)_(?P<epilogue>[a-z0-9]+)_(?P<scheduler>[a-z]+)"
    r"(?P<flags>(_(True|False))*)_(?P<tile>\d+x\d+x\d+)_(?P<warp>\d+x\d+x\d+)_(?P<warp_tile>\d+x\d+x\d+)"
)


def config_named(name: str, gfx_arch: str) -> KernelConfig:
    """Return the configuration that has a name; what no name holds (``k_block_per_cu``, ...) is at its default.

    Args:
        name: as ``KernelConfig.name`` and ``dispatcher_get_kernel_name`` give it.
        gfx_arch: the architecture to pin it to.

    Raises:
        ValueError: no configuration of an operation here has that name.
    """
    for operation in OPERATIONS.values():
        kind = operation.config_type
        found = _REST.fullmatch(name.removeprefix(f"{kind.prefix}_")) if name.startswith(f"{kind.prefix}_") else None
        if found:
            config = kind(**_fields(kind, found)).pinned(gfx_arch)
            if config.name == name:
                return config
    raise ValueError(f"name: got {name!r}, want the name of a kernel of {', '.join(OPERATIONS)}")


def _fields(kind: type[KernelConfig], found: re.Match[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {part: found[part] for part in ("layout", "pipeline", "epilogue", "scheduler")}
    fields[kind.dtype_field] = found["dtype"]
    flags = [text == "True" for text in found["flags"].split("_")[1:]]
    fields |= dict(zip(kind.flag_fields, flags, strict=False))
    for part in ("tile", "warp", "warp_tile"):
        sizes = map(int, found[part].split("x"))
        fields |= {f"{part}_{axis}": size for axis, size in zip("mnk", sizes, strict=True)}
    return fields
