"""``mxgemm dispatcher``: names, builds and the self-test of the CK bridge."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from mxgemm.arguments import one_of
from mxgemm.cli.dispatcher_kernels import delivered, kernels
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.dispatcher import OPERATIONS, BuildResult, Library, build
from mxgemm.dispatcher import selftest as check
from mxgemm.dispatcher.arch import KNOWN, bare_arch
from mxgemm.measure import text

_COLUMNS = ("operation", "type", "arch", "built", "where", "error", "limit", "time", "status")


def run(options: Namespace) -> int:
    """Do what was asked of the bridge."""
    archs = [one_of("--arch", _bare(name), KNOWN) for name in options.arch] or list(KNOWN)
    actions = {"names": _names, "build": _build, "selftest": _selftest}
    return actions[options.action](options, archs)


def _bare(name: str) -> str:
    try:
        return bare_arch(name)
    except ValueError as error:
        raise ValueError(str(error).replace("gfx_arch", "--arch", 1)) from error


def _names(options: Namespace, archs: list[str]) -> int:
    for config in kernels(options, archs):
        say(config.name)
    return 0


def _build(options: Namespace, archs: list[str]) -> int:
    configs = kernels(options, archs)
    if options.list_names:
        return _names(options, archs)
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)  # before the work, if it cannot be
    with progress(len(configs)) as shown:

        def advance(done: int, total: int, result: BuildResult) -> None:
            shown.done(f"{result.config.operation} {result.config.arch} {options.source}")

        results = build(configs, source=options.source, jobs=options.jobs, progress=advance)
    failed = False
    for result in results:
        say(f"{result.config.name} {result.config.arch}")
        complaint = result.error if result.path is None else _complaint(result, options)
        failed |= bool(complaint)
        say(f"  failed: {complaint}" if complaint else f"  {_place(result, options)} ({result.seconds:.1f} s)")
    return int(failed)


def _complaint(result: BuildResult, options: Namespace) -> str:
    """Open a library, which needs no device, and say what is wrong with it; "" if it is what was asked for."""
    if options.build_only:
        return ""
    try:
        Library(result.library(), result.config)
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _place(result: BuildResult, options: Namespace) -> Path:
    """Return where a library is: in the cache, or where a copy was asked for."""
    if options.output_dir is None:
        return result.library()
    return delivered(result, options.output_dir)


def _selftest(options: Namespace, archs: list[str]) -> int:
    names = options.op or list(OPERATIONS)
    count = sum(len(OPERATIONS[name].default_configs(arch)) for name in names for arch in archs)
    with progress(count) as shown:
        seen: set[tuple[str, str]] = set()

        def tell(row: check.Row) -> None:
            if (row.kernel, row.arch) not in seen:  # one kernel runs in several places
                seen.add((row.kernel, row.arch))
                shown.done(f"{row.operation} {row.dtype} {row.arch}")

        places = () if options.build_only else None
        rows = check.selftest(
            operations=names, archs=archs, source=options.source, jobs=options.jobs, executions=places, report=tell
        )
    say_table(
        _COLUMNS,
        [_cells(row) for row in rows],
        left=_COLUMNS[:4],
        wrapped=("where",),
        shared=("operation", "type", "arch"),
    )
    for row in rows:
        if row.reason:
            say(f"{row.status}: {row.kernel} ({row.arch}): {row.reason}")
    return int(any(row.status == check.FAIL for row in rows))


def _cells(row: check.Row) -> tuple[str, ...]:
    return (
        row.operation,
        row.dtype,
        row.arch,
        "yes" if row.built else "no",
        row.where,
        "" if row.max_relative_error is None else f"{row.max_relative_error:.2e}",
        f"{row.tolerance:.2e}",
        text.duration(None if row.time_ms is None else row.time_ms * 1e3),
        row.status,
    )
