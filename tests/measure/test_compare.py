"""What counts as a slowdown between two runs, and what is noise."""

import json
from pathlib import Path

import pytest
import torch

from mxgemm import measure
from mxgemm.measure import compare
from mxgemm.measure.spread import Effort


@pytest.fixture(scope="module")
def document() -> dict:
    effort = Effort(seconds=0.0, least=2, most=2)
    return measure.run(measure.Request([(3, 32, 64)], torch.device("cpu"), peers=tuple(measure.PEERS), effort=effort))


def changed(document: dict, *, us: float = 1.0, spread: float = 0.01, passed: bool = True) -> dict:
    """The same document with every time scaled, and a relative spread around it."""
    copy = json.loads(json.dumps(document))
    for record in copy["results"]:
        middle = 100.0 * us
        record["device"].update(us=middle, low=middle * (1 - spread), high=middle * (1 + spread))
        record["accuracy"]["passed"] = passed
    return copy


@pytest.mark.parametrize(
    "us, spread, verdict",
    [
        (1.0, 0.01, "same"),
        (1.1, 0.01, "slower"),
        (1.1, 0.2, "same"),  # within the noise of both
        (1.015, 0.001, "same"),  # beyond the spread, within the threshold
        (0.8, 0.01, "faster"),
    ],
)
def test_only_what_exceeds_the_spread_counts(document: dict, us: float, spread: float, verdict: str) -> None:
    changes = compare.compare(changed(document, spread=spread), changed(document, us=us, spread=spread))
    assert {change.verdict for change in changes} == {verdict}
    assert changes[0].ratio == pytest.approx(us)
    ours = [change for change in changes if change.kind == "route"]
    assert all(change.bad == (verdict == "slower") for change in ours)
    assert not any(change.bad for change in changes if change.kind == "peer")


def test_wrong_gone_and_new(document: dict) -> None:
    old, wrong = changed(document), changed(document, passed=False)
    assert {change.verdict for change in compare.compare(old, wrong)} == {"wrong now"}
    empty = {**old, "results": []}
    assert {change.verdict for change in compare.compare(old, empty)} == {"gone"}
    assert not any(change.bad for change in compare.compare(old, empty))
    broken = {**empty, "failures": [{**record, "error": "lost"} for record in old["results"]]}
    changes = compare.compare(old, broken)
    assert {change.verdict for change in changes} == {"raises now"}
    assert all(change.bad == (change.kind == "route") for change in changes)
    assert {change.verdict for change in compare.compare(empty, old)} == {"new"}
    assert {change.verdict for change in compare.compare(old, old, metric="eager")} == {"new"}  # never timed


def test_other_circumstances_are_remarked(document: dict) -> None:
    other = json.loads(json.dumps(document))
    other["environment"]["device"] = "another"
    other["a_format"] = "bf16"
    assert len(compare.remarks(document, other)) == 2
    assert compare.remarks(document, document) == []


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, message in (("{", "not JSON"), ('{"kind": "mxgemm-bench"}', "version: got None, want 2")):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            measure.load(path)
