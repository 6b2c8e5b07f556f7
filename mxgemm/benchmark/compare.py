"""Compare two benchmark documents: ratios, and what became slower by more than the runs spread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from mxgemm.arguments import shown
from mxgemm.benchmark.session import KIND, VERSION

Metric = Literal["device", "eager", "host"]
METRICS: Final[tuple[Metric, ...]] = ("device", "eager", "host")
THRESHOLD: Final = 0.02
"""A change must also exceed this share: graph replays spread less than a device's clock does between runs."""

_LONGEST_US: Final = 1e12
_SPREAD: Final = ("us", "low", "high")
_Key = tuple[int, int, int, str, str]
Verdict = Literal["slower", "faster", "same", "wrong now", "raises now", "gone", "new"]


@dataclass(frozen=True, slots=True)
class Change:
    """One contender on one size, in both documents.

    Attributes:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        kind: "route" or "peer".
        name: of the contender.
        old_us: median before, None where it was not timed.
        new_us: median now.
        verdict: "slower" and "faster" mean that the interquartile ranges do not overlap and the medians differ by more
            than the threshold; "wrong now" that it fails the gates and did not before, "raises now" that it ends in an
            error and did not before, "gone" that it was not run or was refused.
    """

    m: int
    n: int
    k: int
    kind: str
    name: str
    old_us: float | None
    new_us: float | None
    verdict: Verdict

    @property
    def ratio(self) -> float | None:
        """New over old, above 1 is slower."""
        return self.new_us / self.old_us if self.old_us and self.new_us else None

    @property
    def bad(self) -> bool:
        """Say whether this should stop a release: one of our routes became slower or wrong, or raises."""
        return self.kind == "route" and self.verdict in ("slower", "wrong now", "raises now")


def load(path: str | Path) -> dict[str, Any]:
    """Read a benchmark document.

    Raises:
        ValueError: not one, of another version, or damaged.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # the last two: also numbers and nesting beyond Python's limits
        raise ValueError(f"{path}: cannot be read as JSON ({error})") from error
    found = (document.get("kind"), document.get("version")) if isinstance(document, dict) else (None, None)
    if found != (KIND, VERSION):
        raise ValueError(f"{path}: got kind {found[0]!r} version {found[1]!r}, want {KIND!r} version {VERSION}")
    reason = _damage(document)
    if reason:
        raise ValueError(f"{path}: {reason}")
    return document  # type: ignore[no-any-return]


def _damage(document: Mapping[str, Any]) -> str:
    """Say what is not as :func:`mxgemm.benchmark.run` writes it, of all that a comparison reads."""
    for name, kind in (
        ("environment", dict),
        ("results", list),
        ("failures", list),
        ("a_format", str),
        ("prepared", bool),
    ):
        if not isinstance(document.get(name), kind):
            return f"{name}: got {shown(document.get(name))}, want {kind.__name__}"
    for name in ("results", "failures"):
        for number, record in enumerate(document[name]):
            reason = _record_damage(record, timed=name == "results")
            if reason:
                return f"{name}[{number}]: {reason}"
    return ""


def _record_damage(record: Any, timed: bool) -> str:
    if not isinstance(record, dict):
        return f"got {shown(record)}, want an object"
    for name, kind in (("m", int), ("n", int), ("k", int), ("kind", str), ("name", str)):
        if type(record.get(name)) is not kind:
            return f"{name}: got {shown(record.get(name))}, want {kind.__name__}"
    if not timed:
        return ""
    accuracy = record.get("accuracy")
    if not isinstance(accuracy, dict) or not isinstance(accuracy.get("passed"), bool):
        return f"accuracy: got {shown(accuracy)}, want an object with passed, true or false"
    for metric in METRICS:
        spread = record.get(metric, "nothing")
        if spread is not None and not (isinstance(spread, dict) and all(map(_is_time, map(spread.get, _SPREAD)))):
            return (
                f"{metric}: got {shown(spread)}, want null or an object with {', '.join(_SPREAD)}, microseconds above 0"
            )
    return ""


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LONGEST_US


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], *, metric: Metric = "device", threshold: float = THRESHOLD
) -> list[Change]:
    """Compare two documents, record by record, in the order of the new one.

    Args:
        old: before.
        new: now.
        metric: which time.
        threshold: least relative change of the median that counts.
    """
    before, now = _by_key(old), _by_key(new)
    changes = [_change(key, before.get(key), record, metric, threshold) for key, record in now.items()]
    broken = {_key(failure) for failure in new["failures"]}
    for key, record in before.items():
        if key not in now:
            change = _change(key, record, None, metric, threshold)
            changes.append(replace(change, verdict="raises now") if key in broken else change)
    return changes


def remarks(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what else differs between the runs and may explain a change."""
    found = []
    for name in ("device", "torch", "triton", "mxgemm", "last_cache_bytes"):
        a, b = old["environment"].get(name), new["environment"].get(name)
        if a != b:
            found.append(f"{name}: {a} before, {b} now")
    for name in ("a_format", "prepared"):
        if old[name] != new[name]:
            found.append(f"{name}: {old[name]} before, {new[name]} now")
    return found


def _by_key(document: Mapping[str, Any]) -> dict[_Key, Mapping[str, Any]]:
    return {_key(record): record for record in document["results"]}


def _key(record: Mapping[str, Any]) -> _Key:
    return record["m"], record["n"], record["k"], record["kind"], record["name"]


def _change(
    key: _Key,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
    metric: Metric,
    threshold: float,
) -> Change:
    a = old[metric] if old else None
    b = new[metric] if new else None
    verdict: Verdict = "same"
    if new is None:
        verdict = "gone"
    elif not new["accuracy"]["passed"] and (old is None or old["accuracy"]["passed"]):
        verdict = "wrong now"
    elif old is None or a is None or b is None:
        verdict = "new"
    elif b["low"] > a["high"] and b["us"] > a["us"] * (1 + threshold):
        verdict = "slower"
    elif b["high"] < a["low"] and b["us"] < a["us"] * (1 - threshold):
        verdict = "faster"
    return Change(*key, a["us"] if a else None, b["us"] if b else None, verdict)
