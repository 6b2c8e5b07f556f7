"""A/B of two ways to compute the same products: same warm-up, same repeats, in turn, and outputs looked at first.

Timing two kernels one after the other compares two states of the clock; timing them in turn does not. A size on which
they differ by more than :data:`WITHIN` is measured again, each alone, three times, and the median counts. An output
that is all zero or was not written is a failure and not a fast kernel.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from torch import Tensor

from mxgemm.files import Mark
from mxgemm.measure.session import inputs
from mxgemm.measure.shapes import Shape
from mxgemm.mx.tensor import MXTensor

WITHIN: Final = 0.15
"""Share by which A and B may differ and still be on a par."""
WARM_UP: Final = 50
REPEATS: Final = 100
AGAIN: Final = 3

_BITS: Final = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
_POISON: Final = {torch.bfloat16: 0x7FA5, torch.float16: 0x7DA5, torch.float32: 0x7FA5A5A5}
"""A NaN with a payload that no arithmetic makes, so that what was never written is told from a NaN that was."""

Run = Callable[[Tensor | None], Tensor]
"""One call: writes into the given tensor if it was told to take one, and returns the result ``[M, N]``."""
Timer = Callable[[Callable[[], object]], float]
"""Microseconds of one call."""


@dataclass(frozen=True)
class Subject:
    """One side of the comparison.

    Attributes:
        name: for the report.
        bind: makes the call for activations ``[M, K]`` and a row-major weight (N, K).
        takes_out: the call writes into a given tensor; otherwise it returns fresh memory.
        out_dtype: of the result.
        timed: its time means something; a kernel in an emulator has none, and then outputs alone are compared.
    """

    name: str
    bind: Callable[[Tensor, MXTensor], Run]
    takes_out: bool = False
    out_dtype: torch.dtype = torch.bfloat16
    timed: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One size.

    Attributes:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        us_a: median microseconds of A, None after a failure.
        us_b: of B.
        gap: ``us_b / us_a - 1``: above 0, B is slower.
        again: measured again, each alone, because the first gap was beyond :data:`WITHIN`.
        difference: ``||A - B|| / ||A||`` of the outputs.
        failure: what is wrong with an output, "" if nothing.
    """

    m: int
    n: int
    k: int
    us_a: float | None = None
    us_b: float | None = None
    gap: float | None = None
    again: bool = False
    difference: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        timer: times one call.
        warm_up: unmeasured calls of each side.
        repeats: measured calls of each side.
        within: see :data:`WITHIN`.
    """

    timer: Timer
    warm_up: int = WARM_UP
    repeats: int = REPEATS
    within: float = WITHIN


def parity(a: Subject, b: Subject, shapes: Sequence[Shape], device: torch.device, settings: Settings) -> Iterator[Row]:
    """Compare two subjects on each size, yielding as results come.

    Args:
        a: one side.
        b: the other.
        shapes: (M, N, K) triples.
        device: where.
        settings: how.
    """
    for m, n, k in shapes:
        activations, weight = inputs(m, n, k, device)
        runs, outputs, failures = [], [], []
        for side, subject in (("A", a), ("B", b)):
            try:
                run = subject.bind(activations, weight)
                output = poisoned_output(run, subject, m, n, device)
            except Exception as error:  # a side that breaks on a size is a result, and the other sizes still count
                failures.append(f"{side} {subject.name}: raised {type(error).__name__}: {error}")
                continue
            complaint = complain(output, (m, n))
            failures += [f"{side} {subject.name}: {complaint}"] if complaint else []
            runs.append(run)
            outputs.append(output)
        if failures:
            yield Row(m, n, k, failure="; ".join(failures))
            continue
        difference = _difference(*outputs)
        if not (a.timed and b.timed):
            yield Row(m, n, k, difference=difference)
            continue
        row = _timed(Row(m, n, k, difference=difference), runs[0], runs[1], settings)
        if row.gap is not None and abs(row.gap) > settings.within:
            row = _timed_alone(row, runs[0], runs[1], settings)
        yield row


def poisoned_output(run: Run, subject: Subject, m: int, n: int, device: torch.device) -> Tensor:
    """Call once into poisoned memory.

    A call that allocates by itself gets its memory from torch, which hands out what was freed last: there the poison
    is in a block of the same size that was just freed. On a GPU that works; a CPU's allocator may give other memory.
    """
    poisoned = torch.empty(m, n, dtype=subject.out_dtype, device=device)
    poisoned.view(_BITS[subject.out_dtype]).fill_(_POISON[subject.out_dtype])
    if subject.takes_out:
        return run(poisoned)
    del poisoned
    return run(None)


def complain(output: Tensor, shape: tuple[int, int]) -> str:
    """Say what is wrong with an output of random inputs, "" if nothing."""
    if tuple(output.shape) != shape or output.dtype not in _BITS:
        return f"{output.dtype} of shape {tuple(output.shape)}, want {shape} in bf16, fp16 or fp32"
    unwritten = int((output.contiguous().view(_BITS[output.dtype]) == _POISON[output.dtype]).sum())
    if unwritten:
        return f"{unwritten} of {output.numel()} elements never written"
    if not bool(output.any()):
        return "all zero"
    if not bool(torch.isfinite(output).all()):
        return "not finite"
    return ""


def _timed(row: Row, a: Run, b: Run, settings: Settings) -> Row:
    for _ in range(settings.warm_up):
        a(None)
        b(None)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(settings.repeats):
        for run, taken in zip((a, b), times, strict=True):
            taken.append(settings.timer(lambda run=run: run(None)))  # type: ignore[misc]
    return _with_times(row, statistics.median(times[0]), statistics.median(times[1]))


def _timed_alone(row: Row, a: Run, b: Run, settings: Settings) -> Row:
    def alone(run: Run) -> float:
        medians = []
        for _ in range(AGAIN):
            for _ in range(settings.warm_up):
                run(None)
            medians.append(statistics.median(settings.timer(lambda: run(None)) for _ in range(settings.repeats)))
        return statistics.median(medians)

    return replace(_with_times(row, alone(a), alone(b)), again=True)


def _with_times(row: Row, us_a: float, us_b: float) -> Row:
    return replace(row, us_a=us_a, us_b=us_b, gap=us_b / us_a - 1)


def _difference(a: Tensor, b: Tensor) -> float:
    left, right = a.double(), b.double()
    return float((left - right).norm() / left.norm())


@dataclass(frozen=True, slots=True)
class Summary:
    """All sizes together.

    Attributes:
        sizes: how many.
        median_gap: of those that were timed; None if none was.
        within: share of those that were timed whose gap is within the bound.
        again: how many were measured again.
        failed: how many failed.
    """

    sizes: int
    median_gap: float | None
    within: float | None
    again: int
    failed: int


def summarise(rows: Sequence[Row], within: float = WITHIN) -> Summary:
    """Summarise the rows of one comparison."""
    gaps = [row.gap for row in rows if row.gap is not None]
    return Summary(
        len(rows),
        statistics.median(gaps) if gaps else None,
        sum(abs(gap) <= within for gap in gaps) / len(gaps) if gaps else None,
        sum(row.again for row in rows),
        sum(bool(row.failure) for row in rows),
    )


COLUMNS: Final = tuple(field.name for field in fields(Row))
CSV: Final = Mark("a table of mxgemm parity's columns", rb"\A%b\r?\n" % ",".join(COLUMNS).encode())


def csv_text(rows: Sequence[Row]) -> str:
    """Return the rows as CSV, a column for each field."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)
    return text.getvalue()
