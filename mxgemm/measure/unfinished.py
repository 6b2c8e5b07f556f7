"""What a run of tuning keeps beside its table until it has finished: a file for each task, with all that was measured.

A file is written before each configuration is run, with that one's name in "running", so that a process may be killed
at any moment. Who works at a task holds its lock, which ends with the process: several processes share the tasks of a
run, and none does twice what another one does. The files go when the run has finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.fields import anything, document, each, every, flag, integer, number, optional, record, text
from mxgemm.files import FileError
from mxgemm.measure.document import Keeper
from mxgemm.measure.search import Candidate
from mxgemm.measure.step import ATTEMPTS, Attempts
from mxgemm.measure.tune import Task, Timing
from mxgemm.notices import say_once
from mxgemm.routes import ROUTES

KIND: Final = "mxgemm-tuning"
VERSION: Final = 1
SUFFIX: Final = ".tuning"
"""Of the folder beside a table."""

_WORDS: Final = text("text", empty=True, lines=True)
_TIMING: Final = record(
    {"route": text("a route's name"), "config": each(anything), "us": optional(number(0)), "reason": _WORDS},
    {"derived": optional(text("a form", empty=True))},
)
_DOCUMENT: Final = record(
    {
        "about": each(anything),
        "running": optional(record({"step": text("a step"), "attempts": integer(1, ATTEMPTS)})),
        "finished": flag(),
        "failure": _WORDS,
        "timings": every(_TIMING),
    },
    closed=False,
)


def folder_of(table: Path) -> Path:
    """Return the folder of a table's unfinished run: beside the file, where the table is a link to one."""
    target = Path(os.path.realpath(table))
    return target.with_name(target.name + SUFFIX)


class Unfinished:
    """What was measured of one task.

    Attributes:
        timings: of this run and of those before it.
        finished: nothing is left to measure.
        failure: why nothing could be, "" where it could.
    """

    def __init__(self, task: Task, about: Mapping[str, Any], path: Path | None) -> None:
        """Begin, or take up what a file holds.

        Args:
            task: that is tuned.
            about: machine, versions and request; what was measured for another one is forgotten.
            path: of the file; None keeps everything in memory.
        """
        self._task, self._about, self._path = task, dict(about), path
        old = None if path is None else _read(path, self._about)
        self.timings = [_timing(task, entry) for entry in old["timings"]] if old else []
        self.finished: bool = old["finished"] if old else False
        self.failure: str = old["failure"] if old else ""
        self._attempts, self._running = Attempts(old["running"] if old else None), None
        self._keeper: Keeper | None = None

    def refusal(self, candidate: Candidate) -> str:
        """Say why a candidate had better not be run again, or return "" and note that it runs now."""
        step = f"{candidate.route}: {candidate.config.to_mapping()}"
        refused = self._attempts.refusal(step)
        if not refused:
            self._keep(self._attempts.note(step))
        return refused

    def take(self, timing: Timing) -> None:
        """Take in what was measured. It is in the file when the next candidate is run, or the task is left."""
        self.timings.append(timing)

    def leave(self, *, finished: bool) -> None:
        """Write the file; the task is done with, or will be taken up again."""
        self.finished = finished
        self._keep(None)

    def _keep(self, running: dict[str, Any] | None) -> None:
        if self._path is None:
            return
        if self._keeper is None:
            self._keeper = Keeper(self._path, kind=KIND, force=True)
        self._keeper.keep(
            {
                "kind": KIND,
                "version": VERSION,
                "about": self._about,
                "running": running,
                "finished": self.finished,
                "failure": self.failure,
                "timings": [
                    {"route": one.route, "config": one.config.to_mapping(), "us": one.us, "reason": one.reason}
                    | {"derived": one.derived}
                    for one in self.timings
                ],
            }
        )


@contextmanager
def claimed(folder: Path, task: Task, about: Mapping[str, Any]) -> Iterator[Unfinished | None]:
    """Work at a task alone: None where another process does so now.

    Args:
        folder: of the run. Where it cannot be written, which is said, nothing is kept of a run that is killed.
        task: that is tuned.
        about: see :class:`Unfinished`.
    """
    path = folder / _file_name(task)
    with ExitStack() as stack:
        kept: Path | None = path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = stack.enter_context(files.locked(path.with_suffix(".lock"), wait=False))
            files.check_writable(path, files.json_mark(KIND), force=True)
        except (OSError, FileError) as error:
            say_once(f"{folder}: what is measured is kept in memory until it is in the table ({error})")
            kept, free = None, True
        yield Unfinished(task, about, kept) if free else None


def found(folder: Path, tasks: Iterable[Task], about: Mapping[str, Any]) -> list[tuple[Task, Unfinished]]:
    """Return what a folder holds of tasks, whoever works at them."""
    paths = [(task, folder / _file_name(task)) for task in tasks]
    return [(task, Unfinished(task, about, path)) for task, path in paths if path.exists()]


def forget(folder: Path, tasks: Iterable[Task]) -> None:
    """Remove the files of tasks that are done with, and the folder where nothing else is in it."""
    with suppress(OSError):
        for task in tasks:
            (folder / _file_name(task)).unlink(missing_ok=True)
        left = list(folder.iterdir())
        if all(files.is_partial(path) for path in left):  # of processes that were killed while they wrote
            for path in left:
                path.unlink(missing_ok=True)
        folder.rmdir()


def _file_name(task: Task) -> str:
    return str(task).replace(",", "x").replace(" ", "_") + ".json"


def _read(path: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        old = files.read_json(path)
        document(KIND, VERSION)(old, str(path))
        _DOCUMENT(old, str(path))
        for entry in old["timings"]:
            _timing(Task((1, 1, 32)), entry)
    except (FileError, KeyError, ValueError) as error:  # KeyError: a route of another release
        say_once(f"what an unfinished run left is not used, the task is begun anew: {error}")
        return None
    if old["about"] != about:
        say_once(f"{path}: of another machine, other versions or another request; the task is begun anew")
        return None
    return old  # type: ignore[no-any-return]


def _timing(task: Task, entry: Mapping[str, Any]) -> Timing:
    config = ROUTES[entry["route"]].config_type.from_mapping(entry["config"])
    return Timing(task.shape, entry["route"], config, entry["us"], entry["reason"], task.a_format, entry.get("derived"))
