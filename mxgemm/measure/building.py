"""Build the kernels that tuning will measure first, in several processes: a compiler takes longer than a measurement.

Routes whose kernels a compiler of C++ makes build them when they are bound, without a device. Triton's are compiled by
their first launch; here what a bound route would launch is compiled for the machine, and what quantises its weight,
where that release of Triton finds it in its cache. So this needs no device either, and can be done on another machine
with the same compilers for the same caches.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import torch

from mxgemm.device import Machine
from mxgemm.measure.search import ordered
from mxgemm.measure.spread import Clock
from mxgemm.measure.tune import Task, candidates
from mxgemm.mx.formats import BLOCK, E2M1, scale_addend
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routing.explain import problem_of
from mxgemm.triton.compile import compile_call, serves_launches
from mxgemm.triton.launch import KernelCall, described
from mxgemm.triton.quantize import quantize_call
from mxgemm.triton.support import interpreting, triton_missing


class Built(NamedTuple):
    """What became of the kernels of some tasks.

    Attributes:
        bound: configurations whose kernels are there.
        left: tasks for which there was no time.
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
            done, said = future.result()
            bound, failures = bound + done, failures + said
            tell(at_work[future])
            if budget is not None and clock() - start >= budget:
                for other in at_work:
                    other.cancel()
    return Built(bound, left, failures)


def build_one(task: Task, machine: Machine, routes: Sequence[str], each: int) -> tuple[int, list[str]]:
    """Build the first configurations of a task; return how many, and what could not be."""
    problem = problem_of(*task.shape, machine, a_format=task.a_format, prepared=task.prepared)
    taken, failures = Counter[str](), list[str]()
    by_triton = triton_missing(machine) is None and not interpreting() and serves_launches(machine.arch)
    for candidate in ordered(candidates(problem, routes)):
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
    return taken.total() - len(failures), failures


def weight_call(problem: Problem) -> KernelCall:
    """Describe the launch that quantises the weight of a task."""
    n, k = problem.n, problem.k
    addend, strides = scale_addend(E2M1, "even"), (k // E2M1.pack, k // BLOCK)
    return quantize_call(problem.machine, (n, k), (k, 1), torch.bfloat16, E2M1, addend, strides, None)
