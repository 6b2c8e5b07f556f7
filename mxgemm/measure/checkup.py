"""Everything that a machine can be asked in one run: verify every route, then tune, within a time and in any pieces."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from mxgemm.measure import Shape, tune, verify
from mxgemm.measure.report import Report, Request
from mxgemm.measure.spread import Clock
from mxgemm.measure.step import Budget, End, Step, answers

Tell = Callable[[str, str], None]
"""Called with the part of the run that is begun, and with each step of it."""

OPERANDS: Final = "operands"
"""What stands where a route's name would, where the operands of a size could not be made."""

logger = logging.getLogger("mxgemm")


def run(
    request: Request,
    report: Report,
    device: torch.device,
    *,
    budget: float | None = None,
    tell: Tell | None = None,
    clock: Clock = time.monotonic,
) -> End:
    """Do what the report does not have yet, and write it.

    Args:
        request: what to do.
        report: of the same request; what is in it is not done again.
        device: where to run.
        budget: seconds after which no step is begun, but for the first; None for no end. A step takes some seconds at
            most, besides what it compiles.
        tell: called as it goes.
        clock: seconds.

    Raises:
        FileError: the report cannot be written; the message says where it is instead.
        KeyboardInterrupt: the report is written before.
    """
    tell = tell or (lambda part, step: None)
    time_left = Budget(budget, clock)
    report.begin()
    try:
        end = _run(request, report, device, time_left, tell)
    except KeyboardInterrupt:
        report.worked(time_left.spent())
        report.end("interrupted")
        raise
    report.worked(time_left.spent())
    report.end(end)
    return end


def _run(request: Request, report: Report, device: torch.device, budget: Budget, tell: Tell) -> End:
    for part, shape, steps in _parts(request, device):
        tell(part, "")
        operands = _operands(part, shape)
        if report.has(operands):  # they could not be made before
            continue
        refused = report.start(operands)
        if refused:
            report.add(operands, _failed(refused))
            continue
        for step in _kept(steps, operands):
            if report.has(step):
                continue
            if not step.decided:
                if not budget.allows():
                    return "budget"
                tell(part, step.name)
                report.worked(budget.spent())
                refused = report.start(step)
            outcome = _failed(refused) if refused else _measured(step)
            report.add(step, outcome)
            if refused:  # on the disk before anything else can end the process
                report.start(operands)
                refused = ""
            elif outcome["state"] == "failed" and not answers(device):
                return "device"
    return "finished"


def _parts(request: Request, device: torch.device) -> Iterator[tuple[str, Shape, Iterator[Step]]]:
    """Verify all sizes first: that is worth most where the time ends early."""
    seconds, prepared = request.seconds, request.prepared
    for shape in request.shapes:
        yield _name(shape), shape, verify.steps([shape], device=device, seconds=seconds, prepared=prepared)
    for shape in request.shapes if request.tune else ():
        steps = tune.steps([shape], device=device, seconds=seconds, prepared=prepared is not False)
        yield f"{_name(shape)} tuned", shape, steps


def _operands(part: str, shape: Shape) -> Step:
    """Return what stands for making the operands of a part; it is in a report only where that failed."""
    who = dict(zip(("m", "n", "k"), shape, strict=True)) | {"route": OPERANDS, "weight": "any"}
    return Step(f"{OPERANDS} {part}", part, "results", who, lambda: {}, decided=True)


def _kept(steps: Iterator[Step], operands: Step) -> Iterator[Step]:
    """Yield steps; where making the next one raises, that is the verdict on this size, and the others' turn comes."""
    try:
        yield from steps
    except Exception as error:  # memory, prepare(), a quantising kernel: whatever it is belongs into the report
        failed = _failed(f"{type(error).__name__}: {error}")
        yield replace(operands, measure=lambda: failed)


def _measured(step: Step) -> dict[str, Any]:
    try:
        return step.measure()
    except Exception as error:  # as for a route: it is recorded
        logger.debug("%s", step.name, exc_info=error)
        return _failed(f"{type(error).__name__}: {error}")


def _failed(reason: str) -> dict[str, Any]:
    return {"state": "failed", "reason": reason}


def _name(shape: Shape) -> str:
    return ",".join(map(str, shape))
