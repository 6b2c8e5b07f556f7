"""From a kernel's name back to its configuration, for a library whose configuration nobody wrote down."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from mxgemm.arguments import check_type, shown
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.config import SEVERAL, KernelConfig
from mxgemm.dispatcher.operations import OPERATIONS

_SIZE: Final = r"\d{1,9}"
_SIZES: Final = f"{_SIZE}x{_SIZE}x{_SIZE}"


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
        found = _pattern(kind).fullmatch(name)
        if found:
            config = kind(**_fields(kind, found)).pinned(arch)
            if config.name == name:
                return config
    raise ValueError(f"name: got {shown(name)}, want the name of a kernel of {', '.join(OPERATIONS)}")


@cache
def _pattern(kind: type[KernelConfig]) -> re.Pattern[str]:
    """Return what the names of an operation's kernels look like; each part is a group of its name."""
    choices = (
        ("dtype", kind.variants),
        ("layout", kind.layouts),
        ("pipeline", kind.pipelines),
        ("epilogue", (*kind.epilogues, "permute_n")),
        ("scheduler", kind.schedulers),
    )
    words = [f"(?P<{part}>{'|'.join(map(re.escape, options))})" for part, options in choices]
    tile = [f"(?P<{part}>{_SIZES})" for part in ("tile", "warp", "warp_tile")]
    groups = [f"{segment.prefix}(?P<groups{at}>{_SIZES})" for at, segment in enumerate(kind.segments)]
    flags = "(?P<flags>(_(True|False))*)"
    tail = "".join(f"(?P<tail{at}>_{word})?" for at, (_, word) in enumerate((*kind.tail_flags, SEVERAL)))
    return re.compile(f"{kind.prefix}_{'_'.join(words)}{flags}_{'_'.join(tile + groups)}{tail}")


def _fields(kind: type[KernelConfig], found: re.Match[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {part: found[part] for part in ("layout", "pipeline", "epilogue", "scheduler")}
    fields["epilogue"] = found["epilogue"] if found["epilogue"] in kind.epilogues else kind.epilogues[0]
    fields[kind.dtype_field] = found["dtype"]
    flags = [text == "True" for text in found["flags"].split("_")[1:]]
    fields |= dict(zip(kind.flag_fields, flags, strict=False))
    for part in ("tile", "warp", "warp_tile"):
        sizes = map(int, found[part].split("x"))
        fields |= {f"{part}_{axis}": size for axis, size in zip("mnk", sizes, strict=True)}
    for at, segment in enumerate(kind.segments):
        sizes = map(int, found[f"groups{at}"].split("x"))
        pairs = zip(segment.fields, sizes, strict=True)
        fields |= {field: size for field, size in pairs if isinstance(field, str)}
    tail = enumerate((*kind.tail_flags, SEVERAL))
    return fields | {field: found[f"tail{at}"] is not None for at, (field, _) in tail}
