"""Run every route that this machine has against the oracle: the work of ``mxgemm doctor --verify``.

Every shape comes in every form of the weight, so each layout path of each route is run. A route that this machine has
not, or that says no to a form, is recorded with the reason; one that raises or misses a gate has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, Literal

import torch

from mxgemm.device import machine_of
from mxgemm.hip import shuffle
from mxgemm.measure import Shape, inputs
from mxgemm.measure.step import Step
from mxgemm.measure.timing import call_us
from mxgemm.measure.trial import Trial, forms
from mxgemm.mx import layouts
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.tensor import MXTensor
from mxgemm.routes import ROUTES
from mxgemm.routing.router import choose

SHUFFLES: Final = "hip shuffles"
"""What stands where a route's name would, for the kernels that only move bytes."""

State = Literal["passed", "failed", "refused", "missing"]

_ACTIVATIONS: Final = (("e2m1", False), ("bf16", False), ("e2m1", True))
"""(format, quantised before the call), in the order in which a route is asked."""
_OF_ACTIVATIONS: Final = ("a", "a_format", "a.dtype")
"""Fields of refusals that ask for other activations."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One route on one shape and form of the weight.

    Attributes:
        route: its name, or :data:`SHUFFLES`.
        m: rows of A.
        n: rows of B.
        k: elements along K.
        weight: the form of the weight.
        activations: what A is rounded to; "MX ..." where it comes quantised.
        state: "passed", "failed" (a gate missed, or an exception), "refused" (it does not take this) or "missing"
            (the machine has not what it needs).
        reason: why it was refused, what is missing, or what went wrong.
        config: its configuration.
        norm_error: see ``mxgemm.mx.accuracy``.
        element_error: see ``mxgemm.mx.accuracy``.
        norm_limit: gate on ``norm_error``.
        element_limit: gate on ``element_error``.
        us: median microseconds of a call.
        us_low: first quartile.
        us_high: third quartile.
        runs: timed calls.
    """

    route: str
    m: int
    n: int
    k: int
    weight: str
    activations: str
    state: State
    reason: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    norm_error: float | None = None
    element_error: float | None = None
    norm_limit: float | None = None
    element_limit: float | None = None
    us: float | None = None
    us_low: float | None = None
    us_high: float | None = None
    runs: int = 0


def verify(
    shapes: Sequence[Shape], *, device: torch.device, seconds: float = 0.2, prepared: bool | None = None
) -> Iterator[Verdict]:
    """Run every route on every shape and form of the weight, yielding verdicts as they come.

    Args:
        shapes: (M, N, K) triples.
        device: where to run.
        seconds: time to spend on timing one case, at least five calls.
        prepared: of the forms, only what ``prepare()`` makes, or only the row-major weight; by default all.
    """
    for _, case in _cases(shapes, device, seconds, prepared):
        yield _verdict(case)


def steps(
    shapes: Sequence[Shape], *, device: torch.device, seconds: float = 0.2, prepared: bool | None = None
) -> Iterator[Step]:
    """Yield what :func:`verify` would do, to be done or not: a report's "results". Takes the same arguments."""
    for who, case in _cases(shapes, device, seconds, prepared):
        size = f"{who['m']},{who['n']},{who['k']}"
        name = f"verify {size} {who['weight']}: {who['route']}"
        yield Step(name, size, "results", who, partial(_record, case), decided=isinstance(case, Verdict))


Case = Callable[[], Verdict] | Verdict
"""What gives a verdict, or one that was given without a launch."""


def _cases(
    shapes: Sequence[Shape], device: torch.device, seconds: float, prepared: bool | None
) -> Iterator[tuple[dict[str, Any], Case]]:
    """Yield what each case is about and the case."""
    for m, n, k in shapes:
        who = {"m": m, "n": n, "k": k}
        a, weight = inputs(m, n, k, device)
        yield {"route": SHUFFLES, **who, "weight": "row_major"}, partial(_shuffles, (m, n, k), weight, seconds)
        for name, form in forms(weight) if prepared is None else [_one_form(weight, prepared)]:
            trials = {kind: Trial(a, weight, form, *kind) for kind in _ACTIVATIONS}
            for route in ROUTES:
                yield {"route": route, **who, "weight": name}, _case(route, name, trials, seconds)


