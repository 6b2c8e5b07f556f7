"""Which kernels an ``mxgemm dispatcher`` line means, and how built ones are handed out."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from mxgemm import files
from mxgemm.cli.terminal import say
from mxgemm.dispatcher import OPERATIONS, BuildResult, KernelConfig, config_named, document_of, read_config, read_sweep
from mxgemm.dispatcher.execution import described
from mxgemm.files import FileError

NATIVE_SUFFIX: Final = ".native.json"
_DOCUMENT: Final = files.Mark("JSON", rb"\A\s*\{")
_LIBRARY: Final = files.Mark("a shared library", rb"\A\x7fELF")


def kernels(options: Namespace, archs: list[str]) -> list[KernelConfig]:
    """Return the kernels that a line asks for: by name, by JSON, or the default ones of operations.

    A kernel that is legal on one of the architectures only is meant for that one.

    Raises:
        ValueError: one is legal on none, or there is nothing left to build; every reason is named.
    """
    if not (options.name or options.config or options.sweep):
        return _defaults(options.op, archs)
    operation = _one_operation(options.op) if options.config or options.sweep else None
    found: dict[KernelConfig, None] = {}
    readers: list[Callable[[str], list[KernelConfig]]] = [
        *(partial(_named, name) for name in options.name),
        *(partial(_one, path, operation) for path in options.config),
        *(partial(_swept, path, operation) for path in options.sweep),
    ]
    for read in readers:
        found |= dict.fromkeys(_legal(read, archs))
    return list(found)


def _one_operation(names: list[str]) -> str | None:
    if len(names) > 1:
        raise ValueError(f"--op: got {', '.join(names)}, want one operation for --config and --sweep")
    return names[0] if names else None


def _named(name: str, arch: str) -> list[KernelConfig]:
    config = config_named(name, arch)
    config.check()
    return [config]


def _one(path: Path, operation: str | None, arch: str) -> list[KernelConfig]:
    return [read_config(path, arch, operation)]


def _swept(path: Path, operation: str | None, arch: str) -> list[KernelConfig]:
    sweep = read_sweep(path, arch, operation)
    if not sweep.configs:
        raise ValueError(f"{path}: got no kernel that may be built: {'; '.join(sweep.refused[:8]) or 'it names none'}")
    for reason in sweep.refused:
        say(f"left out, {arch}: {reason}")
    return list(sweep.configs)


def _legal(read: Callable[[str], list[KernelConfig]], archs: list[str]) -> list[KernelConfig]:
    found: list[KernelConfig] = []
    errors: list[ValueError] = []
    for arch in archs:
        try:
            found += read(arch)
        except FileError:
            raise
        except ValueError as error:
            errors.append(error)
    if not found:
        raise ValueError(str(errors[0])) from errors[0]
    return found


def _defaults(names: list[str], archs: list[str]) -> list[KernelConfig]:
    configs = [
        config for arch in archs for name in names or OPERATIONS for config in OPERATIONS[name].default_configs(arch)
    ]
    valid = [config for config in configs if config.is_valid()]
    if not valid:
        raise ValueError("; ".join(f"{config.name}: {why}" for config in configs for why in config.refusals()))
    return valid


def delivered(result: BuildResult, folder: Path) -> Path:
    """Copy a library into a folder, a configuration and a native one's description too, each file whole.

    Returns:
        the library's copy, ``lib_NAME_ARCH.so``; beside it are ``lib_NAME_ARCH.json`` and, of a native one,
        ``lib_NAME_ARCH.native.json``.

    Raises:
        FileError: the folder or the disk does not take them, or a file of this name is of another kind.
    """
    source = result.library()
    target = folder / f"lib_{result.config.name}_{result.config.arch}.so"
    text = json.dumps(document_of(result.config), indent=1) + "\n"
    files.write(target.with_suffix(".json"), text, _DOCUMENT)
    if result.source == "native":
        files.write(target.with_suffix(NATIVE_SUFFIX), described(source).read_bytes(), _DOCUMENT)
    return files.write(target, source.read_bytes(), _LIBRARY)
