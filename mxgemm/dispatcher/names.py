"""From a kernel's name back to its configuration, for a library whose configuration nobody wrote down."""

from __future__ import annotations

import re
from typing import Any, Final

from mxgemm.arguments import check_type, shown
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operations import OPERATIONS

_SIZES: Final = r"\d{1,9}x\d{1,9}x\d{1,9}"
_REST: Final = re.compile(
    r"(?P<dtype>[a-z0-9]+)_(?P<layout>[rc]{3})_(?P<pipeline>[a-z0-9_]+)_(?P<epilogue>[a-z0-9]+)_(?P<scheduler>[a-z]+)"
    r"(?P<flags>(_(True|False))*)_(?P<tile>" + _SIZES + r")_(?P<warp>" + _SIZES + r")_(?P<warp_tile>" + _SIZES + r")"
)


def config_named(name: str, gfx_arch: str) -> KernelConfig:
    """Return the configuration that has a name; what no name holds (``k_block_per_cu``, ...) is at its default.

    Args:
        name: as ``KernelConfig.name`` and ``dispatcher_get_kernel_name`` give it.
        gfx_arch: the architecture to pin it to.

    Raises:
        TypeError: ``name`` or ``gfx_arch`` is no text.
        ValueError: no configuration of an operation here has that name, or there is no such architecture.
    """
    check_type("name", name, str, "the name of a kernel")
    arch = bare_arch(gfx_arch)
    for operation in OPERATIONS.values():
        kind = operation.config_type
        found = _REST.fullmatch(name.removeprefix(f"{kind.prefix}_")) if name.startswith(f"{kind.prefix}_") else None
        if found:
            config = kind(**_fields(kind, found)).pinned(arch)
            if config.name == name:
                return config
    raise ValueError(f"name: got {shown(name)}, want the name of a kernel of {', '.join(OPERATIONS)}")


def _fields(kind: type[KernelConfig], found: re.Match[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {part: found[part] for part in ("layout", "pipeline", "epilogue", "scheduler")}
    fields[kind.dtype_field] = found["dtype"]
    flags = [text == "True" for text in found["flags"].split("_")[1:]]
    fields |= dict(zip(kind.flag_fields, flags, strict=False))
    for part in ("tile", "warp", "warp_tile"):
        sizes = map(int, found[part].split("x"))
        fields |= {f"{part}_{axis}": size for axis, size in zip("mnk", sizes, strict=True)}
    return fields
