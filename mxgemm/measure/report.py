"""The report of ``mxgemm doctor --verify``: what its file holds, who may add to it, and how it is read back.

The file is the state of the run. It is written before each step that launches something, with the step's name in
"running": a run that is started again over the same file takes up what is left, and of a step during which the process
ended twice (a GPU's fault ends it) only that is recorded. docs/mi355x.md describes the fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, get_args

import torch

from mxgemm import files
from mxgemm.fields import Check, anything, document, each, every, flag, integer, number, one_of, optional, record, text
from mxgemm.files import FileError, Name
from mxgemm.measure import Shape, tune, tuned
from mxgemm.measure.doctor import OWN_TABLE, Findings
from mxgemm.measure.document import Keeper
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.step import ATTEMPTS, Attempts, Section, Step
from mxgemm.measure.timing import CALL_METHOD
from mxgemm.measure.verify import State
from mxgemm.mx.accuracy import NORM_GATE
from mxgemm.routing import tables

KIND: Final = "mxgemm-verification"
VERSION: Final = 2
STATES: Final = get_args(State)

_WORDS: Final = text("text", empty=True, lines=True)
_NAME: Final = text("a name")
_SIZE: Final[dict[str, Check]] = dict.fromkeys(("m", "n", "k"), integer(1, 1 << 40))
_TIME: Final[dict[str, Check]] = dict.fromkeys(("us", "us_low", "us_high"), number(0))
_FORM: Final = optional(text("the form of a weight", empty=True))
_MORE: Final[dict[str, Check]] = {"reason": _WORDS, "config": each(anything), "derived": _FORM, **_TIME}
_RESULT: Final = record(
    {"step": _NAME, **_SIZE, "route": _NAME, "weight": _NAME, "state": one_of(STATES)},
    {**_MORE, **dict.fromkeys(("norm_error", "element_error", "norm_limit", "element_limit"), number(-1))},
    closed=False,
)
_MEASURED: Final[dict[str, Check]] = {"step": _NAME, **_SIZE, "state": one_of(("passed", "failed"))}


def _table(value: Any, where: str) -> None:
    tables.parse(value, where)


_SESSION: Final = record({"date": _NAME, "seconds": number(-1), "ended": _NAME})
_REQUEST: Final = record(
    {"shapes": every(every(integer(1, 1 << 40))), "seconds": number(-1), "prepared": optional(flag()), "tune": flag()}
)
_DOCUMENT: Final = record(
    {
        "date": _NAME,
        "finished": flag(),
        "running": optional(record({"step": _NAME, "attempts": integer(1, ATTEMPTS)})),
        "request": _REQUEST,
        "environment": record(dict.fromkeys(("device", "arch", "torch", "mxgemm"), _NAME), closed=False),
        "clocks": each(_WORDS),
        "found": each(_WORDS),
        "method": _WORDS,
        "gates": each(anything),
        "counts": record(dict.fromkeys(STATES, integer(0, 1 << 40))),
        "sessions": every(_SESSION),
        "results": every(_RESULT),
        "baselines": every(record(_MEASURED, _MORE, closed=False)),
        "tuned": every(record({**_MEASURED, "route": _NAME, "config": each(anything)}, _MORE, closed=False)),
        "best": every(record({**_SIZE, "route": _NAME, "us": number(0)}, closed=False)),
        "table": optional(_table),
    },
    closed=False,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a report is asked for.

    Attributes:
        shapes: (M, N, K) triples.
        seconds: for each timed case.
        prepared: the forms of the weight, as in :func:`mxgemm.measure.verify.verify`.
        tune: configurations are measured too, and ``torch.mm``.
    """

    shapes: Sequence[Shape]
    seconds: float
    prepared: bool | None
    tune: bool


def load(path: Name) -> dict[str, Any]:
    """Read a report.

    Raises:
        FileError: a ValueError: it cannot be read, is none, is of another version, or a field is not what it should be.
    """
    found = files.read_json(path)
    document(KIND, VERSION)(found, str(path))
    _DOCUMENT(found, str(path))
    return found  # type: ignore[no-any-return]


