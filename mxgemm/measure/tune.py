"""Measure configurations of routes on one problem after the other: which there are, and what each gave.

``tuned.py`` makes a table of it, ``tuner.py`` is the run of many problems, ``search.py`` the order within one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.measure.cost import estimate_us
from mxgemm.measure.forms import Form, in_form
from mxgemm.measure.held import Held
from mxgemm.measure.peers import PEERS
from mxgemm.measure.search import Candidate, ordered
from mxgemm.measure.session import inputs
from mxgemm.measure.shapes import Shape
from mxgemm.measure.step import Step
from mxgemm.measure.timing import call_us
from mxgemm.measure.trial import Trial
from mxgemm.mx.formats import ACTIVATION_FORMATS, ActivationFormat
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config
from mxgemm.routing.nearby import form_of, near_weight, same_size, same_weight
from mxgemm.routing.tables import of_user, shipped

KNOWN: Final = 3
"""Configurations of a route that are taken from the nearest rows of tables."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One configuration of one route on one shape.

    Attributes:
        shape: (M, N, K).
        route: its name.
        config: what was measured.
        us: median microseconds, None where it did not pass.
        reason: why not.
        a_format: as in ``gemm``.
        derived: form of the weight, as rows of tables name it; None where nobody knows.
    """

    shape: Shape
    route: str
    config: Config
    us: float | None
    reason: str = ""
    a_format: str = "e2m1"
    derived: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One problem that is tuned.

    Attributes:
        shape: (M, N, K).
        a_format: as in ``gemm``.
        form: of the weight that routes get; as ``weight.prepare()`` makes it, inference has it.
    """

    shape: Shape
    a_format: ActivationFormat = "e2m1"
    form: Form = "fast"

    def __str__(self) -> str:
        return f"{','.join(map(str, self.shape))} {self.a_format}{'' if self.form == 'fast' else f' {self.form}'}"


Known = Callable[[Task], tuple[Problem, list[Candidate]] | None]
"""A task's problem and its candidates, where somebody else has ranked them already."""


