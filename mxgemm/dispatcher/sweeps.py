"""Configurations as data: CK's JSON, read and written.

Three forms of CK's are read. A generator's configuration: lists of ``variant_keys`` (or ``dtypes``), ``layouts``,
``tile_configs`` and groups, everything else once or in a list too; mx_gemm's, of one kernel; and the tile engine's,
whose ``tile_config`` and ``trait_config`` hold values or ranges. Every combination is a kernel. None of them names its
operation: a file may (``"operation"``), or the reader says it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.arguments import as_path, check_type, one_of, shown
from mxgemm.dispatcher.config import KernelConfig, joined
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.operations import OPERATIONS, operation_of

TILE: Final = tuple(f"{part}_{axis}" for part in ("tile", "warp", "warp_tile") for axis in "mnk")
_PLURALS: Final = ("variant_keys", "dtypes", "datatypes")
_GROUPS: Final = ("quant_groups", "bquant_groups")
_OPERATION: Final = ("operation", "op")
_ARCHES: Final = ("arch", "gfx_arch", "gpu_target")
_BLOCK_SIZES: Final = (256, None)
"""What ``block_size`` may be beside 64 threads a wave: CK writes 256 whatever it is, and reads it nowhere."""
MOST: Final = 1 << 16
"""Combinations of the largest sweep that is read."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a file describes.

    Attributes:
        configs: kernels that may be built, in the file's order, each once.
        refused: the others, each with every reason, in one line.
    """

    configs: tuple[KernelConfig, ...]
    refused: tuple[str, ...]


def read_sweep(path: Path | str, gfx_arch: str, operation: str | None = None) -> Sweep:
    """Read every kernel of a file.

    Args:
        path: JSON in one of CK's forms.
        gfx_arch: the architecture to pin them to.
        operation: what they are kernels of; default: what the file says.

    Raises:
        TypeError: ``path`` is no path.
        ValueError: there is no such operation, the file does not name one, it has a field that the operation's kernels
            do not have, or more combinations than 65536. ``FileError``, one of these, where it cannot be read.
    """
    place = as_path("path", path)
    document = check_type(f"{place}", files.read_json(place), dict, "an object")
    return sweep_of(document, gfx_arch, operation, str(place))


def sweep_of(document: Mapping[str, Any], gfx_arch: str, operation: str | None = None, name: str = "config") -> Sweep:
    """Return every kernel of a document; see :func:`read_sweep`. ``name`` is the document's, for errors."""
    said = next((document[key] for key in _OPERATION if key in document), None)
    chosen = one_of("operation", operation if operation is not None else _said(said, name), OPERATIONS)
    if operation is not None and said not in (None, operation):
        raise ValueError(f"{name}: operation: got {shown(said)}, want {operation!r}, as asked for")
    kind = OPERATIONS[chosen].config_type
    rest = {key: value for key, value in document.items() if key not in _OPERATION}
    found: dict[KernelConfig, None] = {}
    refused: dict[str, None] = {}
    for fields in _combinations(_axes(rest, kind, name), name):
        config = kind(**fields)
        arch = config.arch or gfx_arch
        reasons = config.refusals(arch)
        if reasons:
            refused[f"{config.name}: {joined(reasons)}"] = None
        else:
            found[config.pinned(gfx_arch)] = None
    return Sweep(tuple(found), tuple(refused))


def read_config(path: Path | str, gfx_arch: str, operation: str | None = None) -> KernelConfig:
    """Read the one kernel of a file.

    Raises:
        TypeError, ValueError: see :func:`read_sweep`; also where the file describes several, or one that must not be
            built, with every reason.
    """
    sweep = read_sweep(path, gfx_arch, operation)
    if len(sweep.configs) + len(sweep.refused) != 1:
        count = len(sweep.configs) + len(sweep.refused)
        raise ValueError(f"{as_path('path', path)}: got {count} kernels, want one; read more as a sweep")
    if sweep.refused:
        raise ValueError(sweep.refused[0])
    return sweep.configs[0]


def document_of(config: KernelConfig) -> dict[str, Any]:
    """Return a configuration as CK's generator reads it, with our ``operation``; :func:`sweep_of` reads it back."""
    operation = operation_of(config)
    fields = dataclasses.asdict(config)
    tile = {name: fields.pop(name) for name in TILE}
    arch = fields.pop(config.arch_field)
    document: dict[str, Any] = {"operation": config.operation}
    if config.operation == "mx_gemm":
        document |= {**fields, "tile_config": tile}
    else:
        key = "dtypes" if config.operation in ("grouped_rowcolquant", "grouped_tensorquant") else "variant_keys"
        document |= {key: [fields.pop(config.dtype_field)], "layouts": [fields.pop("layout")], "tile_configs": [tile]}
        axis, names = _group_axis(operation)
        if axis:
            document[axis] = [{name: fields.pop(name) for name in names}]
        document |= fields
    return document | ({"arch": arch} if arch else {})