class Report:
    """A report that is being made, in a file or in memory alone.

    Attributes:
        document: as the file holds it.
    """

    def __init__(
        self, request: Request, found: Findings, device: torch.device, path: Path | None = None, *, force: bool = False
    ) -> None:
        """Begin a report, or take up the one that is in the file.

        Raises:
            FileError: the file cannot be written, is no report, or one of another machine, of other versions or of
                another request; ``force`` begins anew over whatever it is.
        """
        self._device, self._prepared = device, request.prepared is not False
        fresh = _fresh(request, found, device)
        self._keeper = None if path is None else Keeper(path, kind=KIND, force=force)
        old = None if path is None or force or not _holds_something(path) else _same(path, fresh)
        self.document = old or fresh
        self._attempts = Attempts(old["running"] if old else None)
        for session in self.document["sessions"]:
            session["ended"] = "killed" if session["ended"] == "running" else session["ended"]
        self._done = {entry["step"] for part in get_args(Section) for entry in self.document[part]}
        self.taken_up = old is not None

    @property
    def finished(self) -> bool:
        """Nothing is left to do."""
        return bool(self.document["finished"])

    def begin(self) -> None:
        """Note that somebody works at it now."""
        self.document["sessions"].append({"date": _now(), "seconds": 0.0, "ended": "running"})

    def has(self, step: Step) -> bool:
        """Say whether a step was done before."""
        return step.name in self._done

    def start(self, step: Step) -> str:
        """Note in the file what is about to run, and what came before; return why it had better not run, or ""."""
        refused = self._attempts.refusal(step.name)
        if not refused:
            self.document["running"] = self._attempts.note(step.name)
            self._keep()
        return refused

    def add(self, step: Step, outcome: dict[str, Any]) -> None:
        """Take in what a step gave. It is in the file when the next one starts, or the run ends."""
        self.document[step.section].append({"step": step.name, **step.who, **_finite(outcome)})
        self.document["running"] = None
        self._done.add(step.name)

    def worked(self, seconds: float) -> None:
        """Note how long this session has worked."""
        self.document["sessions"][-1]["seconds"] = round(seconds, 1)

    def end(self, how: str) -> None:
        """Write the report with how this session ended: "finished", or why not.

        Raises:
            FileError: it cannot be written; the message says where it is instead.
        """
        self.document["sessions"][-1]["ended"] = how
        self.document["finished"] = how == "finished"
        self.document["running"] = None
        self._sum_up()
        if self._keeper:
            self._keeper.finish(self.document)

    def _keep(self) -> None:
        if self._keeper:
            self._sum_up()
            self._keeper.keep(self.document)

    def _sum_up(self) -> None:
        states = [entry["state"] for entry in self.document["results"]]
        self.document["counts"] = {state: states.count(state) for state in STATES}
        if not self.document["request"]["tune"]:
            return
        date = datetime.fromisoformat(self.document["date"])
        name, source = tuned.source_of(self._device, "fast" if self._prepared else "raw", date)
        timings = [tune.timing_of(entry) for entry in self.document["tuned"]]
        arch = self.document["environment"]["arch"]
        rows = tuned.of_all_forms(tuned.rows(timings, self._device, name), arch)
        self.document["table"] = tuned.document_of(arch, {name: source}, rows, None) if rows else None
        of_mm = {size_of(entry): entry.get("us") for entry in self.document["baselines"]}
        best: dict[Shape, tables.Row] = {}
        for row in rows:  # of each shape the fastest first
            best.setdefault((row.m, row.n, row.k), row)
        self.document["best"] = [
            {
                **{"m": m, "n": n, "k": k, "route": row.route, "us": row.us, "torch_mm_us": of_mm.get((m, n, k))},
                "share": row.us / of_mm[m, n, k] if row.us and of_mm.get((m, n, k)) else None,
            }
            for (m, n, k), row in best.items()
        ]


def size_of(entry: dict[str, Any]) -> Shape:
    """Return (M, N, K) of a record."""
    return entry["m"], entry["n"], entry["k"]


def _fresh(request: Request, found: Findings, device: torch.device) -> dict[str, Any]:
    return {
        "kind": KIND,
        "version": VERSION,
        "date": _now(),
        "finished": False,
        "running": None,
        "request": asdict(request) | {"shapes": [list(shape) for shape in request.shapes]},
        "environment": describe_environment(device),
        "clocks": clocks(device),
        "found": dict(found.facts) | {ability.name: ability.words for ability in found.abilities},
        "method": CALL_METHOD[device.type],
        "gates": {"norm": NORM_GATE, "element": "32 + K / 64, 4 for Hopper's fp8 sums"},
        "counts": dict.fromkeys(STATES, 0),
        "sessions": [],
        "results": [],
        "baselines": [],
        "tuned": [],
        "best": [],
        "table": None,
    }


def _same(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the report in a file, if it is of this machine, these versions and this request."""
    anew = "another file, or --force, which begins anew"
    try:
        old = load(path)
        for index, entry in enumerate(old["tuned"]):
            _require_route(entry, f"{path}.tuned[{index}]")
    except FileError as error:
        raise FileError(f"{error}; want {anew}") from error
    for part in ("environment", "request", "found"):
        for name, value in fresh[part].items():
            if old[part].get(name) != value and name != OWN_TABLE:  # it decides nothing here, and grows meanwhile
                got = files.shown(old[part].get(name))
                raise FileError(f"{path}: a report with {name} {got}, want {files.shown(value)} as here; {anew}")
    return old


def _require_route(entry: dict[str, Any], where: str) -> None:
    try:
        tune.timing_of(entry)
    except KeyError as error:
        raise FileError(f"{where}.route: got {error}, want a route") from error
    except ValueError as error:
        raise FileError(f"{where}.{error}") from error


def _holds_something(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what JSON cannot hold: errors are NaN or infinite where the output is."""
    return {name: value for name, value in values.items() if not isinstance(value, float) or math.isfinite(value)}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
