"""Compare two benchmark documents: ratios, and what became slower by more than the runs spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

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