def _said(said: Any, name: str) -> str:
    if said is None:
        raise ValueError(
            f"{name}: operation: got none, want one of {', '.join(OPERATIONS)}, in the file or said beside it"
        )
    return check_type(f"{name}: operation", said, str, "the name of an operation")


def _group_axis(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """Return the list in which CK's generator of an operation has its groups, and their fields."""
    fields = [field for segment in operation.config_type.segments for field in segment.fields if isinstance(field, str)]
    if operation.name in ("aquant", "bquant", "grouped_aquant", "grouped_bquant"):
        return "quant_groups", tuple(fields)
    if operation.name == "abquant":
        return "bquant_groups", ("bquant_group_n", "bquant_group_k")
    return "", ()


def _axes(document: Mapping[str, Any], kind: type[KernelConfig], name: str) -> list[list[dict[str, Any]]]:
    """Return the axes of a sweep: of each its choices, as fields of a configuration."""
    known = {field.name for field in dataclasses.fields(kind)}
    axes: list[list[dict[str, Any]]] = []
    for key, value in document.items():
        if key in _PLURALS:
            axes.append([{kind.dtype_field: choice} for choice in _list(value, f"{name}: {key}")])
        elif key == "layouts":
            axes.append([{"layout": choice} for choice in _list(value, f"{name}: {key}")])
        elif key in ("tile_configs", *_GROUPS):
            axes.append([_fields(choice, known, f"{name}: {key}") for choice in _list(value, f"{name}: {key}")])
        elif key in ("tile_config", "trait_config"):
            for inner, values in check_type(f"{name}: {key}", value, dict, "an object").items():
                choices = _values(values, f"{name}: {key}: {inner}")
                axes.append([_fields({inner: choice}, known, f"{name}: {key}") for choice in choices])
        elif key in _ARCHES:
            axes.append([{kind.arch_field: value}])
        elif key == "block_size":
            axes.append([{"block_size": value}])
        else:
            choices = value if isinstance(value, list) else [value]
            axes.append([_fields({key: choice}, known, name) for choice in choices])
    return axes


def _combinations(axes: list[list[dict[str, Any]]], name: str) -> Iterator[dict[str, Any]]:
    count = 1
    for axis in axes:
        count *= len(axis)
        if count > MOST:
            raise ValueError(f"{name}: got more than {MOST} combinations, want at most so many in a file")
    for choice in itertools.product(*axes):
        fields: dict[str, Any] = {}
        for part in choice:
            fields |= part
        size = fields.pop("block_size", None)
        waves = [fields.get(f"warp_{axis}", 1) for axis in "mnk"]
        if size not in _BLOCK_SIZES and not (all(isinstance(w, int) for w in waves) and size == 64 * _product(waves)):
            raise ValueError(f"{name}: block_size: got {shown(size)}, want 64 threads a wave, or CK's 256")
        yield fields


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _fields(choice: Any, known: set[str], name: str) -> dict[str, Any]:
    fields = check_type(name, choice, dict, "an object")
    for key in fields:
        if key not in known:
            raise ValueError(f"{name}: got the field {shown(key)}, want one of {', '.join(sorted(known))}")
    return dict(fields)


def _list(value: Any, name: str) -> list[Any]:
    found = check_type(name, value, list, "a list")
    if not found:
        raise ValueError(f"{name}: got an empty list, want at least one choice")
    return found


def _values(value: Any, name: str) -> list[Any]:
    """Return the tile engine's values: a list, a range of integers, or one value."""
    if not isinstance(value, dict):
        return [value]
    if set(value) == {"values"}:
        return _list(value["values"], name)
    if set(value) == {"min", "max", "step"} and all(type(value[key]) is int for key in value):
        if value["step"] < 1 or value["min"] < 1 or value["max"] - value["min"] > MOST * value["step"]:
            raise ValueError(f"{name}: got {shown(value)}, want a range of positive sizes with a positive step")
        return _list(list(range(value["min"], value["max"] + 1, value["step"])), name)
    raise ValueError(f"{name}: got {shown(value)}, want values, or min, max and step")
