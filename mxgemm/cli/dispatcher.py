"""``mxgemm dispatcher``: names, builds and the self-test of the CK bridge."""

from __future__ import annotations

from argparse import Namespace

from mxgemm.arguments import one_of
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.dispatcher import OPERATIONS, BuildResult, KernelConfig, build
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
    for config in _defaults(options.op, archs):
        say(config.name)
    return 0


def _build(options: Namespace, archs: list[str]) -> int:
    configs = _defaults(options.op, archs)
    with progress(len(configs)) as shown:

        def advance(done: int, total: int, result: BuildResult) -> None:
            shown.done(f"{result.config.operation} {result.config.arch} {options.source}")

        results = build(configs, source=options.source, jobs=options.jobs, progress=advance)
    for result in results:
        say(f"{result.config.name} {result.config.arch}")
        failed = result.path is None
        say(f"  failed: {result.error}" if failed else f"  {result.path} ({result.seconds:.1f} s)")
    return int(any(result.path is None for result in results))


def _selftest(options: Namespace, archs: list[str]) -> int:
    names = options.op or list(OPERATIONS)
    kernels = sum(len(OPERATIONS[name].default_configs(arch)) for name in names for arch in archs)
    with progress(kernels) as shown:
        seen: set[tuple[str, str]] = set()

        def tell(row: check.Row) -> None:
            if (row.kernel, row.arch) not in seen:  # one kernel runs in several places
                seen.add((row.kernel, row.arch))
                shown.done(f"{row.operation} {row.dtype} {row.arch}")

        rows = check.selftest(operations=names, archs=archs, source=options.source, jobs=options.jobs, report=tell)
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


def _defaults(names: list[str], archs: list[str]) -> list[KernelConfig]:
    configs = [
        config for arch in archs for name in names or OPERATIONS for config in OPERATIONS[name].default_configs(arch)
    ]
    valid = [config for config in configs if config.is_valid()]
    if not valid:
        raise ValueError("; ".join(f"{config.name}: {why}" for config in configs for why in config.refusals()))
    return valid
