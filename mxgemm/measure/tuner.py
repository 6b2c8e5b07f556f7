"""A run of tuning: many tasks on one device, within a time, killed at any moment and taken up again.

Of each task configurations are measured in the order of ``search.py``; what was found goes into the table whenever a
task is left, finished or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from mxgemm.measure import text, unfinished
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.growing import Growing
from mxgemm.measure.held import Held
from mxgemm.measure.search import PATIENCE, Search
from mxgemm.measure.spread import Clock
from mxgemm.measure.step import Budget, End, answers
from mxgemm.measure.timing import heat
from mxgemm.measure.tune import Bench, Known, Task, Timing
from mxgemm.measure.unfinished import Unfinished

SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Request:
    """What is tuned.

    Attributes:
        tasks: each once.
        routes: names of the routes to measure; none for all.
        seconds: to spend on timing a configuration.
        patience: see ``mxgemm.measure.search``; 0 measures every configuration.
    """

    tasks: Sequence[Task]
    routes: Sequence[str] = ()
    seconds: float = SECONDS
    patience: int = PATIENCE

    def about(self, device: torch.device) -> dict[str, Any]:
        """Return what must be the same for two runs to be one."""
        request = {"routes": list(self.routes), "seconds": self.seconds, "patience": self.patience}
        environment = describe_environment(device)
        if device.type != "cpu":
            del environment["platform"]  # of the host, which another one with such a GPU goes on for
        return {"environment": environment, "request": request}


class Event(NamedTuple):
    """How far a task is: sent when it is begun, after each configuration, and when all of it is in the table.

    Attributes:
        task: its name.
        done: nothing is left of it.
        measured: configurations that were measured.
        known: those that there are; not all of them will be.
        best: the fastest route and configuration so far, with its time; "" before there is one.
    """

    task: str
    done: bool = False
    measured: int = 0
    known: int = 0
    best: str = ""


class Found(NamedTuple):
    """What a run found.

    Attributes:
        end: how it ended.
        timings: of this run, and of the unfinished one that it took up.
        failures: tasks of which nothing could be measured, each with the reason.
    """

    end: End
    timings: list[Timing]
    failures: list[str]


Tell = Callable[[Event], None]


def run(
    request: Request,
    device: torch.device,
    table: Path,
    *,
    budget: float | None = None,
    force: bool = False,
    tell: Tell = lambda event: None,
    clock: Clock = time.monotonic,
    known: Known = lambda task: None,
) -> Found:
    """Tune what no other process works at and nobody has finished; write the table as it goes.

    Args:
        request: what to do.
        device: where.
        table: to write or to add to; beside it the unfinished run is kept.
        budget: seconds after which no configuration is begun, but for the first; None for no end.
        force: replace a file that is no table.
        tell: called as it goes.
        clock: seconds.
        known: see :class:`mxgemm.measure.tune.Bench`.

    Raises:
        FileError: the table cannot be written; the message says where the rows are instead.
        KeyboardInterrupt: the table is written before.
    """
    left, growing, held = Budget(budget, clock), Growing(table, device, force), Held(device)
    folder, about = unfinished.folder_of(table), request.about(device)
    timings, failures = list[Timing](), list[str]()
    end: End = "finished"
    heat(device)
    try:
        for task in request.tasks:
            with ExitStack() as claim:
                kept = claim.enter_context(unfinished.claimed(folder, task, about))
                if kept is None:
                    continue
                if not kept.finished:
                    end = _work(request, task, held, kept, growing, left, tell, known)
                timings += kept.timings
                failures += [f"{task}: {kept.failure}"] if kept.failure else []
                growing.hold(claim.pop_all())
            if end != "finished":
                break
    finally:
        try:
            growing.finish()
        finally:
            unfinished.forget(folder, ())  # the folder, where nothing could be kept in it
    return Found(end, timings, failures)


def gathered(request: Request, device: torch.device, table: Path) -> Found:
    """Return what unfinished runs of a request have found, whoever made them: "budget" where something is left."""
    kept = unfinished.found(unfinished.folder_of(table), request.tasks, request.about(device))
    timings = [timing for _, one in kept for timing in one.timings]
    failures = [f"{task}: {one.failure}" for task, one in kept if one.failure]
    whole = len(kept) == len(request.tasks) and all(one.finished for _, one in kept)
    return Found("finished" if whole else "budget", timings, failures)


def left_of(request: Request, device: torch.device, table: Path) -> list[Task]:
    """Return the tasks of a request that unfinished runs of it have not finished."""
    kept = unfinished.found(unfinished.folder_of(table), request.tasks, request.about(device))
    done = {task for task, one in kept if one.finished}
    return [task for task in request.tasks if task not in done]


def _work(
    request: Request,
    task: Task,
    held: Held,
    kept: Unfinished,
    growing: Growing,
    left: Budget,
    tell: Tell,
    known: Known,
) -> End:
    last = Event(str(task))

    def heard(event: Event) -> None:
        nonlocal last
        last = event
        tell(event)

    try:
        end = _tune(request, task, held, kept, left, heard, known)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            kept.leave(finished=False)  # it was not the configuration that ended the process
        growing.take(task, kept, finished=False)
        raise
    kept.leave(finished=False)
    growing.take(task, kept, finished=end == "finished")
    if end == "finished":
        tell(last._replace(done=True))
    return end


def _tune(request: Request, task: Task, held: Held, kept: Unfinished, left: Budget, tell: Tell, ahead: Known) -> End:
    tell(Event(str(task)))
    device = held.device
    try:
        bench = Bench(task, device, request.routes, held, ahead)
    except Exception as error:  # memory, prepare(): whatever it is, the others' turn comes
        if not answers(device):
            return "device"
        kept.failure = f"{type(error).__name__}: {error}"
        return "finished"
    search = Search(bench.candidates, request.patience)
    known = {(candidate.route, candidate.config): candidate for candidate in bench.candidates}
    for timing in kept.timings:
        if (timing.route, timing.config) in known:
            search.take(known[timing.route, timing.config], timing.us)
    while (candidate := search.next()) is not None:
        if not left.allows():
            return "budget"
        refused = kept.refusal(candidate)
        if refused:
            who = candidate.route, candidate.config
            timing = Timing(task.shape, *who, None, refused, task.a_format, bench.form)
        else:
            timing = bench.measure(candidate, request.seconds)
        kept.take(timing)
        search.take(candidate, timing.us)
        tell(Event(str(task), False, search.measured, search.known, _best(search)))
        if timing.us is None and not refused and not answers(device):
            return "device"
    return "finished"


def _best(search: Search) -> str:
    for route, (us, candidate) in search.best.items():
        return f"{route} {text.duration(us)} ({candidate.config})"
    return ""
