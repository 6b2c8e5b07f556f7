"""Several devices of one host, a process each: they share the tasks of a run by the locks of ``unfinished.py``.

A process whose device has failed, or that has ended in a configuration, is followed by another one, for only a new
process gets the device back. The run's files say what ended it, so that it is left out the second time.
"""

from __future__ import annotations

import logging
import multiprocessing
import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm.files import FileError
from mxgemm.measure import tuner
from mxgemm.measure.spread import Clock
from mxgemm.measure.step import End
from mxgemm.measure.tuner import Event, Found, Request, Tell

WAIT: Final = 0.2
"""Seconds between two looks at the processes."""

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
    heard, ended, failures = set[str](), dict[str, tuple[End | None, str]](), list[str]()

    def begin(device: str) -> Any:
        heard.discard(device)
        ended.pop(device, None)
        left = None if budget is None else max(0.0, budget - (clock() - start))
        process = context.Process(target=work, args=(request, device, table, left, force, events), daemon=True)
        process.start()
        return process

    at_work = {str(device): begin(str(device)) for device in devices}
    try:
        while at_work:
            try:
                device, message = events.get(timeout=WAIT)
            except queue.Empty:
                for device in [name for name, process in at_work.items() if not process.is_alive()]:
                    process = at_work.pop(device)
                    end, error = ended.get(device, ("device", f"its process ended with status {process.exitcode}"))
                    if error:
                        failures.append(f"{device}: {error}")
                    if end == "device" and device in heard:
                        logger.warning("%s: it is begun anew in another process", device)
                        at_work[device] = begin(device)
                continue
            if isinstance(message, Event):
                heard.add(device)
                tell(message)
            else:
                ended[device] = message
    finally:
        for process in at_work.values():
            process.join()
    found = tuner.gathered(request, devices[0], table)
    if found.end != "finished" and any(end is None for end, _ in ended.values()):
        raise FileError("; ".join(failures))
    return found._replace(failures=[*found.failures, *(found.end != "finished") * failures])


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
