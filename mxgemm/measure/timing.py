"""How calls are timed. Every function takes several calls that do the same on different copies of the weight.

* ``graph``: device time. A CUDA graph holds many calls, one after the other, each on the next copy of the weight, so
  that the weight comes from memory and not from the cache; it is replayed between two events, queued while the device
  is busy, so that its launch is hidden. A run is the time of a replay over the number of its calls.
* ``queued``: device time of what cannot be captured. The calls are queued behind a kernel that keeps the device busy
  until all of them are there, between two events.
* ``event``: one eager call on an idle device, event, call, event: what a caller who waits for every result sees.
* ``host``: how long a call keeps the host, the device not waited for.
* ``flushed``: device time of one call, the caches overwritten before it.
* ``wall``: on a CPU, where the three are the same: one call at a time, the weight in what cache it fits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch

from mxgemm.ambient import plain_products
from mxgemm.measure.rotation import FACTOR, cache_bytes
from mxgemm.measure.spread import Clock, Effort, Spread, repeat, spread_of

Call = Callable[[], object]

REPLAY_US: Final = 1000.0
"""A graph lasts at least about this long, so that its start and the events' resolution vanish."""
MAX_QUEUED: Final = 50
"""Calls queued at a time; a driver's queue takes about a thousand launches before the host waits."""
WARM_UP: Final = 3
CALL_METHOD: Final = {
    "cpu": "wall time of one call after unmeasured ones; median over the repetitions",
    "cuda": "device time of one call between two events, caches overwritten before and the host's time hidden; median",
}
GRAPH_METHOD: Final = (
    "device time of one call in a replayed graph of them, each on the next of copies of the weight that exceed the "
    "cache; median"
)
HIDE_REPLAY_US: Final = 200.0
"""The device is kept busy at least this long before a graph is replayed, and twice as long as its launch takes."""
HIDE_CALL_US: Final = 1000.0
"""And this long before a single call: longer than any peer or route keeps the host, except ``reference``."""
MAX_HIDE_US: Final = 1e5
"""But no longer."""
HEATING: Final = 60
"""Products of 8192 x 8192 x 8192, 1.6 ms each on an H200."""


def heat(device: torch.device) -> None:
    """Bring a GPU's clocks up, which takes some tens of milliseconds of work; a CPU's are left to it."""
    if device.type != "cuda":
        return
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(8192, 8192, generator=generator, dtype=torch.bfloat16, device=device)
    with plain_products(device.type):
        for _ in range(HEATING):
            torch.mm(x, x)
    torch.cuda.synchronize(device)


def wall_us(calls: Sequence[Call], effort: Effort, clock: Clock = time.perf_counter, warm_up: int = WARM_UP) -> Spread:
    """Time single calls on the host's clock, after ``warm_up`` unmeasured ones, or one where that takes the effort."""
    turn = itertools.cycle(calls)
    end = clock() + effort.seconds
    for _ in range(warm_up):
        next(turn)()
        if clock() >= end:
            break
    return spread_of(repeat(lambda: _one(next(turn), clock), effort, clock), "wall")


def host_us(
    calls: Sequence[Call], effort: Effort, wait: Callable[[], None], clock: Clock = time.perf_counter
) -> Spread:
    """Time how long calls keep the host.

    Args:
        calls: what to call, in turn.
        effort: when to stop.
        wait: wait for the device; called between batches of :data:`MAX_QUEUED`, outside the timed part.
        clock: seconds on the host.
    """
    turn, count = itertools.cycle(calls), itertools.count()
    for _ in range(WARM_UP):
        next(turn)()

    def run() -> float:
        if next(count) % MAX_QUEUED == 0:
            wait()
        return _one(next(turn), clock)

    spread = spread_of(repeat(run, effort, clock), "host")
    wait()
    return spread


def eager_us(calls: Sequence[Call], effort: Effort) -> Spread:
    """Time single calls on an idle device between two events."""
    turn = itertools.cycle(calls)
    for _ in range(WARM_UP):
        next(turn)()

    return spread_of(repeat(lambda: single_eager_us(next(turn)), effort), "event")


def device_us(calls: Sequence[Call], effort: Effort, replay_us: float = REPLAY_US) -> tuple[Spread, str]:
    """Time calls on the device alone.

    Args:
        calls: what to call, in turn.
        effort: when to stop.
        replay_us: about how long a graph of them lasts, at least.

    Returns:
        the time of one call, and why it could not be captured in a graph, "" if it was.
    """
    try:
        return graph_us(calls, effort, replay_us), ""
    except RuntimeError as error:  # what torch raises for a call that may not be captured
        torch.cuda.synchronize()
        return queued_us(calls, effort), str(error).strip().splitlines()[0]


