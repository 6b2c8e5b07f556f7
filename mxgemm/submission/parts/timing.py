"""How long forms take on the device, their operands in memory: timed as the leaderboard's evaluator times a call."""

import time

import torch

from mxgemm.submission.parts.form import Form, say_once

FLUSH_BYTES = 1 << 32
"""Written before each timed call, in no hurry: past every cache, and longer than Python takes for a call's launches."""
ROUNDS = 25
LEAST_ROUNDS = 5
SECONDS_A_SHAPE = 2.0
"""After these no more rounds than the least."""


def can_be_timed(device: torch.device) -> bool:
    """Say whether a device has events."""
    return device.type == "cuda"


def medians(forms: dict[str, Form], inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Return the median microseconds of each form, the forms by turns, so that a drift meets all of them.

    A form that fails is left out, and standard error says so.

    Args:
        forms: by what they are called; each has run before.
        inputs: of a form.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=inputs[0].device)
    found: dict[str, list[float]] = {name: [] for name in forms}
    end = time.monotonic() + SECONDS_A_SHAPE
    for done in range(ROUNDS):
        if done >= LEAST_ROUNDS and time.monotonic() > end:
            break
        for name in list(found):
            try:
                found[name].append(microseconds(forms[name], inputs, flush))
            except Exception as error:  # however it fails, it is not the one to use
                del found[name]
                say_once(f"mxfp4: {name} fails when it is timed: {type(error).__name__}: {error}")
    return {name: sorted(times)[len(times) // 2] for name, times in found.items()}


def microseconds(form: Form, inputs: tuple[torch.Tensor, ...], flush: torch.Tensor) -> float:
    """Time one call, which is queued behind an asynchronous write past the caches, so that host time is hidden."""
    torch.cuda.synchronize(flush.device)
    flush.zero_()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    before.record()
    form(*inputs)
    after.record()
    torch.cuda.synchronize(flush.device)
    return float(before.elapsed_time(after)) * 1e3
