"""Run one case of the leaderboard as its evaluator does; these functions work in a process of their own.

A repetition: synchronise, start an asynchronous clear of the caches, event, call, event, synchronise. The call's
launches are queued while the clear still runs, so host time below the clear's does not show; what shows is the chain of
kernels on the device.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bench.leaderboard_task import Case, Data, Inputs, disagreement, make_inputs

SEED_STEP: Final = 13
ENOUGH: Final = 0.001
"""Timing stops once the standard error is below this share of the mean."""
WALL_SECONDS: Final = 120.0

Kernel = Callable[[Data], Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """How a mode repeats a case.

    Attributes:
        repeats: timed calls at most; 0 checks one call and times nothing.
        fresh: new inputs from a new seed, and a check of the result, for every repetition.
        kernel_seconds: sum of the timed calls at most.
    """

    repeats: int
    fresh: bool
    kernel_seconds: float


MODES: Final = {
    "test": Rules(0, False, 0.0),
    "benchmark": Rules(1000, False, 50.0),
    "leaderboard": Rules(100, True, 30.0),
}
"""How a mode repeats a case."""
WARM_UP: Final = {"benchmark": Rules(100, False, 0.1), "leaderboard": Rules(100, False, 0.01)}
"""And its first case before that."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case.

    Attributes:
        error: why it failed; None: it passed.
        times_us: of each timed call.
        form: which of its ways to compute the submission says that it took, None where it says nothing.
        form_us: what it says that it timed for that, by name.
    """

    error: str | None
    times_us: tuple[float, ...] = field(default=())
    form: str | None = None
    form_us: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """Mean, standard deviation, standard error of the mean, best and worst, in microseconds."""

    runs: int
    mean_us: float
    std_us: float
    err_us: float
    best_us: float
    worst_us: float


def stats(times_us: Sequence[float]) -> Stats:
    """Summarise timed calls; a single one has no spread."""
    runs = len(times_us)
    mean = math.fsum(times_us) / runs
    variance = math.fsum((t - mean) ** 2 for t in times_us) / (runs - 1) if runs > 1 else 0.0
    std = math.sqrt(variance)
    return Stats(runs, mean, std, std / math.sqrt(runs), min(times_us), max(times_us))


class Clock:
    """Times a call on a device; on a CPU nothing is cleared, and the time is the wall's."""

    def __init__(self, device: torch.device, clear_bytes: int) -> None:
        self._device = device
        self._clear_floats = clear_bytes // 4

    def __call__(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Return the call's result and its microseconds."""
        if self._device.type == "cpu":
            begin = time.perf_counter()
            result = call()
            return result, (time.perf_counter() - begin) * 1e6
        torch.cuda.synchronize()
        cleared = torch.randn(self._clear_floats, device=self._device)
        del cleared
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        result = call()
        after.record()
        torch.cuda.synchronize()
        return result, before.elapsed_time(after) * 1e3


def clear_bytes_for(device: torch.device) -> int:
    """Return the size of the evaluator's clear, 67 GB, or half of what is free of the device's memory."""
    if device.type == "cpu":
        return 0
    return min(16000 * 1024 * 1024 * 4, torch.cuda.mem_get_info(device)[0] // 2)


def run_case(path: str, case: Case, rules: Rules, device_name: str, clear_bytes: int) -> Outcome:
    """Check a submission on a case and time it under ``rules``.

    Args:
        path: of the submission.
        case: the first repetition's sizes and seed.
        rules: see :class:`Rules`.
        device_name: of a torch device.
        clear_bytes: written before each timed call.
    """
    device = torch.device(device_name)
    inputs = make_inputs(case, device)
    try:
        with mxgemm_hidden():
            kernel = load_submission(path)
            result = kernel(inputs.data)
    except Exception as error:  # whatever the submission raises is the verdict on it
        return Outcome(f"{type(error).__name__}: {error}")
    found = disagreement(result, inputs.expected) or _aliasing(result, inputs.data)
    if found:
        return Outcome(found)
    clock, times = Clock(device, clear_bytes), list[float]()
    begun = time.perf_counter()
    for _ in range(rules.repeats):
        if rules.fresh:
            case = replace(case, seed=case.seed + SEED_STEP)
            inputs = _elsewhere(case, device, inputs)
        data = inputs.data
        try:
            with mxgemm_hidden():
                result, us = clock(lambda data=data: kernel(data))  # type: ignore[misc]
        except Exception as error:
            return Outcome(f"{type(error).__name__}: {error}")
        if rules.fresh:
            found = disagreement(result, inputs.expected)
            if found:
                return Outcome(f"repetition {len(times) + 1} ({case}): {found}")
        del result
        times.append(us)
        if len(times) > 2 and _enough(times, rules, time.perf_counter() - begun):
            break
    return Outcome(None, tuple(times), *_told(case))


def _told(case: Case) -> tuple[str | None, dict[str, float]]:
    """Read what the submission says of a size: its ``choices[m, n, k]``, {"form": a name, "us": {name: microseconds}}.

    No submission need say anything, and what it says decides nothing.
    """
    told = getattr(sys.modules.get("submission"), "choices", None)
    found = told.get((case.m, case.n, case.k)) if isinstance(told, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("form"), str):
        return None, {}
    times = found.get("us")
    times = times if isinstance(times, dict) else {}
    return found["form"], {str(name): float(us) for name, us in times.items() if isinstance(us, (int, float))}


def _enough(times: Sequence[float], rules: Rules, wall_seconds: float) -> bool:
    so_far = stats(times)
    return (
        so_far.err_us < ENOUGH * so_far.mean_us
        or so_far.mean_us * so_far.runs > rules.kernel_seconds * 1e6
        or wall_seconds > WALL_SECONDS
    )


def _elsewhere(case: Case, device: torch.device, previous: Inputs) -> Inputs:
    """Make inputs at other addresses than the previous ones, which are alive meanwhile."""
    inputs = make_inputs(case, device)
    addresses = {tensor.data_ptr() for tensor in previous.data}
    assert not addresses & {tensor.data_ptr() for tensor in inputs.data}
    return inputs


def _aliasing(result: Tensor, data: Data) -> str | None:
    storages = {tensor.untyped_storage().data_ptr() for tensor in data}
    if result.untyped_storage().data_ptr() in storages:
        return "result: shares memory with an input, want fresh memory"
    return None


_loaded: dict[str, Kernel] = {}


def load_submission(path: str) -> Kernel:
    """Import a submission once in this process and return its ``custom_kernel``.

    Raises:
        ValueError: the file defines no ``custom_kernel``.
    """
    if path not in _loaded:
        spec = importlib.util.spec_from_file_location("submission", Path(path).resolve())
        if spec is None or spec.loader is None:
            raise ValueError(f"submission: got {path}, want a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules["submission"] = module
        spec.loader.exec_module(module)
        kernel = getattr(module, "custom_kernel", None)
        if not callable(kernel):
            raise ValueError(f"submission: {path} defines no function custom_kernel")
        _loaded[path] = kernel
    return _loaded[path]


class _NoMxgemm:
    """An import hook to which ``mxgemm`` and this harness do not exist."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse the harness's own packages and leave the rest to the other finders."""
        del path, target
        if name.partition(".")[0] in ("mxgemm", "bench"):
            raise ModuleNotFoundError(f"No module named {name!r}: a submission must stand alone", name=name)


@contextmanager
def mxgemm_hidden() -> Iterator[None]:
    """Hide ``mxgemm`` and this harness from what runs inside: the leaderboard's machine has neither."""
    hidden = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in ("mxgemm", "bench")
    }
    hook = _NoMxgemm()
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)
        sys.modules.update(hidden)


def prepare_process(interpret: bool) -> None:
    """Set up the process that runs a submission: without a GPU, Triton's interpreter."""
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
