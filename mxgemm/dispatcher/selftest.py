"""The self-test: build every operation's default kernels, run what can run here, say plainly what could not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mxgemm.arguments import one_of
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.build import SOURCES, BuildResult, Source, build
from mxgemm.dispatcher.config import KernelConfig, joined
from mxgemm.dispatcher.errors import DispatcherError, ToolchainMissing
from mxgemm.dispatcher.execution import EXECUTIONS, Execution
from mxgemm.dispatcher.library import Library
from mxgemm.dispatcher.operation import Problem
from mxgemm.dispatcher.operations import OPERATIONS
from mxgemm.dispatcher.runner import TOLERANCES, Verdict, verify

PASS: Final = "PASS"
FAIL: Final = "FAIL"
SMOKE_ONLY: Final = "SMOKE-ONLY"
"""The library loads and says what it is; nothing has been computed, so nothing is known of its numbers."""
NOT_RUN: Final = "NOT RUN"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one kernel in one place.

    Attributes:
        operation: its operation.
        dtype: the types of A and B, as the kernel's name has them.
        kernel: its name.
        arch: what it was built for.
        source: ``native`` or ``ck_tile``.
        built: whether there is a library.
        where: where it ran, or "".
        max_relative_error: the largest of its problems', or None if nothing ran.
        tolerance: how large that may be.
        time_ms: of a launch of the last problem, where it was timed.
        status: PASS, FAIL, SMOKE-ONLY or NOT RUN.
        reason: why it is not PASS, or "".
    """

    operation: str
    dtype: str
    kernel: str
    arch: str
    source: str
    built: bool
    where: str
    max_relative_error: float | None
    tolerance: float
    time_ms: float | None
    status: str
    reason: str


def selftest(
    *,
    operations: Sequence[str] | None = None,
    archs: Sequence[str],
    source: Source = "native",
    executions: Sequence[Execution] | None = None,
    jobs: int | None = None,
    report: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Build and run the default kernels.

    Args:
        operations: names; default: all.
        archs: architectures to build for.
        source: where the kernels come from.
        executions: where to try to run them; default: everywhere that the bridge knows.
        jobs: kernels compiled at a time.
        report: told each row as it is known.

    Raises:
        ValueError: there is no such operation, source or architecture.
    """
    chosen = [one_of("operations", name, OPERATIONS) for name in operations or OPERATIONS]
    one_of("source", source, SOURCES)
    for arch in archs:
        bare_arch(arch)
    places = EXECUTIONS if executions is None else executions
    rows: list[Row] = []
    for arch in archs:
        for name in chosen:
            for row in _rows(OPERATIONS[name].default_configs(arch), source, places, jobs):
                rows.append(row)
                if report is not None:
                    report(row)
    return rows


def _rows(configs: Sequence[KernelConfig], source: Source, places: Sequence[Execution], jobs: int | None) -> list[Row]:
    legal = [config for config in configs if config.is_valid()]
    rows = [_row(config, source, NOT_RUN, joined(config.refusals())) for config in configs if config not in legal]
    try:
        results = build(legal, source=source, jobs=jobs)
    except ToolchainMissing as error:
        return rows + [_row(config, source, NOT_RUN, str(error)) for config in legal]
    for result in results:
        rows += _run(result, places)
    return rows


def _run(result: BuildResult, places: Sequence[Execution]) -> list[Row]:
    config, source = result.config, result.source
    if result.path is None:
        return [_row(config, source, FAIL, result.error)]
    missing = {place.name: place.missing(config, source) for place in places}
    rows = [_execute(result, place) for place in places if not missing[place.name]]
    if rows:
        return rows
    why = "; ".join(f"{name}: {reason}" for name, reason in missing.items()) or "nobody asked for it"
    try:
        said = _smoke(Library(result.path, config))
    except (ValueError, OSError) as error:
        return [_row(config, source, FAIL, str(error), built=True)]
    return [_row(config, source, SMOKE_ONLY, f"{said}. Nothing was computed: {why}", built=True)]


def _smoke(library: Library) -> str:
    said = f"the library gives its name, its architecture ({library.arch}) and its count ({library.count})"
    try:
        library.initialize()
    except DispatcherError as error:
        return f"{said}, and says why it cannot run: {str(error).removeprefix(f'{library.name}: ')}"
    library.close()
    return f"{said}, and can be initialized"


def _execute(result: BuildResult, place: Execution) -> Row:
    config, worst, complaint = result.config, 0.0, ""
    verdict: Verdict | None = None
    for problem in problems(config, result.source):
        try:
            verdict = verify(config, result.library(), place, problem)
        except Exception as error:  # whatever a place does to a kernel is that kernel's result, and the others go on
            complaint, worst = f"{_sizes(problem)}: {error}", float("inf")
            break
        worst = max(worst, verdict.max_relative_error)
        if not verdict.passed:
            complaint = f"{_sizes(problem)}: {verdict.complaint}"
            break
    return Row(
        operation=config.operation,
        dtype=config.dtype,
        kernel=config.name,
        arch=config.arch or "",
        source=result.source,
        built=True,
        where=place.name,
        max_relative_error=worst,
        tolerance=TOLERANCES[config.scheme.c],
        time_ms=verdict.time_ms if verdict else None,
        status=FAIL if complaint else PASS,
        reason=complaint,
    )


def problems(config: KernelConfig, source: str) -> tuple[Problem, ...]:
    """Return what the self-test multiplies: sizes on and off the tile for native kernels, on it for CK's."""
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    if source == "ck_tile":
        return (Problem(-(-128 // m) * m, 2 * n, 2 * k),)
    return Problem(1, n, k), Problem(33, n + 32, k + 32)


def _sizes(problem: Problem) -> str:
    return f"M {problem.m}, N {problem.n}, K {problem.k}"


def _row(config: KernelConfig, source: str, status: str, reason: str, *, built: bool = False) -> Row:
    return Row(
        operation=config.operation,
        dtype=config.dtype,
        kernel=config.name,
        arch=config.arch or "",
        source=source,
        built=built,
        where="",
        max_relative_error=None,
        tolerance=TOLERANCES[config.scheme.c],
        time_ms=None,
        status=status,
        reason=reason,
    )
