"""Build the kernels that tuning will measure, in several processes: a compiler takes longer than a measurement.

Routes whose kernels a compiler of C++ makes build them when they are bound, without a device. Triton's are compiled by
their first launch; here what a bound route would launch is compiled for the machine, and what quantises its weight,
where that release of Triton finds it in its cache. So this needs no device either, and can be done on another machine
with the same compilers for the same caches.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import Any, Final, NamedTuple

import torch

from mxgemm.device import Machine
from mxgemm.measure.forms import problem_in_form
from mxgemm.measure.search import Candidate, ordered
from mxgemm.measure.spread import Clock
from mxgemm.measure.tune import Task, candidates
from mxgemm.mx.formats import BLOCK, E2M1, scale_addend
from mxgemm.notices import say_once
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.triton.compile import compile_call, serves_launches
from mxgemm.triton.launch import KernelCall, described
from mxgemm.triton.quantize import quantize_call
from mxgemm.triton.support import interpreting, triton_missing

GIVING_WAY: Final = 10
"""By so much processes are nicer than the one that measures."""


_OVER: Final[list[Event]] = []
"""In a process that builds ahead: set where nobody waits for it any more."""


class One(NamedTuple):
    """What became of a task.

    Attributes:
        bound: configurations whose kernels are there.
        failures: what could not be built, with the reason.
        problem: of the task.
        candidates: all that there are for it.
    """

    bound: int
    failures: list[str]
    problem: Problem
    candidates: list[Candidate]


class Built(NamedTuple):
    """What became of the kernels of some tasks.

    Attributes:
        bound: configurations whose kernels are there.
        left: tasks for which there was no time, or no process.
        failures: what could not be built, with the reason.
    """

    bound: int
    left: int
    failures: list[str]


def build(
    tasks: Sequence[Task],
    machine: Machine,
    routes: Sequence[str],
    each: int,
    jobs: int,
    *,
    budget: float | None = None,
    tell: Callable[[Task], None] = lambda task: None,
    clock: Clock = time.monotonic,
    context: Any = None,
) -> Built:
    """Build the first configurations of every route for every task.

    Args:
        tasks: in the order in which they will be measured.
        machine: that will measure them.
        routes: names of the routes; none for all.
        each: configurations of a route, those of the most promise.
        jobs: processes.
        budget: seconds after which no task is begun; None for no end.
        tell: called when a task is done.
        clock: seconds.
        context: what makes processes; by default they are begun anew, for a device may be in use here.
    """
    start, bound, left, failures = clock(), 0, 0, list[str]()
    with ProcessPoolExecutor(jobs, mp_context=context or multiprocessing.get_context("spawn")) as pool:
        at_work = {pool.submit(build_one, task, machine, routes, each): task for task in tasks}
        for future in as_completed(at_work):
            if future.cancelled():
                left += 1
                continue
            try:
                one = future.result()
            except BrokenProcessPool as error:  # a compiler took all memory, say; all that is left says so
                left += 1
                failures += [f"{error}"] if f"{error}" not in failures else []
                continue
            bound, failures = bound + one.bound, failures + one.failures
            tell(at_work[future])
            if budget is not None and clock() - start >= budget:
                for other in at_work:
                    other.cancel()
    return Built(bound, left, failures)


def build_one(task: Task, machine: Machine, routes: Sequence[str], each: int) -> One:
    """Build the first configurations of a task."""
    problem = problem_in_form(*task.shape, machine, task.a_format, task.form)
    found = candidates(problem, routes)
    taken, failures = Counter[str](), list[str]()
    by_triton = triton_missing(machine) is None and not interpreting() and serves_launches(machine.arch)
    for candidate in ordered(found):
        if any(over.is_set() for over in _OVER):
            break
        if taken[candidate.route] == each:
            continue
        taken[candidate.route] += 1
        try:
            with described() as calls:
                ROUTES[candidate.route].bind(problem, candidate.config)
            for call in (*calls, weight_call(problem)) if by_triton else ():
                compile_call(call, machine.arch)
        except Exception as error:  # it will be said of the measurement too, and left out
            failures.append(f"{task} {candidate.route}: {candidate.config}: {type(error).__name__}: {error}")
    return One(taken.total() - len(failures), failures, problem, found)


class Ahead:
    """Processes that build the kernels of tasks, in their order, while others are measured.

    What they find of a task by the way is kept: ranking its candidates takes longer than measuring some of them. For a
    GPU, whose clock they do not disturb.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        machine: Machine,
        routes: Sequence[str],
        each: int,
        jobs: int,
        *,
        context: Any = None,
    ) -> None:
        """Begin; arguments as of :func:`build`."""
        context = context or multiprocessing.get_context("spawn")
        self._over = context.Event()
        self._pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(self._over,))
        self._at_work = {task: self._pool.submit(build_one, task, machine, routes, each) for task in tasks}
        self._begun = False

    def __call__(self, task: Task) -> tuple[Problem, list[Candidate]] | None:
        """Wait until a task is built, and return its problem and its candidates; None where nobody knows them.

        So it is of the first tasks, as long as the processes are beginning: who measures builds as well as they.
        """
        future = self._at_work.pop(task, None)
        if future is None:
            return None
        self._begun = self._begun or any(one.done() for one in (future, *self._at_work.values()))
        if not self._begun:
            return None
        try:
            found = future.result()
        except (BrokenProcessPool, CancelledError) as error:  # out of memory, say
            say_once(f"kernels are built no longer before they are measured: {type(error).__name__} {error}")
            return None
        return found.problem, found.candidates

    def close(self) -> None:
        """End it when each process has built what it is at; the rest is left."""
        self._over.set()
        self._pool.shutdown(cancel_futures=True)


def _begin(over: Event) -> None:
    """Begin a process that builds ahead."""
    os.nice(GIVING_WAY)
    _OVER.append(over)


def weight_call(problem: Problem) -> KernelCall:
    """Describe the launch that quantises the weight of a task."""
    n, k = problem.n, problem.k
    addend, strides = scale_addend(E2M1, "even"), (k // E2M1.pack, k // BLOCK)
    return quantize_call(problem.machine, (n, k), (k, 1), torch.bfloat16, E2M1, addend, strides, None)