class Bench:
    """The operands of one task on a device, and what its configurations give on them.

    Attributes:
        problem: as the router would see it.
        candidates: every legal configuration of every route that takes them, the routes' order.
        form: of the weight, as rows of tables name it.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        routes: Sequence[str] = (),
        held: Held | None = None,
        known: Known = lambda task: None,
    ) -> None:
        """Make the operands.

        Args:
            task: what to compute.
            device: where.
            routes: names of the routes; none for all.
            held: keeps what is of the weight alone for the next task.
            known: says what somebody else found.
        """
        self._task = task
        self._trial = (held or Held(device)).trial(*task.shape, task.a_format, task.form)
        self.problem = self._trial.problem
        self.form = form_of(self.problem)
        found = known(task)
        self.candidates = found[1] if found and found[0] == self.problem else candidates(self.problem, routes)

    def measure(self, candidate: Candidate, seconds: float) -> Timing:
        """Judge one candidate, and time it where it is right, for so long."""
        return _measure(self._task, self._trial, candidate, seconds)


def candidates(problem: Problem, routes: Sequence[str] = ()) -> list[Candidate]:
    """Return every legal configuration of every route that takes a problem, in the order of the routes.

    Those that the nearest rows of the user's and the shipped tables name are among them, and known.

    Args:
        problem: what to compute, and where.
        routes: names of the routes to ask; none for all.

    Raises:
        ValueError: there is no route of such a name.
    """
    for name in routes:
        if name not in ROUTES:
            raise ValueError(f"route: got {name!r}, want one of {', '.join(ROUTES)}")
    found = []
    for name in routes or ROUTES:
        route = ROUTES[name]
        if route.refusal(problem) is None:
            known = _known(problem, name)
            every = dict.fromkeys([*known, *route.configs(problem), *route.candidates(problem)])
            legal = [config for config in every if route.check_config(problem, config) is None]
            found += [Candidate(name, config, estimate_us(name, problem, config), config in known) for config in legal]
    return found


def _known(problem: Problem, route: str) -> list[Config]:
    """Return the configurations of a route's nearest rows, at most :data:`KNOWN`, that are of this release.

    Behind those for exactly this size come those for it in other formats of A: what is the best for one seldom differs.
    """
    found: dict[Config, None] = {}
    every = *of_user(problem.arch), *shipped(problem.arch)
    others = [problem.options._replace(a_format=name) for name in ACTIVATION_FORMATS if name != problem.a_format]
    looked = [(problem, same_size), *((replace(problem, options=other), same_size) for other in others)]
    for near, step in [*looked, (problem, same_weight), (problem, near_weight)]:
        for row in (one.row for table in every for one in step(near, table)):
            if row.route != route or not row.config:
                continue
            try:
                found[ROUTES[route].config_type.from_mapping(row.config)] = None
            except ValueError:  # of another release
                continue
            if len(found) == KNOWN:
                return list(found)
    return list(found)


def steps(
    shapes: Sequence[Shape], *, device: torch.device, seconds: float = 0.2, prepared: bool = True
) -> Iterator[Step]:
    """Yield what may be done, or not: of each shape ``torch.mm`` first, a report's "baselines".

    Then every legal configuration of every route, what promises most first, a report's "tuned".
    """
    for shape in shapes:
        m, n, k = shape
        size, who = f"{m},{n},{k}", {"m": m, "n": n, "k": k}
        a, weight = inputs(*shape, device)
        what = partial(_baseline, a, weight, device, seconds)
        yield Step(f"torch.mm {size}", f"{size} tuned", "baselines", who, what)
        task = Task(shape, form="fast" if prepared else "raw")
        trial = _trial(a, weight, task)
        for candidate in ordered(candidates(trial.problem)):
            values = candidate.config.to_mapping()
            about = who | {"route": candidate.route, "config": values, "derived": form_of(trial.problem)}
            what = partial(_tuned, task, trial, candidate, seconds)
            yield Step(f"tune {size} {candidate.route}: {values}", f"{size} tuned", "tuned", about, what)


def timing_of(record: Mapping[str, Any]) -> Timing:
    """Return the timing that a report's record of a step of :func:`steps` holds."""
    config = ROUTES[record["route"]].config_type.from_mapping(record["config"])
    shape = record["m"], record["n"], record["k"]
    us, reason = record.get("us"), record.get("reason", "")
    return Timing(shape, record["route"], config, us, reason, derived=record.get("derived"))


def _trial(a: Tensor, weight: MXTensor, task: Task) -> Trial:
    return Trial(a, weight, in_form(weight, task.form), task.a_format, False)


def _baseline(a: Tensor, weight: MXTensor, device: torch.device, seconds: float) -> dict[str, Any]:
    peer = PEERS["torch_mm"]
    loaded = peer.load(weight)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # where the clock's events are
        time = call_us(lambda: peer.call(a, loaded), device, seconds)
    return {"state": "passed", "us": time.us, "us_low": time.low, "us_high": time.high, "runs": time.runs}


def _tuned(task: Task, trial: Trial, candidate: Candidate, seconds: float) -> dict[str, Any]:
    timing = _measure(task, trial, candidate, seconds)
    return {"state": "failed", "reason": timing.reason} if timing.us is None else {"state": "passed", "us": timing.us}


def _measure(task: Task, trial: Trial, candidate: Candidate, seconds: float) -> Timing:
    name, config = candidate.route, candidate.config
    us, reason = None, "an error beyond its gate"
    try:
        us = trial.run(ROUTES[name], config, seconds).us
    except Exception as error:  # a configuration that cannot be built or run is left out, and said so
        reason = f"{type(error).__name__}: {error}"
    return Timing(task.shape, name, config, us, "" if us else reason, task.a_format, form_of(trial.problem))
