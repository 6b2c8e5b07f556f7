"""``mxgemm doctor --verify``: every form of the weight is run, and whatever is wrong fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mxgemm.hip import shuffle
from mxgemm.measure import Effort, inputs, report, trial, tuner, verify
from mxgemm.measure.spread import spread_of
from mxgemm.measure.tune import Task
from mxgemm.mx import layouts
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Config, Launch, Operands
from mxgemm.routes.reference import Reference
from mxgemm.routing import tables
from tests.command import output

CPU = torch.device("cpu")


@pytest.fixture
def only_reference() -> Iterator[None]:
    every = dict(ROUTES)  # put back as a whole: the router tries routes in this order
    ROUTES.clear()
    ROUTES["reference"] = every["reference"]
    yield
    ROUTES.clear()
    ROUTES.update(every)


class Spoiled(Reference):
    """The reference, spoiled after it has run."""

    name = "spoiled"

    def __init__(self, how: str) -> None:
        self._how = how

    def bind(self, problem: Problem, config: Config) -> Launch:
        right = super().bind(problem, config)

        def launch(operands: Operands) -> None:
            if self._how == "raises":
                raise RuntimeError("no such device")
            right(operands)
            out = operands.out
            if self._how == "wrong":
                out[0, 0] += 1
            elif self._how == "beside":
                torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).zero_()
            elif self._how == "incomplete":
                out[-1, -1] = torch.nan

        return launch


@pytest.mark.parametrize(
    "how, reason",
    [
        ("raises", "RuntimeError: no such device"),
        ("wrong", "an error beyond its gate"),
        ("incomplete", "an error beyond its gate"),
        ("beside", "wrote 1 of the 128 elements around its output"),
    ],
)
def test_a_spoiled_route_fails(how: str, reason: str, only_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTES, "spoiled", Spoiled(how))
    verdicts = list(verify.verify([(3, 32, 96)], device=CPU, seconds=0.0))
    assert {v.state for v in verdicts if v.route == "spoiled"} == {"failed"}
    assert all(reason in v.reason for v in verdicts if v.route == "spoiled")
    assert {v.state for v in verdicts if v.route == "reference"} == {"passed"}


def test_every_form_of_the_weight_is_run(only_reference: None) -> None:
    verdicts = [v for v in verify.verify([(3, 32, 64), (2, 30, 64)], device=CPU, seconds=0.0) if v.state == "passed"]
    both, rows = ["row_major, scales row_major", "row_major, scales shuffled"], [3, 3, 3, 3, 2, 2]
    tiled = ["preshuffled, scales row_major", "preshuffled, scales shuffled"]
    assert [v.weight for v in verdicts] == [*both, *tiled, *both]  # 30 rows cannot be preshuffled
    assert [v.m for v in verdicts] == rows
    assert all(v.us and v.us > 0 and v.runs >= Effort().least for v in verdicts)


@pytest.mark.gpu
def test_every_route_of_a_gpu_is_verified_and_tuned(tmp_path: Path) -> None:
    """Also the quickest look at a machine without the command line's packages."""
    device = torch.device("cuda", torch.cuda.current_device())
    verdicts = list(verify.verify([(16, 128, 256), (33, 144, 512)], device=device, seconds=0.02))
    assert [v for v in verdicts if v.state == "failed"] == []
    assert {v.route for v in verdicts if v.state == "passed"} >= {
        "a16wfp4",
        "w4a16",
        "gemm_mx",
        "dequant_mm",
        "reference",
    }
    request = tuner.Request([Task((16, 128, 256))], ["dequant_mm", "reference"], 0.02)
    found = tuner.run(request, device, tmp_path / "table.json")
    assert (found.end, found.failures) == ("finished", [])
    rows = tables.load(tmp_path / "table.json").rows
    assert {row.route for row in rows} == {"dequant_mm", "reference"}
    assert all(row.us and row.cu_count for row in rows)


def test_prepared_forms_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _, weight = inputs(1, 32, 64, CPU)
    derived = weight.prepare("sm_90")
    monkeypatch.setattr(type(weight), "prepare", lambda self: derived)
    assert [name for name, _ in trial.forms(weight)][-1] == "prepared as fp8_fold"


def test_routes_are_asked_for_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "call_us", lambda call, device, seconds: spread_of([1.0], "wall"))
    verdicts = {v.route: v for v in verify.verify([(3, 30, 64)], device=CPU, seconds=0.0)}
    assert verdicts["reference"].activations == "e2m1"
    if verdicts["w4a16"].state == "passed":  # a GPU or Triton's interpreter
        assert verdicts["w4a16"].activations == "bf16"
        assert verdicts["gemm_mx"].activations == "MX e2m1"
    interpreted = verdicts["a16wfp4"].state == "passed"
    assert verdicts["fp8_fold"].state == ("refused" if interpreted else "missing")
    assert ("prepare()" if interpreted else "arch is cpu") in verdicts["fp8_fold"].reason
    assert verdicts["hip_fused"].state == "missing"
    assert verdicts[verify.SHUFFLES].state == "missing"


@pytest.mark.parametrize(
    "broken", ["", "shuffle_scales", "unshuffle_scales", "preshuffle_weight", "unpreshuffle_weight"]
)
def test_shuffles_are_compared_byte_for_byte(
    broken: str, only_reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's own functions in the place of the kernels, one of them one byte off."""
    monkeypatch.setattr(shuffle, "refusal", lambda machine: None)
    monkeypatch.setattr(shuffle, "shuffle_scales", lambda scales, out=None: layouts.shuffle_scales(scales))
    for name in ("unshuffle_scales", "preshuffle_weight", "unpreshuffle_weight"):
        monkeypatch.setattr(shuffle, name, getattr(layouts, name))
    if broken:
        right = getattr(shuffle, broken)

        def wrong(*arguments: object) -> torch.Tensor:
            result = right(*arguments)
            result[-1, -1] ^= 1
            return result

        monkeypatch.setattr(shuffle, broken, wrong)
    verdict = next(verify.verify([(1, 32, 64)], device=CPU, seconds=0.0))
    assert verdict.route == verify.SHUFFLES
    assert verdict.state == ("failed" if broken else "passed"), verdict
    assert verdict.reason == ("bytes differ from those of mxgemm.mx.layouts" if broken else "")


def test_the_command_and_its_report(tmp_path: Path, only_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "report.json"
    arguments = ["doctor", "--verify", "--shape", "3,32,64", "--device", "cpu", "--seconds", "0", "--json", str(path)]
    assert "4 passed, 0 failed" in output(*arguments)
    document = json.loads(path.read_text())
    assert document["kind"] == report.KIND
    assert document["counts"]["passed"] == 4
    assert document["found"]["torch"] == torch.__version__
    assert "load and launch them" in document["found"]
    passed = next(r for r in document["results"] if r["state"] == "passed")
    assert passed["us"] > 0
    assert 0 <= passed["norm_error"] <= passed["norm_limit"]
    assert passed["element_error"] >= 0
    monkeypatch.setitem(ROUTES, "spoiled", Spoiled("raises"))
    assert "no such device" in output(*arguments, "--force", code=1)
    assert json.loads(path.read_text())["counts"]["failed"] == 4
    assert "want --verify too" in output("doctor", "--shape", "3,32,64", code=2)