def graph_us(calls: Sequence[Call], effort: Effort, replay_us: float = REPLAY_US) -> Spread:
    """Time calls by replaying a graph of them; arguments as of :func:`device_us`.

    Raises:
        RuntimeError: a call cannot be captured.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in itertools.islice(itertools.cycle(calls), WARM_UP):
            call()
        guess = max(1.0, _hidden_host_us(calls[0], HIDE_CALL_US))
    torch.cuda.synchronize()
    rounds = max(1, math.ceil(replay_us / (guess * len(calls))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):  # not torch.cuda.graph, which also collects garbage and empties the allocator's cache
        graph.capture_begin()
        try:
            for call in itertools.islice(itertools.cycle(calls), rounds * len(calls)):
                call()
        finally:
            graph.capture_end()
    host_us = 0.0
    for _ in range(WARM_UP):  # the last one counts: the first also loads the graph
        torch.cuda.synchronize()
        host_us = _one(graph.replay, time.perf_counter)
    busy_us = min(MAX_HIDE_US, max(HIDE_REPLAY_US, 2 * host_us))
    count = rounds * len(calls)
    return spread_of(repeat(lambda: _hidden_host_us(graph.replay, busy_us) / count, effort), "graph")


def queued_us(calls: Sequence[Call], effort: Effort) -> Spread:
    """Time calls that were queued while the device was kept busy."""
    turn = itertools.cycle(calls)
    start = time.perf_counter()
    for _ in range(WARM_UP):
        next(turn)()
    host_seconds = (time.perf_counter() - start) / WARM_UP
    torch.cuda.synchronize()
    busy_us = min(MAX_HIDE_US, max(HIDE_CALL_US, 2e6 * host_seconds * MAX_QUEUED))

    def run() -> float:
        before, after = _events()
        _keep_busy(busy_us)
        before.record()
        for _ in range(MAX_QUEUED):
            next(turn)()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) * 1e3 / MAX_QUEUED

    return spread_of(repeat(run, effort), "queued")


def call_us(call: Call, device: torch.device, seconds: float) -> Spread:
    """Time one call after another: on a GPU its device time with cold caches, on a CPU its wall time.

    For what need not be told apart to a microsecond (``mxgemm tune``, ``mxgemm doctor --verify``): one copy of the
    operands will do, and no graph is captured. :data:`CALL_METHOD` says it in words.
    """
    effort = Effort(seconds)
    if device.type == "cpu":
        return wall_us([call], effort)
    for _ in range(WARM_UP):
        call()
    timer = single_device_us(device, FACTOR * cache_bytes(device))
    return spread_of(repeat(lambda: timer(call), effort), "flushed")


def single_device_us(device: torch.device, flush_bytes: int) -> Callable[[Call], float]:
    """Return a timer of single calls on the device, the caches overwritten before, the host's time hidden.

    Args:
        device: where the calls run.
        flush_bytes: how much to overwrite.
    """
    flush = torch.empty(flush_bytes, dtype=torch.uint8, device=device)

    def timer(call: Call) -> float:
        flush.zero_()
        return _hidden_host_us(call, HIDE_CALL_US)

    return timer


def single_eager_us(call: Call) -> float:
    """Time one call on an idle device between two events."""
    torch.cuda.synchronize()
    return _between_events(call)


def single_wall_us(call: Call) -> float:
    """Time one call on the host's clock."""
    return _one(call, time.perf_counter)


def single_thread_us(call: Call) -> float:
    """Time one call by the processor's time of this thread alone: where others use the machine, and of one thread."""
    return _one(call, time.thread_time)


def _hidden_host_us(call: Call, busy_us: float) -> float:
    """Time one call between two events, queued while the device is busy with something else."""
    _keep_busy(busy_us)
    return _between_events(call)


def _keep_busy(us: float) -> None:
    torch.cuda._sleep(int(us * _ticks_per_us(torch.cuda.current_device())))  # type: ignore[no-untyped-call]


@cache
def _ticks_per_us(device: int) -> float:
    """Return how fast the clock runs that the spinning kernel counts: GHz on NVIDIA, 100 MHz on some AMD GPUs."""
    del device  # the current one; the cache's key
    ticks = 1_000_000
    times = [_between_events(lambda: torch.cuda._sleep(ticks)) for _ in range(3)]  # type: ignore[no-untyped-call]
    return ticks / min(times)


def _one(call: Call, clock: Clock) -> float:
    start = clock()
    call()
    return (clock() - start) * 1e6


def _between_events(call: Call) -> float:
    before, after = _events()
    before.record()
    call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e3


def _events() -> tuple[Any, Any]:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return before, after