def _verdict(case: Case) -> Verdict:
    return case if isinstance(case, Verdict) else case()


def _record(case: Case) -> dict[str, Any]:
    return {name: value for name, value in asdict(_verdict(case)).items() if value not in (None, "", {})}


def _one_form(weight: MXTensor, prepared: bool) -> tuple[str, MXTensor]:
    return ("prepared", weight.prepare()) if prepared else ("row-major", weight)


def _shuffles(shape: Shape, weight: MXTensor, seconds: float) -> Verdict:
    """Compare the HIP shuffles of a weight with torch's, byte for byte, and time that of the scales."""
    (n, k), device = weight.shape, weight.device
    case = (SHUFFLES, *shape, "row_major", "none")
    missing = shuffle.refusal(machine_of(device))
    if missing:
        return Verdict(*case, "missing", missing.reason)
    try:
        shuffled = shuffle.shuffle_scales(weight.scales)
        equal = torch.equal(shuffled, layouts.shuffle_scales(weight.scales))
        equal &= torch.equal(shuffle.unshuffle_scales(shuffled, n, k // BLOCK), weight.scales)
        if layouts.preshuffle_refusal(*weight.data.shape) is None:
            data = shuffle.preshuffle_weight(weight.data)
            equal &= torch.equal(data, layouts.preshuffle_weight(weight.data))
            equal &= torch.equal(shuffle.unpreshuffle_weight(data), weight.data)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # where the clock's events are
            time = call_us(lambda: shuffle.shuffle_scales(weight.scales, shuffled), device, seconds)
    except Exception as error:  # as for a route
        return Verdict(*case, "failed", f"{type(error).__name__}: {error}")
    if not equal:
        return Verdict(*case, "failed", "bytes differ from those of mxgemm.mx.layouts")
    return Verdict(*case, "passed", us=time.us, us_low=time.low, us_high=time.high, runs=time.runs)


def _case(route: str, weight: str, trials: dict[tuple[str, bool], Trial], seconds: float) -> Case:
    refusals = []
    for (a_format, quantized), trial in trials.items():
        refusal = ROUTES[route].refusal(trial.problem)
        if refusal is None:
            return partial(_run, route, weight, f"{'MX ' if quantized else ''}{a_format}", trial, seconds)
        refusals.append(refusal)
    problem = next(iter(trials.values())).problem
    # That a route wants other activations is no news where it was asked with those too.
    refusal = next((refusal for refusal in refusals if refusal.field not in _OF_ACTIVATIONS), refusals[0])
    state: State = "missing" if refusal.missing else "refused"
    return Verdict(route, problem.m, problem.n, problem.k, weight, "any", state, refusal.reason)


def _run(route: str, weight: str, activations: str, trial: Trial, seconds: float) -> Verdict:
    problem = trial.problem
    choice = choose(problem, route=route)
    case = (choice.route.name, problem.m, problem.n, problem.k, weight, activations)
    config = choice.config.to_mapping()
    try:
        outcome = trial.run(choice.route, choice.config, seconds)
    except Exception as error:  # whatever a route raises is its verdict, and the next route's turn comes
        return Verdict(*case, "failed", f"{type(error).__name__}: {error}", config)
    accuracy = outcome.accuracy
    return Verdict(
        *case,
        "passed" if accuracy.passed else "failed",
        "" if accuracy.passed else "an error beyond its gate",
        config,
        *(accuracy.norm, accuracy.element, accuracy.norm_limit, accuracy.element_limit),
        *(outcome.us, outcome.us_low, outcome.us_high, outcome.runs),
    )
