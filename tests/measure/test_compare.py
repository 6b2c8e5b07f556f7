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
    other["a_formats"] = ["bf16"]
    assert len(compare.remarks(document, other)) == 2
    assert compare.remarks(document, document) == []


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, message in (("{", "not JSON"), ('{"kind": "mxgemm-bench"}', "version: got None, want 3")):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            measure.load(path)


def as_version_2(document: dict) -> dict:
    """The same run as it was written before."""
    old = json.loads(json.dumps(document)) | {"version": 2, "a_format": "e2m1", "prepared": True}
    del old["a_formats"], old["forms"]
    for entry in [*old["results"], *old["refusals"], *old["failures"]]:
        del entry["form"]
        entry.pop("traffic_bytes", None)
        entry["a_format"] = "e2m1"
    return old


def test_documents_of_version_2_are_read_as_of_today(document: dict, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(as_version_2(document)))
    found = measure.load(path)
    assert found == {**json.loads(json.dumps(document)), "version": 3}
    assert {change.verdict for change in compare.compare(found, document)} == {"same"}
    path.write_text(json.dumps(as_version_2(document) | {"prepared": False}))
    raw = measure.load(path)
    assert raw["forms"] == ["raw"]
    assert {record["form"] for record in raw["results"]} == {"raw", None}
    broken = as_version_2(document)
    del broken["prepared"]
    path.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match="prepared"):
        measure.load(path)


def test_one_route_in_two_forms_is_two(document: dict) -> None:
    both = changed(document)
    ours = next(record for record in both["results"] if record["kind"] == "route")
    both["results"].append({**ours, "form": "compact"})
    slow = json.loads(json.dumps(both))
    slow["results"][-1]["device"].update(us=200.0, low=199.0, high=201.0)
    verdicts = {change.name: change.verdict for change in compare.compare(both, slow)}
    names = {record["name"] for record in document["results"] if record["kind"] == "peer"}
    same = dict.fromkeys((f"{ours['name']} fast", *names), "same")
    assert verdicts == {**same, f"{ours['name']} compact": "slower"}


def test_runs_of_a_tree_are_one_run_with_a_wider_spread(document: dict) -> None:
    before = compare.pooled([changed(document), changed(document, us=1.1)])
    (spread, *_) = (record["device"] for record in before["results"])
    assert spread == pytest.approx({"us": 105.0, "low": 99.0, "high": 111.1})
    assert before["results"][0]["eager"] is None
    assert {change.verdict for change in compare.compare(before, changed(document, us=1.1))} == {"same"}
    assert {change.verdict for change in compare.compare(before, changed(document, us=1.2))} == {"slower"}
    once_wrong = compare.pooled([changed(document), changed(document, passed=False)])
    assert {change.verdict for change in compare.compare(before, once_wrong)} == {"wrong now"}
    ours = [record for record in document["results"] if record["kind"] == "route"]
    broken = {**document, "results": [], "failures": [{**record, "error": "lost"} for record in ours]}
    once_broken = compare.pooled([changed(document), broken])
    changes = compare.compare(before, once_broken)
    assert [change.verdict for change in changes if change.kind == "route"] == ["raises now"]
