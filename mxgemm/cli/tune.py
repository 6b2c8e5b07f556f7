"""``mxgemm tune``: measure what promises most of every route's configurations, and keep it in a routing table."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import torch

from mxgemm import measure
from mxgemm.cli.model_sizes import model_sizes
from mxgemm.cli.sizes import device_for, fitting, sizes_of
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.device import Machine, machine_named, machine_of
from mxgemm.measure import again, building, settled, text, tuned, tuner, unfinished, workers
from mxgemm.measure.forms import Form, problem_in_form
from mxgemm.measure.search import Candidate, ordered
from mxgemm.measure.tune import Known, Task, Timing, candidates
from mxgemm.routing import tables

_ROW = ("M,N,K", "A", "time", "before", "route", "configuration")


def run(options: Namespace) -> int:
    """Measure, print and write; 1 where nothing was found."""
    if options.merge:
        return _merge(options)
    if options.dry_run:
        return _dry_run(options)
    if options.build_only:
        return _build_only(options)
    devices = _devices(options.device)
    machine = machine_of(devices[0])
    tasks, routes = _tasks(options, machine, devices)
    path = _output(options, machine.arch)
    tuned.check_writable(path, machine.arch, force=options.force)  # before the work, not after it
    old = tuned.existing(path, machine.arch, force=options.force)
    request = tuner.Request(tasks, routes, options.seconds, 0 if options.every else options.patience)
    folder = unfinished.folder_of(path)
    if options.anew:
        unfinished.forget(folder, request.tasks)
    _say_what_is_done(request, devices[0], path)
    found = _measure(options, request, devices, path, machine)
    for timing, count in _left_out(found.timings).items():
        say(f"left out {count}: {timing}")
    for failure in found.failures:
        say(f"not tuned: {failure}")
    _say_rows(found, devices[0], old)
    if found.end == "finished":
        unfinished.forget(folder, request.tasks)
    else:
        why = "the time is over" if found.end == "budget" else "the device answers no longer"
        say(f"unfinished: {why}; the same command again goes on")
    if not any(timing.us for timing in found.timings):
        say("nothing was measured: no route that was asked for took a shape and passed")
        return 1
    _settle(path, machine, {task.shape[1:] for task in tasks})
    say(f"{len(found.timings)} configurations measured; wrote {path}{_how_to_use(options)}")
    return 0


def _measure(
    options: Namespace, request: tuner.Request, devices: Sequence[torch.device], path: Path, machine: Machine
) -> tuner.Found:
    with ExitStack() as stack:
        ahead: Known = lambda task: None  # noqa: E731
        if options.jobs and devices[0].type == "cpu":  # which would be disturbed
            _build(options, request.tasks, request.routes, machine, options.jobs)
        elif options.jobs:
            tasks, each = tuner.left_of(request, devices[0], path), 1 + 2 * options.patience
            ahead = building.Ahead(tasks, machine, request.routes, each, options.jobs)
            stack.callback(ahead.close)
        shown = stack.enter_context(progress(len(request.tasks)))

        def tell(event: tuner.Event) -> None:
            best = f"; best {event.best}" if event.best else ""
            shown.now(f"{event.task}: {event.measured} of at most {event.known}{best}")
            if event.done:
                shown.done(f"{event.task}{best}")

        if len(devices) > 1:
            return workers.run(request, devices, path, budget=options.budget, force=options.force, tell=tell)
        return tuner.run(request, devices[0], path, budget=options.budget, force=options.force, tell=tell, known=ahead)


def _build_only(options: Namespace) -> int:
    machine = _named_machine(options.device)
    built = _build(options, *_tasks(options, machine), machine, options.jobs or os.cpu_count() or 1)
    return 1 if built.failures and not built.bound else 0


def _build(
    options: Namespace, tasks: Sequence[Task], routes: Sequence[str], machine: Machine, jobs: int
) -> building.Built:
    each, start = 1 + options.patience, time.monotonic()
    with progress(len(tasks)) as shown:
        built = building.build(
            tasks, machine, routes, each, jobs, budget=options.budget, tell=lambda task: shown.done(str(task))
        )
    for failure in built.failures:
        say(f"not built: {failure}")
    left = f", no time for {built.left} of {len(tasks)} sizes" if built.left else ""
    say(f"{built.bound} configurations bound for {machine.name} in {time.monotonic() - start:.0f} s{left}")
    return built


def _merge(options: Namespace) -> int:
    first = tables.load(options.merge[0])
    path = _output(options, first.arch)
    table = tuned.merge(path, options.merge, force=options.force)
    machine = machine_named(first.arch)
    if machine is not None and _settle(path, machine, set(table.by_weight)):
        table = tables.load(path)
    say(f"{len(options.merge)} tables merged: {len(table.rows)} rows for {table.arch}; wrote {path}"
        f"{_how_to_use(options)}")  # fmt: skip
    return 0


def _settle(path: Path, machine: Machine, weights: Collection[tuple[int, int]]) -> int:
    """Take out what contradicts, say it, and return how many rows that were."""
    found = settled.settle(path, machine, weights)
    for one in found:
        say(f"left out of the table: {one}")
    return len(found)


def _dry_run(options: Namespace) -> int:
    machine = _named_machine(options.device)
    rows = []
    tasks, routes = _tasks(options, machine)
    for task in tasks:
        problem = problem_in_form(*task.shape, machine, task.a_format, task.form)
        found = ordered(candidates(problem, routes))
        counts = Counter(candidate.route for candidate in found)
        first: dict[str, Candidate] = {}
        for candidate in found:
            first.setdefault(candidate.route, candidate)
        for candidate in first.values():
            about = text.duration(candidate.estimate_us), candidate.route, str(counts[candidate.route])
            rows.append((",".join(map(str, task.shape)), task.a_format, *about, str(candidate.config)))
    columns = ("M,N,K", "A", "estimate", "route", "known", "tried first")
    say_table(columns, rows, left=("M,N,K", "A", "route"), wrapped=("tried first",), shared=("M,N,K",))
    say(f"nothing was measured; estimates for {machine.name} order what tuning measures, and say no more")
    return 0


def _tasks(
    options: Namespace, machine: Machine, devices: Sequence[torch.device] = ()
) -> tuple[list[Task], Sequence[str]]:
    """Return what is to be tuned, and the routes that are measured; none for all."""
    if options.again is not None:
        of_rows = again.again(_table(options, machine.arch), options.again, options.route)
        for device in devices:
            fitting(device, [task.shape for task in of_rows.tasks])
        return of_rows
    return _of_sizes(options, devices), options.route


def _table(options: Namespace, arch: str) -> tables.Table:
    """Return the table that would be written, or the shipped one where there is none yet.

    Raises:
        ValueError: there is neither.
    """
    found = tuned.existing(_output(options, arch), arch, force=options.force) or next(iter(tables.shipped(arch)), None)
    if found is None:
        raise ValueError(f"--again: there is no table for {arch}")
    return found


def _of_sizes(options: Namespace, devices: Sequence[torch.device]) -> list[Task]:
    of_models = [size for folder in options.model for size in model_sizes(folder, options.rows)]
    sets = options.set
    if options.rows:
        weights = dict.fromkeys((n, k) for name in sets for _, n, k in measure.SETS[name].shapes)
        of_models += [(m, n, k) for n, k in weights for m in dict.fromkeys(options.rows)]
        sets = []
    named = options.shape or sets or not of_models
    sizes = list(dict.fromkeys((*(sizes_of(options.shape, sets) if named else ()), *of_models)))
    for device in devices:
        fitting(device, sizes)
    forms: list[Form] = ["fast", "raw"] if options.both else options.form or ["fast" if options.prepared else "raw"]
    formats = options.a_format or ["e2m1"]
    weights = dict.fromkeys((n, k) for _, n, k in sizes)  # one after the other, each form of it by itself
    return [
        Task(size, a_format, form)
        for weight, form, size, a_format in product(weights, forms, sizes, formats)
        if size[1:] == weight
    ]


def _devices(names: Sequence[str]) -> list[torch.device]:
    """Return the devices to tune on, all of one kind.

    Raises:
        ValueError: there is no such device, or they are of several kinds.
    """
    if list(names) == ["all"]:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise ValueError('--device: got "all", and torch sees no GPU; want "cpu", or nothing')
        return [torch.device("cuda", index) for index in range(count)]
    found = [device_for(name) for name in names] or [device_for(None)]
    here = torch.cuda.current_device() if any(device.type == "cuda" for device in found) else 0
    indices = [here if device.index is None else device.index for device in found]
    devices = list(dict.fromkeys(torch.device(one.type, index) for one, index in zip(found, indices, strict=True)))
    machines = {(machine_of(device).arch, machine_of(device).cu_count) for device in devices}
    if len(machines) > 1:
        raise ValueError(f"--device: got {', '.join(names)}, which are of several kinds; want one at a time")
    return devices


def _named_machine(names: Sequence[str]) -> Machine:
    if len(names) > 1:
        raise ValueError(f"--device: got {', '.join(names)} with --dry-run, want one")
    named = machine_named(names[0]) if names else None
    return named or machine_of(device_for(names[0] if names else None))


def _output(options: Namespace, arch: str) -> Path:
    if options.output:
        return Path(options.output)
    path = tables.own_path(arch)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _how_to_use(options: Namespace) -> str:
    if options.output:
        return f"; to use it: {tables.TABLES_VARIABLE}={options.output}"
    return f", which calls use from now on; {tables.TABLES_VARIABLE}= (set to nothing) leaves it out"


def _say_what_is_done(request: tuner.Request, device: torch.device, path: Path) -> None:
    before = tuner.gathered(request, device, path)
    if before.timings:
        say(f"goes on where it stopped, after {len(before.timings)} configurations; --anew forgets them")


def _left_out(timings: Sequence[Timing]) -> Counter[str]:
    return Counter(f"{timing.route}: {timing.reason}" for timing in timings if timing.us is None)


def _say_rows(found: tuner.Found, device: torch.device, old: tables.Table | None) -> None:
    configs = {(timing.route, str(timing.config.to_mapping())): str(timing.config) for timing in found.timings}
    measured = tuned.rows(found.timings, device, "")
    had = again.before(measured, old)
    rows = [
        (
            *(f"{row.m},{row.n},{row.k}", row.a_format, text.duration(row.us)),
            *(text.duration(had.get(tuned.place_of_row(row))), row.route),
            configs[row.route, str(dict(row.config))],
        )
        for row in measured
    ]
    columns = _ROW if had else tuple(name for name in _ROW if name != "before")
    if rows:
        shown = rows if had else [(*row[:3], *row[4:]) for row in rows]
        say_table(columns, shown, left=("M,N,K", "A", "route"), wrapped=("configuration",), shared=("M,N,K",))
    for change in again.changes(measured, had):
        say(
            f"{change.route}: {change.rows} rows that the table had take {change.median:.3f} of their times in the "
            f"median, {change.least:.2f} to {change.most:.2f}"
        )
