"""The table of a run of tuning, as it grows: a failure to write it does not end the run, and nothing is lost by it.

What is written is the whole table, so a large one is written less often than a task is done: writing takes a small
share of the time. Until a task is in the table its file beside it says that it is not finished.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm.device import machine_of
from mxgemm.files import FileError
from mxgemm.measure import tuned
from mxgemm.measure.forms import FORMS
from mxgemm.measure.spread import Clock
from mxgemm.measure.timing import CALL_METHOD, GRAPH_METHOD
from mxgemm.measure.tune import Task
from mxgemm.measure.unfinished import Unfinished
from mxgemm.routing.tables import Row

logger = logging.getLogger("mxgemm")

PAUSE: Final = 50.0
"""Times as long as writing took that is waited until the table is written again."""


class Growing:
    """Rows on their way into a table."""

    def __init__(self, path: Path, device: torch.device, force: bool, clock: Clock = time.monotonic) -> None:
        """Begin.

        Args:
            path: of the table.
            device: that is measured.
            force: replace a file that is no table.
            clock: seconds.
        """
        self._path, self._device, self._force, self._clock = path, device, force, clock
        self._machine = machine_of(device)
        self._sources: dict[str, dict[str, str]] = {}
        self._rows: list[Row] = []
        self._places: set[tuned.Place] = set()
        self._done: list[Unfinished] = []
        self._claims = ExitStack()
        method = CALL_METHOD["cpu"] if device.type == "cpu" else GRAPH_METHOD
        self._named = {form: tuned.source_of(device, form, method=method) for form in FORMS}
        self._next = self._clock()
        self._told = False

    def take(self, task: Task, kept: Unfinished, *, finished: bool) -> None:
        """Take in what was measured of a task, and write what has come together, if it is time."""
        name, source = self._named[task.form]
        for timing in kept.timings:
            self._places |= tuned.places_of(timing, self._machine, tuned.cpu_of(self._device))
        self._rows += tuned.of_all_forms(tuned.rows(kept.timings, self._device, name), self._machine.arch)
        self._sources[name] = source
        self._done += [kept] if finished else []
        start = self._clock()
        if start < self._next:
            return
        try:
            tuned.add(*self._what(), replaced=self._places, force=self._force)
        except (FileError, OSError) as error:
            if not self._told:
                logger.warning("%s; the run goes on, and the table is written at the end", error)
            self._told = True
            return
        self._written()
        self._next = self._clock() + PAUSE * (self._clock() - start)

    def hold(self, claim: ExitStack) -> None:
        """Keep the claim of a task until it is in the table, so that no other process begins it meanwhile."""
        if self._places or self._done:
            self._claims.push(claim)
        else:
            claim.close()

    def finish(self) -> None:
        """Write what is not in the table yet.

        Raises:
            FileError: it cannot be written; the message says where the rows are instead.
        """
        with self._claims:
            if self._rows or self._places:
                tuned.write(*self._what(), replaced=self._places, force=self._force)
            self._written()

    def _what(self) -> tuple[Any, ...]:
        return self._path, self._machine.arch, self._sources, self._rows

    def _written(self) -> None:
        for kept in self._done:
            kept.leave(finished=True)
        self._rows, self._places, self._done = [], set(), []
        self._claims.close()
