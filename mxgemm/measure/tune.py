"""Measure every legal configuration of every route and write what was found as a routing table.

A row is written for each route that passes both gates, with its fastest configuration: where the fastest route cannot
take a caller's operands, the next one is measured too. Name the file in ``MXGEMM_TABLES`` to use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import files
from mxgemm._version import __version__
from mxgemm.device import machine_of
from mxgemm.files import FileError
from mxgemm.measure import PEERS, Shape, inputs
from mxgemm.measure.step import Step
from mxgemm.measure.timing import CALL_METHOD, call_us
from mxgemm.measure.trial import Trial
from mxgemm.mx.formats import ActivationFormat
from mxgemm.mx.tensor import MXTensor
from mxgemm.routes import ROUTES, Config, Route
from mxgemm.routing import tables
from mxgemm.routing.tables import Row
from mxgemm.triton.support import triton_version

_SIGNIFICANT: Final = 4
_MARK: Final = files.json_mark(tables.KIND)


@dataclass(frozen=True, slots=True)
class Timing:
    """One configuration of one route on one shape.

    Attributes:
        shape: (M, N, K).
        route: its name.
        config: what was measured.
        us: median microseconds, None where it did not pass.
        reason: why not.
    """

    shape: Shape
    route: str
    config: Config
    us: float | None
    reason: str = ""


def tune(
    shapes: Sequence[Shape],
    *,
    device: torch.device,
    a_format: ActivationFormat = "e2m1",
    prepared: bool = True,
    routes: Sequence[str] = (),
    seconds: float = 0.2,
) -> Iterator[Timing]:
    """Measure, yielding timings as they come.

    Args:
        shapes: (M, N, K) triples.
        device: where to run.
        a_format: as in ``gemm``.
        prepared: hand the routes ``weight.prepare()``, as inference does; otherwise the row-major weight.
        routes: names of the routes to measure; none for all.
        seconds: time to spend on one configuration, at least five calls.

    Raises:
        ValueError: a route of that name does not exist.
    """
    for name in routes:
        if name not in ROUTES:
            raise ValueError(f"route: got {name!r}, want one of {', '.join(ROUTES)}")
    for shape in shapes:
        a, weight = inputs(*shape, device)
        for route, config, trial in _candidates(a, weight, a_format, prepared, routes):
            yield _measure(shape, route, config, trial, seconds)


def steps(
    shapes: Sequence[Shape], *, device: torch.device, seconds: float = 0.2, prepared: bool = True
) -> Iterator[Step]:
    """Yield what :func:`tune` would do, to be done or not: of each shape ``torch.mm`` first, a report's "baselines".

    Then every legal configuration of every route, a report's "tuned".
    """
    for shape in shapes:
        m, n, k = shape
        size, who = f"{m},{n},{k}", {"m": m, "n": n, "k": k}
        a, weight = inputs(*shape, device)
        what = partial(_baseline, a, weight, device, seconds)
        yield Step(f"torch.mm {size}", f"{size} tuned", "baselines", who, what)
        for route, config, trial in _candidates(a, weight, "e2m1", prepared, ()):
            values = config.to_mapping()
            yield Step(
                f"tune {size} {route.name}: {values}", f"{size} tuned", "tuned",
                who | {"route": route.name, "config": values}, partial(_tuned, shape, route, config, trial, seconds),
            )  # fmt: skip


def timing_of(record: Mapping[str, Any]) -> Timing:
    """Return the timing that a report's record of a step of :func:`steps` holds."""
    config = ROUTES[record["route"]].config_type.from_mapping(record["config"])
    shape = record["m"], record["n"], record["k"]
    return Timing(shape, record["route"], config, record.get("us"), record.get("reason", ""))


def rows(timings: Sequence[Timing], device: torch.device, a_format: ActivationFormat, source: str) -> list[Row]:
    """Return a row for each shape and route, with its fastest configuration."""
    best: dict[tuple[Shape, str], tuple[float, Timing]] = {}
    for timing in timings:
        key = timing.shape, timing.route
        if timing.us is not None and (key not in best or timing.us < best[key][0]):
            best[key] = timing.us, timing
    machine = machine_of(device)
    return [
        Row(
            *(*timing.shape, timing.route, source, "measured", float(f"{us:.{_SIGNIFICANT}g}")),
            a_format=a_format,
            cu_count=machine.cu_count,
            config=timing.config.to_mapping(),
        )
        for us, timing in sorted(best.values(), key=lambda item: (item[1].shape, item[0]))
    ]


def source_of(device: torch.device, prepared: bool, now: datetime | None = None) -> tuple[str, dict[str, str]]:
    """Return a name for this run, and what a table says about it: device, date, versions, what is timed."""
    machine, version = machine_of(device), triton_version()
    date = (now or datetime.now(timezone.utc)).isoformat(timespec="seconds")
    versions = [f"mxgemm {__version__}", f"torch {torch.__version__}"]
    versions += [f"triton {version[0]}.{version[1]}"] if version else []
    units = f", {machine.cu_count} compute units" if machine.cu_count else ""
    return f"tune {date}", {
        "title": f"mxgemm tune on {machine.name}{units}, {date}, {', '.join(versions)}",
        "scope": "call",
        "covers": f"{CALL_METHOD[device.type]}; weights {'prepared' if prepared else 'row-major, not prepared'}",
    }


