"""Benchmark documents as files: what every reader of one may rely on, and how one is kept while a run goes on.

What is checked here is what ``compare``, ``text`` and ``plots`` read; docs/benchmarks.md describes all fields.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.fields import Check, document, each, every, flag, integer, number, one_of, optional, record, text
from mxgemm.files import FileError, Name
from mxgemm.measure.peers import PEERS
from mxgemm.measure.routes import FORMS

KIND: Final = "mxgemm-bench"
VERSION: Final = 3
_PAST_VERSION: Final = 2

logger = logging.getLogger("mxgemm")

_WORDS: Final = text("text", empty=True, lines=True)
_NAME: Final = text("a name")
_MORE_THAN_NOTHING: Final = number(0)
_MAYBE: Final = optional(number(-1, "a finite number of at least 0, or null"))
_SPREAD: Final = record(dict.fromkeys(("us", "low", "high"), _MORE_THAN_NOTHING), closed=False)
_SIZE: Final[dict[str, Check]] = {
    **dict.fromkeys(("m", "n", "k"), integer(1, 1 << 40)),
    "kind": one_of(["route", "peer"]),
    "name": _NAME,
}
_WHO: Final[dict[str, Check]] = {**_SIZE, "a_format": optional(_NAME), "form": optional(one_of(FORMS))}
_RESULT: Final[dict[str, Check]] = {
    **_WHO,
    **dict.fromkeys(("bytes", "traffic_bytes", "flops", "floor_us"), _MORE_THAN_NOTHING),
    **dict.fromkeys(("device", "eager", "host"), optional(_SPREAD)),
    **dict.fromkeys(("tflop_per_s", "ratio_to_floor"), _MAYBE),
    "statement": _WORDS,
    "chosen": flag(),
    "accuracy": record({"passed": flag(), "norm": _MAYBE}, closed=False),
}
_ENVIRONMENT: Final[dict[str, Check]] = {
    **dict.fromkeys(("device", "arch", "torch", "mxgemm"), _NAME),
    "triton": optional(_NAME),
    "last_cache_bytes": optional(integer(0, 1 << 50)),
}
_ROOF: Final[dict[str, Check]] = {
    **dict.fromkeys(("bandwidth_gb_per_s", "rate_tflop_per_s"), _MORE_THAN_NOTHING),
    "tflop_per_s": each(_MORE_THAN_NOTHING),
    "refused": each(_WORDS),
}
_DOCUMENT: Final = record(
    {
        "date": _NAME,
        "environment": record(_ENVIRONMENT, closed=False),
        "method": record({"device": _WORDS}, closed=False),
        "a_formats": every(_NAME),
        "forms": every(one_of(FORMS)),
        "roof": record(_ROOF, closed=False),
        "peers": every(record({"name": _NAME, "present": flag(), "reason": _WORDS}, closed=False)),
        "results": every(record(_RESULT, closed=False)),
        "refusals": every(record({**_WHO, "reason": _WORDS}, closed=False)),
        "failures": every(record({**_WHO, "error": _WORDS}, closed=False)),
    },
    closed=False,
)

_PAST_DOCUMENT: Final = record(
    {
        "a_format": _NAME,
        "prepared": flag(),
        "results": every(record({**_SIZE, "bytes": _MORE_THAN_NOTHING}, closed=False)),
        **dict.fromkeys(("refusals", "failures"), every(record(_SIZE, closed=False))),
    },
    closed=False,
)


def load(path: Name) -> dict[str, Any]:
    """Read a benchmark document; one of version 2 as if it had been written today.

    Raises:
        FileError: a ValueError: it cannot be read, is none, is of another version, or a field is not what it should be.
    """
    found = files.read_json(path)
    if isinstance(found, dict) and (found.get("kind"), found.get("version")) == (KIND, _PAST_VERSION):
        _PAST_DOCUMENT(found, str(path))
        found = _renewed(found)
    document(KIND, VERSION)(found, str(path))
    _DOCUMENT(found, str(path))
    return found  # type: ignore[no-any-return]


def _renewed(past: dict[str, Any]) -> dict[str, Any]:
    """Say of each record what version 2 said once for all: one format, one form of the weight."""
    form = "fast" if past["prepared"] else "raw"
    kept = {name: value for name, value in past.items() if name not in ("a_format", "prepared")}

    def who(entry: dict[str, Any]) -> dict[str, Any]:
        ours = entry["kind"] == "route"
        return {**entry, "a_format": past["a_format"] if ours else None, "form": form if ours else None}

    def traffic(entry: dict[str, Any]) -> int:
        peer = PEERS.get(entry["name"]) if entry["kind"] == "peer" else None
        return peer.traffic_bytes(entry["m"], entry["n"], entry["k"]) if peer else entry["bytes"]

    return {
        **kept,
        "version": VERSION,
        "a_formats": [past["a_format"]],
        "forms": [form],
        "results": [{**who(entry), "traffic_bytes": traffic(entry)} for entry in past["results"]],
        **{name: [who(entry) for entry in past[name]] for name in ("refusals", "failures")},
    }


class Keeper:
    """Writes the document of a run to its file as it goes on, so that an interrupted one leaves what it measured."""

    def __init__(self, path: Path, *, kind: str = KIND, force: bool = False) -> None:
        """Check the file before the work.

        Raises:
            FileError: it cannot be written, or holds another kind of document and ``force`` is not set.
        """
        self._path, self._kind, self._force = path, kind, force
        files.check_writable(path, files.json_mark(kind), force=force)
        self._told = False

    def keep(self, unfinished: dict[str, Any]) -> None:
        """Write what there is; where that fails, say so once and let the run go on."""
        try:
            files.write(self._path, files.json_text(unfinished), files.json_mark(self._kind), force=self._force)
        except FileError as error:
            if not self._told:
                logger.warning("%s; the run goes on, and its results are written at the end", error)
            self._told = True

    def finish(self, finished: dict[str, Any]) -> None:
        """Write the whole document.

        Raises:
            FileError: it cannot be written; the message says where it is instead.
        """
        files.save_json(self._path, finished, self._kind, force=self._force)
