"""Several devices of one host, a process each: they share the tasks of a run by the locks of ``unfinished.py``.

A process whose device has failed, or that has ended in a configuration, is followed by another one, for only a new
process gets the device back. The run's files say what ended it, so that it is left out the second time.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm.files import FileError
from mxgemm.measure import tuner
from mxgemm.measure.spread import Clock
from mxgemm.measure.step import ATTEMPTS, End
from mxgemm.measure.tuner import Event, Found, Request, Tell

WAIT: Final = 0.2
"""Seconds between two looks at the processes."""
PATIENCE: Final = 10.0
"""Seconds that processes get to end by themselves, where this one is interrupted."""

logger = logging.getLogger("mxgemm")


def run(
    request: Request,
    devices: Sequence[torch.device],
    table: Path,
    *,
    budget: float | None = None,
    force: bool = False,
    tell: Tell = lambda event: None,
    clock: Clock = time.monotonic,
    context: Any = None,
) -> Found:
    """Tune on several devices at once; see :func:`mxgemm.measure.tuner.run`.

    Args:
        request: what to do.
        devices: a process each; of one kind.
        table: as there.
        budget: as there.
        force: as there.
        tell: called in this process.
        clock: seconds.
        context: what makes processes and queues; by default processes that are begun anew, as devices want.

    Raises:
        FileError: the table or what is beside it cannot be written; the message says where the rows are instead.
    """
    context = context or multiprocessing.get_context("spawn")
    events, start = context.Queue(), clock()
    ended, silent, failures = dict[str, tuple[End | None, str]](), Counter[str](), list[str]()

    def begin(device: str) -> Any:
        silent[device] += 1
        ended.pop(device, None)
        left = None if budget is None else max(0.0, budget - (clock() - start))
        process = context.Process(target=work, args=(request, device, table, left, force, events), daemon=True)
        process.start()
        return process

    at_work = {str(device): begin(str(device)) for device in devices}
    try:
        while at_work:
            gone = [device for device, process in at_work.items() if not process.is_alive()]
            try:
                device, message = events.get(timeout=WAIT)
            except queue.Empty:  # so what is gone has nothing more to say
                for device in gone:
                    status = at_work.pop(device).exitcode
                    end, error = ended.get(device, ("device", f"its process ended with status {status}"))
                    failures += [f"{device}: {error}"] if error else []
                    if end == "device" and silent[device] <= ATTEMPTS:
                        logger.warning("%s: it is begun anew in another process", device)
                        at_work[device] = begin(device)
                continue
            if not isinstance(message, Event):
                ended[device] = message
                continue
            if message.measured:
                silent[device] = 0
            tell(message)
    finally:
        _end(list(at_work.values()))
    if any(end is None for end, _ in ended.values()):
        raise FileError("; ".join(failures))
    found = tuner.gathered(request, devices[0], table)
    return found._replace(failures=[*found.failures, *(found.end != "finished") * failures])


def _end(processes: Sequence[Any]) -> None:
    """Have processes write what they have: a terminal's Ctrl-C reaches them too, another signal this one alone."""
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive() and getattr(process, "pid", None):
            os.kill(process.pid, signal.SIGINT)
            process.join()


def work(request: Request, device: str, table: Path, budget: float | None, force: bool, events: Any) -> None:
    """Tune on one device, and send what happens: events, then how it ended and which error ended it."""
    try:
        end = tuner.run(
            request, torch.device(device), table, budget=budget, force=force,
            tell=lambda event: events.put((device, event)),
        ).end  # fmt: skip
        events.put((device, (end, "")))
    except KeyboardInterrupt:  # this and every other process of the terminal got it; the table is written
        events.put((device, ("budget", "interrupted")))
    except FileError as error:
        events.put((device, (None, str(error))))
