"""Compare two benchmark documents: ratios, and what became slower by more than the runs spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mxgemm.measure.identity import Identity, identity, names

Metric = Literal["device", "eager", "host"]
METRICS: Final[tuple[Metric, ...]] = ("device", "eager", "host")
THRESHOLD: Final = 0.02
"""A change must also exceed this share: graph replays spread less than a device's clock does between runs."""

_Key = tuple[int, int, int, Identity]
Verdict = Literal["slower", "faster", "same", "wrong now", "raises now", "gone", "new"]


@dataclass(frozen=True, slots=True)
class Change:
    """One contender on one size, in both documents.

    Attributes:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        kind: "route" or "peer".
        name: of the contender, with the format of A and the form of the weight where they tell it from another.
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
    named = names([*new["results"], *old["results"]])
    changes = [_change(key, named, before.get(key), record, metric, threshold) for key, record in now.items()]
    broken = {_key(failure) for failure in new["failures"]}
    for key, record in before.items():
        if key not in now:
            change = _change(key, named, record, None, metric, threshold)
            changes.append(replace(change, verdict="raises now") if key in broken else change)
    return changes


def pooled(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Take runs of one tree as one run, whose spread holds theirs: the clocks of a device differ more between runs.

    A time is the median of the medians, with the least first and the greatest third quartile. A result that failed
    its gates in one run has failed, and one that raised in one run is a failure.
    """
    failures = [failure for document in documents for failure in document["failures"]]
    broken = {_key(failure) for failure in failures}
    runs: dict[_Key, list[Mapping[str, Any]]] = {}
    for document in documents:
        for key, record in _by_key(document).items():
            runs.setdefault(key, []).append(record)
    results = [_pooled(records) for key, records in runs.items() if key not in broken]
    return {**documents[0], "results": results, "failures": failures}


def _pooled(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times: dict[str, Any] = {
        metric: _pooled_time([record[metric] for record in records if record[metric]]) for metric in METRICS
    }
    worst = next((record["accuracy"] for record in records if not record["accuracy"]["passed"]), records[0]["accuracy"])
    return {**records[0], **times, "accuracy": worst}


def _pooled_time(spreads: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not spreads:
        return None
    return {
        "us": statistics.median(spread["us"] for spread in spreads),
        "low": min(spread["low"] for spread in spreads),
        "high": max(spread["high"] for spread in spreads),
    }


def remarks(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what else differs between the runs and may explain a change."""
    found = []
    for name in ("device", "torch", "triton", "mxgemm", "last_cache_bytes"):
        a, b = old["environment"].get(name), new["environment"].get(name)
        if a != b:
            found.append(f"{name}: {a} before, {b} now")
    for name in ("a_formats", "forms"):
        if old[name] != new[name]:
            found.append(f"{name}: {', '.join(old[name])} before, {', '.join(new[name])} now")
    return found


def _by_key(document: Mapping[str, Any]) -> dict[_Key, Mapping[str, Any]]:
    return {_key(record): record for record in document["results"]}


def _key(record: Mapping[str, Any]) -> _Key:
    return record["m"], record["n"], record["k"], identity(record)


def _change(
    key: _Key,
    named: Mapping[Identity, str],
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
    m, n, k, who = key
    return Change(m, n, k, who.kind, named[who], a["us"] if a else None, b["us"] if b else None, verdict)
