"""Configurations to libraries: each kernel built once, in parallel, kept by everything that decides it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from mxgemm import build_cache
from mxgemm.arguments import as_int, as_path, one_of, shown
from mxgemm.dispatcher.arch import bare_arch, detect_arch
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.errors import ToolchainMissing
from mxgemm.errors import BuildError

Source = Literal["native", "ck_tile"]
SOURCES: Final[tuple[str, ...]] = get_args(Source)
LIBRARY: Final = "kernel.so"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of one configuration.

    Attributes:
        config: the configuration, pinned to its architecture.
        source: where the kernel comes from.
        path: the library, or None if the build failed.
        error: what the compiler said, or "".
        seconds: time that the build took; next to nothing where it was there already.
    """

    config: KernelConfig
    source: str
    path: Path | None
    error: str
    seconds: float

    def library(self) -> Path:
        """Return the library.

        Raises:
            BuildError: it could not be built.
        """
        if self.path is None:
            raise BuildError(self.error)
        return self.path


Progress = Callable[[int, int, BuildResult], None]
"""Told after each kernel: how many are done, how many there are, what became of this one."""


def build(
    configs: Iterable[KernelConfig],
    *,
    source: Source = "native",
    gfx_arch: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    ck_include: Path | None = None,
    hipcc: Path | None = None,
) -> list[BuildResult]:
    """Build the library of each configuration, or find it built.

    Args:
        configs: kernels; equal ones are built once.
        source: ``native`` (mxgemm's own kernels) or ``ck_tile``.
        gfx_arch: the architecture; default: each configuration's own, else this machine's.
        jobs: kernels compiled at a time; default: one a processor.
        progress: told after each kernel.
        ck_include: CK's include tree, for ``ck_tile``.
        hipcc: the compiler, for ``ck_tile``.

    Returns:
        A result for each configuration, in their order. A kernel that does not compile has its compiler's output in its
        result and stops no other.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: a configuration must not be built (all reasons are named), or the source is unknown.
        RuntimeError: no architecture was given and none could be detected.
        ToolchainMissing: a compiler is missing, or triton (``native``) or CK (``ck_tile``).
    """
    one_of("source", source, SOURCES)
    if jobs is not None:
        jobs = as_int("jobs", jobs)
        if jobs < 1:
            raise ValueError(f"jobs: got {shown(jobs)}, want at least 1")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: got {shown(progress)}, want a function of (done, total, result)")
    ck_include, hipcc = _path("ck_include", ck_include), _path("hipcc", hipcc)
    pinned = _pinned(_listed(configs), gfx_arch)
    for config in pinned:
        config.check()
    make = _maker(source, ck_include, hipcc)
    kinds = list(dict.fromkeys(pinned))
    done: dict[KernelConfig, BuildResult] = {}
    with ThreadPoolExecutor(max_workers=max(1, min(jobs or os.cpu_count() or 1, len(kinds)))) as pool:
        for future in as_completed([pool.submit(_build_one, config, source, make) for config in kinds]):
            result = future.result()
            done[result.config] = result
            if progress is not None:
                progress(len(done), len(kinds), result)
    return [done[config] for config in pinned]


def _listed(configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    try:
        found = list(configs)
    except TypeError:
        raise TypeError(f"configs: got {shown(configs)}, want kernel configurations") from None
    for config in found:
        if not isinstance(config, KernelConfig):
            raise TypeError(f"configs: got {shown(config)}, want kernel configurations")
    return found


def _pinned(configs: list[KernelConfig], gfx_arch: str | None) -> list[KernelConfig]:
    wanted = None if gfx_arch is None else bare_arch(gfx_arch)
    unsaid = wanted is None and any(config.arch is None for config in configs)
    here = detect_arch() if unsaid else ""
    return [config.pinned(wanted or config.arch or here) for config in configs]


class _Maker(NamedTuple):
    """A source of kernels, as functions of a configuration and an architecture.

    Attributes:
        key: what decides the library.
        make: build it into a folder.
    """

    key: Callable[[KernelConfig, str], dict[str, Any]]
    make: Callable[[KernelConfig, str, Path], Path]


def _maker(source: str, ck_include: Path | None, hipcc: Path | None) -> _Maker:
    if source == "native":
        from mxgemm.dispatcher import native  # triton is loaded where it is needed

        return _Maker(native.native_key, native.build_native)
    from mxgemm.dispatcher import ck_tile

    toolchain = ck_tile.find_toolchain(ck_include, hipcc)
    return _Maker(
        lambda config, arch: ck_tile.ck_tile_key(config, arch, toolchain),
        lambda config, arch, folder: ck_tile.build_ck_tile(config, arch, folder, toolchain),
    )


def _path(argument: str, value: Any) -> Path | None:
    return None if value is None else as_path(argument, value)


def _build_one(config: KernelConfig, source: str, maker: _Maker) -> BuildResult:
    started = time.monotonic()
    arch = bare_arch(config.arch or "")

    def make(folder: Path) -> None:
        built = maker.make(config, arch, folder)
        if built != folder / LIBRARY:
            built.rename(folder / LIBRARY)

    try:
        parts = {
            "kind": "dispatcher",
            "source": source,
            "arch": arch,
            "config": dataclasses.asdict(config),
            **maker.key(config, arch),
        }
        path = build_cache.cached(parts, LIBRARY, make, f"{config.name} ({source}, {arch})")
    except ToolchainMissing:
        raise
    except (BuildError, ValueError, OSError) as error:
        return BuildResult(config, source, None, str(error), time.monotonic() - started)
    return BuildResult(config, source, path, "", time.monotonic() - started)