def existing(path: Path, arch: str, *, force: bool = False) -> tables.Table | None:
    """Return the table that :func:`write` would add to, None if there is none.

    Args:
        path: of the table.
        arch: that it must be for.
        force: a file that is no such table is none, and will be replaced.

    Raises:
        TableError: the file is no table, or one for another architecture.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return None
    try:
        table = tables.load(path)
        if table.arch != arch:
            raise tables.TableError(f"{path}: got a table for {table.arch}, want one for {arch}, or another file")
    except tables.TableError as error:
        if force and path.is_file():
            return None
        hint = "; --force replaces it" if path.is_file() else ""
        raise tables.TableError(f"{error}{hint}") from error
    return table


def check_writable(path: Path, arch: str, *, force: bool = False) -> None:
    """Find out before the work whether :func:`write` will be able to.

    Raises:
        FileError: the file is no table for ``arch`` and ``force`` is not set, or cannot be written.
    """
    ours = existing(path, arch, force=force) is not None
    files.check_writable(path, _MARK, force=force or ours)


def write(
    path: Path, arch: str, name: str, source: dict[str, str], measured: Sequence[Row], *, force: bool = False
) -> None:
    """Write a table, or add to the one that is there: rows of the same shapes and formats are replaced, others stay.

    Whoever else adds to the same table meanwhile waits, in this process and in others.

    Raises:
        FileError: as :func:`check_writable`; the message says where the rows are instead.
    """
    try:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(target.parent / ".mxgemm-tables.lock"):
            old = existing(path, arch, force=force)
            text = files.json_text(document_of(arch, name, source, measured, old))
            files.write(path, text, _MARK, force=force or old is not None)
    except (FileError, OSError) as error:
        alone = files.json_text(document_of(arch, name, source, measured, None))
        raise FileError(f"{error}; {files.rescue(path.name, alone)}") from error


def document_of(
    arch: str, name: str, source: dict[str, str], measured: Sequence[Row], old: tables.Table | None
) -> dict[str, Any]:
    """Return a table of what was measured, added to an old one where there is one."""
    sources: dict[str, Any] = {name: source}
    kept: list[Row] = []
    rules: list[dict[str, Any]] = []
    if old:
        replaced = {_key(row) for row in measured}
        kept = [row for row in old.rows if _key(row) not in replaced]
        rules = [asdict(rule) for rule in old.rules]
        used = {row.source for row in kept} | {rule["source"] for rule in rules}
        sources |= {title: dict(text) for title, text in old.sources.items() if title in used}
    document = {
        "kind": tables.KIND,
        "version": tables.VERSION,
        "arch": arch,
        "sources": sources,
        "rules": rules,
        "rows": [asdict(row) | {"config": dict(row.config)} for row in (*kept, *measured)],
    }
    tables.parse(document, "what was measured")  # nobody shall find a table that cannot be read
    return document


def _key(row: Row) -> tuple[int, int, int, str, str]:
    return row.m, row.n, row.k, row.a_format, row.b_format


def _candidates(
    a: Tensor, weight: MXTensor, a_format: ActivationFormat, prepared: bool, routes: Sequence[str]
) -> Iterator[tuple[Route, Config, Trial]]:
    trial = Trial(a, weight, weight.prepare() if prepared else weight, a_format, False)
    for route in (ROUTES[name] for name in routes or ROUTES):
        if route.refusal(trial.problem) is None:
            for config in _legal(route, trial):
                yield route, config, trial


def _baseline(a: Tensor, weight: MXTensor, device: torch.device, seconds: float) -> dict[str, Any]:
    peer = PEERS["torch_mm"]
    loaded = peer.load(weight)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # where the clock's events are
        time = call_us(lambda: peer.call(a, loaded), device, seconds)
    return {"state": "passed", "us": time.us, "us_low": time.low, "us_high": time.high, "runs": time.runs}


def _tuned(shape: Shape, route: Route, config: Config, trial: Trial, seconds: float) -> dict[str, Any]:
    timing = _measure(shape, route, config, trial, seconds)
    return {"state": "failed", "reason": timing.reason} if timing.us is None else {"state": "passed", "us": timing.us}


def _legal(route: Route, trial: Trial) -> list[Config]:
    legal = dict.fromkeys([*route.configs(trial.problem), *route.candidates(trial.problem)])
    return [config for config in legal if route.check_config(trial.problem, config) is None]


def _measure(shape: Shape, route: Route, config: Config, trial: Trial, seconds: float) -> Timing:
    try:
        outcome = trial.run(route, config, seconds)
    except Exception as error:  # a configuration that cannot be built or run is left out, and said so
        return Timing(shape, route.name, config, None, f"{type(error).__name__}: {error}")
    return Timing(shape, route.name, config, outcome.us, "" if outcome.us else "an error beyond its gate")
